"""The files of a run: their names, and how each is read. Writes nothing.

A run may be active, from an older hone, or damaged: a torn last line is left out, old names of metrics are replaced,
and other damage raises a UserError that names the file and the line.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from collections import deque
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, ValidationError, create_model

from hone.config.retired import without_retired
from hone.errors import UserError
from hone.extension import gathered
from hone.runs.files import (
    RESTORE,
    check_plain,
    is_complete,
    is_number,
    open_file,
    parse_json,
    parse_time,
    read_file,
    read_json,
    split_lines,
    whole_lines,
)

INFO, CONFIG = "run.json", "config.toml"
METRICS, TIMINGS, EVENTS, HASHES = LOGS = ("metrics.jsonl", "timings.jsonl", "events.jsonl", "hashes.jsonl")
ROLLOUTS, TOKENS, EVALS = OF_STEPS = ("rollouts", "tokens", "evals")
"""Folders with files of steps. `evals` may also have folders of `hone eval`."""
CHECKPOINTS, WEIGHTS = OF_VERSIONS = ("checkpoints", "weights")
"""Folders with a folder for each saved version."""
RESULTS, METADATA = "results.jsonl", "metadata.json"
"""Files of `hone eval`: its samples, and its numbers."""
AUDIT, JUDGEMENTS, PAUSED = "audit.json", "judgements.jsonl", "paused.json"
"""Findings of the audit before step 0; replies of reward services; a file that exists while an alarm pauses the run."""
OVER = "alarm_over"
"""Kind of the event which says that an alarm is over."""
CARD = ("report.html", "report.json", "card.md")
"""The run card: its page, its facts, and a file that hone 0.1 wrote."""
PROCESS_LOGS, SPOOL, SUPERSEDED = "logs", "spool", "superseded"
"""Folders: output of processes; weights for a server to load, removed at the end; rolled-back files."""
REWARDS, DATA, _ = GIVEN = ("rewards.py", "data.jsonl", "eval_data.jsonl")
"""Files that a program may give a run. run.json then lists them under `kept`."""
NAMES = (
    *(CONFIG, *LOGS, AUDIT, PAUSED, JUDGEMENTS, ROLLOUTS, TOKENS, CHECKPOINTS, WEIGHTS, SPOOL, PROCESS_LOGS),
    *(SUPERSEDED, "wandb", "trackio", *CARD, "curve.svg", RESULTS, METADATA, INFO),
)
"""Files of a run or an evaluation; run.json, the last, is also moved last. `evals/step_N.jsonl` are not listed, because
evaluations have folders beside them."""
PREVIOUS, LOCK, LAUNCHER = ".previous", ".hone.lock", ".hone.launcher.lock"
"""Folder of the directory's earlier runs; lock files of the process that writes the run, and of its launcher."""
CERTIFICATE = ".verify.json"
"""Suffix of the certificate that `hone verify` writes beside a run, after the directory's name."""
FORMAT = "hone-run-1"
_STEP = re.compile(r"step_(\d+)")


class RunView:
    """The run or evaluation in the folder `path`, as its files are now. A missing file counts as empty."""

    def __init__(self, path: str | Path):
        self.path = Path(path)

    @property
    def info(self) -> dict[str, Any]:
        """run.json: id, kind, status, exact, seed, versions, hardware, … Raises UserError if this is not a run."""
        if (info := existing_run(self.path)) is None:
            raise UserError(f"{self.path} is not a run of hone: it has no run.json; name a directory that `hone` wrote")
        return info

    def metric_lines(self) -> list[dict[str, Any]]:
        """Return a record per step: its metrics by name, null if not finite."""
        return read_lines(self.path / METRICS)

    def timing_lines(self) -> list[dict[str, Any]]:
        """Return a record per step: the numbers that come from a clock."""
        return read_lines(self.path / TIMINGS)

    def superseded_timings(self) -> list[dict[str, Any]]:
        return [line for log in self.path.glob(f"{SUPERSEDED}/*/{TIMINGS}") for line in read_lines(log)]

    def events(self) -> list[dict[str, Any]]:
        """Return checkpoints, resumes, alarms, …, in the order they happened."""
        return read_lines(self.path / EVENTS)

    def hashes(self) -> list[dict[str, Any]]:
        """Return a record for each step and the last version: the fingerprint `weights`, and SHA-256 of other files."""
        return read_lines(self.path / HASHES)

    def rollout_steps(self) -> list[int]:
        return list(steps_in(self.path / ROLLOUTS, ".parquet"))

    def evals(self) -> list[int]:
        """Return the versions with evaluation samples, ascending. Older runs have none."""
        return list(steps_in(self.path / EVALS, ".jsonl"))

    def eval_rows(self, version: int | None = None) -> list[dict[str, Any]]:
        """Return the samples of a version's evaluation; keys as in `hone.evaluation.result.EvalSample.row`.

        Without a version, the directory must be one of `hone eval`. Raises UserError if there are no samples.
        """
        path = self.path / (RESULTS if version is None else evals_file(version))
        if not path.exists():
            versions = ", ".join(map(str, self.evals()))
            has = f"it has those of {versions}" if versions else "it has none"
            what = f"evaluation of version {version}: {has}" if version is not None else f"{RESULTS}: name a version"
            raise UserError(f"{self.path} has no {what}")
        return read_lines(path)

    def evaluation(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the metrics of a run of `hone eval`, and its seconds by phase."""
        file = self.path / METADATA
        metadata = read_json(file) if os.path.lexists(file) else {}
        metrics, seconds = metadata.get("metrics", {}), metadata.get("seconds", {})
        for numbers in (metrics, seconds):
            if not isinstance(numbers, dict) or not all(map(is_number, numbers.values())):
                raise UserError(f"{file} is damaged (a value of the evaluation is not a number): {RESTORE}")
        return {current_name(name): value for name, value in metrics.items()}, seconds

    def weights(self) -> dict[int, Path]:
        return {step: path for step, path in self.folders(WEIGHTS).items() if is_complete(path)}

    def checkpoint_steps(self) -> list[int]:
        return [step for step, path in self.folders(CHECKPOINTS).items() if is_complete(path)]

    def folders(self, kind: str) -> dict[int, Path]:
        return {step: path for step, path in steps_in(self.path / kind).items() if path.is_dir()}

    def stamp(self) -> tuple[Any, ...]:
        """Return a value that changes if any file changes that a summary reads."""
        return tuple(stamp(self.path / name) for name in (INFO, CONFIG, METRICS, TIMINGS, EVENTS, METADATA))


class Rewound(Exception):
    """Raised if a log lost lines because a resume rolled the run back. Earlier reads are then no longer valid."""


class Tail:
    """Reads the new records of a growing JSON-lines file. An incomplete line is read once it is complete."""

    def __init__(self, path: Path):
        self.path = path
        self._inode = 0  # a roll-back puts another file in its place
        self._bytes = self._lines = 0

    def new(self) -> list[dict[str, Any]]:
        """Return the new records. Raises Rewound if lines that were read are gone, and UserError for a damaged line."""
        if not self._inode and not self.path.exists():
            return []
        try:
            file = open_file(self.path)
        except FileNotFoundError:
            raise Rewound from None
        with file:
            status = os.fstat(file.fileno())
            if status.st_ino != (self._inode or status.st_ino) or status.st_size < self._bytes:
                raise Rewound
            file.seek(self._bytes)
            lines = split_lines(file.read())
        records = [read_record(self.path, self._lines + number, line) for number, line in enumerate(lines, 1)]
        self._inode = status.st_ino
        self._bytes += sum(map(len, lines))
        self._lines += len(lines)
        return records


class RunTail:
    """Reads new lines of a run's logs, from the beginning; `steps` and `events.new` raise the errors of `Tail.new`."""

    def __init__(self, folder: Path):
        self._metrics, self._timings, self.events = (Tail(folder / name) for name in (METRICS, TIMINGS, EVENTS))
        self._waiting: deque[dict[str, Any]] = deque()
        self._seconds: dict[int, dict[str, Any]] = {}

    def steps(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Return (metrics, timings) of the new steps. A step counts once it has a line in both logs."""
        self._waiting += self._metrics.new()
        self._seconds |= {record["step"]: record for record in self._timings.new()}
        found = []
        while self._waiting and self._waiting[0]["step"] in self._seconds:
            line = self._waiting.popleft()
            found.append((line, self._seconds.pop(line["step"])))
        return found


def stamp(path: Path) -> tuple[int, int] | None:
    """Return the time of a file's last change in ns, and its bytes; None if there is no such file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size) if stat.S_ISREG(status.st_mode) else None


def steps_in(folder: Path, ending: str = "") -> dict[int, Path]:
    """Return the paths named `step_12` or `step_000012` with this ending, by step, ascending."""
    named = ((_STEP.fullmatch(path.name.split(".")[0]), path) for path in folder.glob(f"step_*{ending}"))
    found = {int(match[1]): path for match, path in named if match}
    return {step: found[step] for step in sorted(found)}


def rollouts_file(step: int) -> str:
    return f"{ROLLOUTS}/step_{step:06d}.parquet"


def tokens_file(step: int) -> str:
    return f"{TOKENS}/step_{step:06d}.parquet"


def evals_file(version: int) -> str:
    return f"{EVALS}/step_{version:06d}.jsonl"


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the records of a JSON-lines file, `[]` if there is none. Ignores a torn last line."""
    return [read_record(path, number, line) for number, line in enumerate(whole_lines(path), 1)]


def read_record(path: Path, number: int, line: bytes) -> dict[str, Any]:
    """Return the record in a line of a log. Raises UserError unless the line is a JSON object with an integer step. In
    metrics.jsonl and timings.jsonl all values must be numbers or null; in other logs, the step may be missing.
    """
    numbers = path.name in (METRICS, TIMINGS)
    try:
        record = json.loads(line) if numbers else parse_json(line)
        step = record.get("step", None if numbers else 0) if isinstance(record, dict) else ""
        if not (type(step) is int and 0 <= step < 2**53) and (numbers or step is not None):
            raise ValueError("not a record of a step")
        if numbers and (wrong := [name for name, value in record.items() if not is_number(value)]):
            raise ValueError(f"{wrong[0][:60]!r} is not a finite number")
        if numbers and b"/exact" in line:
            record = {current_name(name): value for name, value in record.items()}
        if path.name == EVENTS:
            if wrong := [name for name in ("kind", "name", "evidence") if not isinstance(record.get(name, ""), str)]:
                raise ValueError(f"its {wrong[0]} is not text")
            parse_time(record.get("time"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}, line {number}, is damaged ({error}): fix or delete that line") from None
    return record


def current_name(metric: str) -> str:
    """Return the current name of a metric: `eval/ENV/exact` of hone 0.1 is now `eval/ENV/correct`."""
    return re.sub(r"^(eval/[^/]+)/exact(?=$|/ci95/)", r"\1/correct", metric)


def read_toml(path: Path) -> dict[str, Any]:
    """Return a config.toml as a nested dict, without retired keys. Raises UserError if it is damaged."""
    data = read_file(path)
    try:
        table = tomllib.loads(data.decode())
        check_plain(table, finite=False)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}): {RESTORE}") from None
    return without_retired(table)


def _record(optional: dict[str, Any], **needed: Any) -> Any:
    fields: dict[str, Any] = {name: (kind, ...) for name, kind in needed.items()}
    fields |= {name: (kind, None) for name, kind in optional.items()}
    return create_model("Record", __config__=ConfigDict(strict=True, extra="ignore"), **fields)


_Time: Any = Annotated[str, AfterValidator(parse_time)]
_Step: Any = Annotated[int, Field(ge=0)]
_Ranks: Any = Annotated[int, Field(ge=1)]
_FACTS = _record(
    {
        "status": str,
        "failure": str,
        "stopped_by": str,
        "profile": str,
        "target": _record({}, metric=str, value=float, target=str, step=_Step),
        "exact": bool,
        "inexact": list[_record({}, step=_Step, cause=str)],
        "drift": list[_record({}, step=_Step)],
        "resumes": list[_record({"ranks": _Ranks}, step=_Step, time=_Time)],
        "parent": _record({}, id=str, dir=str, step=int),
        "seed": int,
        "ranks": _Ranks,
        "threads": int | None,
        "pool": int | None,
        "seconds": float | None,
        "usd": float | None,
        "started": _Time | None,
        "ended": _Time | None,
        "command": list[str],
        "git": _record({}, revision=str, dirty=bool) | None,
        "hardware": _record({"cpu": str, "cores": int, "memory_gib": float, "gpu": list[str] | None}),
        "versions": dict[str, str | None],
        "variables": dict[str, str],
        "sources": dict[str, str],
        "reward_weights": dict[str, float] | None,
        **dict.fromkeys(gathered("RECORDS", {}), dict[str, Any]),
    },
    id=str,
    kind=Literal["rl", "sft", "eval"],
)
"""Types of the keys of run.json that readers use. Older runs lack some keys."""


def run_info(folder: Path) -> dict[str, Any] | None:
    """Return the run.json of a run; None if `folder` is no run of hone, or if its run.json is damaged."""
    try:
        return existing_run(folder)
    except (OSError, UserError):
        return None


def existing_run(folder: Path, remedy: str = RESTORE) -> dict[str, Any] | None:
    """Return the run.json of a run; None if `folder` is no run of hone.

    Raises UserError with `remedy` if run.json is damaged.
    """
    path = folder / INFO
    if not os.path.lexists(path):
        return None
    info = read_json(path, remedy)
    if info.get("format") != FORMAT:
        return None
    try:
        _FACTS.model_validate(info)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))[:80]
        raise UserError(f"{path} is damaged ({place}: {first['msg']}): {remedy}") from None
    return info
