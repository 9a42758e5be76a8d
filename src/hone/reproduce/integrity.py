"""Compare the files of a run with the hashes that were taken when they were made.

checkpoints/, weights/             every byte against their completion markers, and their weights against hashes.jsonl
rollouts/, evals/, metrics.jsonl   against hashes.jsonl
hashes.jsonl, metrics.jsonl        against what each checkpoint says they were then, and for the order of their steps
the ledger of checkpoints          against the rollouts: all draws of the steps before it, and no other

timings.jsonl, events.jsonl and logs/ come from clocks and are not covered, nor is tokens/, which follows from the rest;
run.json and config.toml are where re-executing steps starts, and only the certificate has their hashes, but for the
predictions in run.json. Executing a step again exposes forged hashes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hone.errors import UserError
from hone.runs import predictions, shards
from hone.runs.draws import MEASURED, drawn
from hone.runs.files import parse_json, sha256, verify, whole_lines
from hone.runs.reader import Run
from hone.runs.rollouts import evals_file, rollouts_file, step_of

if TYPE_CHECKING:
    import torch

Tensors = dict[str, "torch.Tensor"]
Progress = Callable[[str], None]
CLOSED = frozenset({"done", "stopped", "budget"})
"""Statuses of runs that ended as they should: all their files have hashes."""


@dataclass(frozen=True)
class Damage:
    """A file of the run, relative to it, that does not match its hash or the rest of the run, and the evidence."""

    file: str
    problem: str

    def __str__(self) -> str:
        return f"{self.file}: {self.problem}"


@dataclass
class Checked:
    """How many of each kind of file were checked, and what was wrong.

    A run that was killed may have written a step, but not yet its hashes:
    `open_steps` have metrics or files, `open_weights` are the fingerprints of `checkpoints/step_N` and `weights/step_N`
    by version and folder. Only executing their steps again can tell if they were changed.
    """

    counts: dict[str, int] = field(default_factory=dict)
    damages: list[Damage] = field(default_factory=list)
    open_steps: set[int] = field(default_factory=set)
    open_weights: dict[int, dict[str, str]] = field(default_factory=dict)

    def add(self, file: str, problem: str) -> None:
        self.damages.append(Damage(file, problem))

    def is_damaged(self, file: str) -> bool:
        """Return True if this file, or one in this folder, is damaged."""
        return any(damage.file == file or damage.file.startswith(f"{file}/") for damage in self.damages)


@dataclass(frozen=True)
class Logs:
    """The lines of hashes.jsonl and metrics.jsonl by step, with the SHA-256 of each line of metrics."""

    hashes: dict[int, dict[str, Any]]
    metrics: dict[int, dict[str, Any]]
    digests: dict[int, str]

    @property
    def last(self) -> int:
        """The last step that has a hash; -1 if none has."""
        return max(self.hashes, default=-1)


def check(
    run: Run, fingerprint: Callable[[Tensors], str], parameters: Callable[[Path], Tensors], progress: Progress
) -> Checked:
    """Read every byte that has a hash. `parameters` gives an exported model's parameters by name."""
    checked = Checked()
    progress("checking the hashes of metrics and rollouts")
    logs = _read_logs(run, checked)
    _check_span(run, logs, checked)
    _check_steps(run, logs, checked)
    if problem := predictions.problem(run.info, run.path):
        checked.add("run.json", problem)
    _check_folders(run, "checkpoints", logs, lambda folder: fingerprint(_model_tensors(folder)), checked, progress)
    _check_folders(run, "weights", logs, lambda folder: fingerprint(parameters(folder)), checked, progress)
    _check_states(run, checked)
    return checked


def _read_logs(run: Run, checked: Checked) -> Logs:
    hashes = _read_log(run.path / "hashes.jsonl", checked)
    metrics = _read_log(run.path / "metrics.jsonl", checked)
    for file, records in (("hashes.jsonl", hashes), ("metrics.jsonl", metrics)):
        for step, following in pairwise(record["step"] for record, _ in records):
            if following <= step or (file == "hashes.jsonl" and following != step + 1):
                checked.add(file, f"step {step} is followed by step {following}")
    return Logs(
        {record["step"]: record for record, _ in hashes},
        {record["step"]: record for record, _ in metrics},
        {record["step"]: digest for record, digest in metrics},
    )


def _read_log(path: Path, checked: Checked) -> list[tuple[dict[str, Any], str]]:
    """Read (record, SHA-256 of its line) of each whole line; a line that is no record of a step is damage."""
    records = []
    for number, line in enumerate(whole_lines(path), 1):
        try:
            record = parse_json(line)
        except ValueError:
            record = None
        if isinstance(record, dict) and isinstance(record.get("step"), int):
            records.append((record, hashlib.sha256(line).hexdigest()))
        else:
            checked.add(path.name, f"line {number} is not the record of a step")
    return records


def _check_span(run: Run, logs: Logs, checked: Checked) -> None:
    """Check that hashes.jsonl goes from the first step to the last."""
    first, end = min(logs.hashes, default=None), run.config.get("max_steps")
    if first is not None and first not in (0, (run.info.get("parent") or {}).get("step")):
        checked.add("hashes.jsonl", f"begins with step {first} instead of step 0")
    wrote = logs.metrics or run.rollout_steps() or _folders(run, "checkpoints") or _folders(run, "weights")
    if not (run.path / "hashes.jsonl").exists() and wrote:
        checked.add("hashes.jsonl", "is missing")
    elif run.info["status"] == "done" and logs.last != end:
        last = f"ends with step {logs.last}" if logs.hashes else "is empty"
        checked.add("hashes.jsonl", f"{last}, but the run is done, after {end} steps")


def _check_steps(run: Run, logs: Logs, checked: Checked) -> None:
    """Compare each step's line of metrics, rollouts and evaluation with their hashes.

    A step whose metrics have an update has its rollouts, for they are written first. A missing hash is damage too,
    except for the last step of a process that died before it took the hashes.
    """
    rollouts, evals = set(run.rollout_steps()), set(run.evals())
    updated = {step for step, line in logs.metrics.items() if "lr" in line}
    kinds: tuple[tuple[str, str, set[int], Callable[[int], str], set[int]], ...] = (
        ("metrics", "lines of metrics", set(logs.digests), lambda step: "metrics.jsonl", set()),
        ("rollouts", "files of rollouts", rollouts, rollouts_file, updated if run.info["kind"] == "rl" else set()),
        ("evals", "files of evaluations", evals, evals_file, set()),
    )
    for kind, counted, written, file_of, needed in kinds:
        checked.counts[counted] = len(written & logs.hashes.keys())
        the = "the line of step {} " if kind == "metrics" else ""
        for step in sorted(written | logs.hashes.keys() | needed):
            expected, name = logs.hashes.get(step, {}).get(kind), file_of(step)
            if step not in written:
                if expected is not None or step in needed:
                    checked.add(name, the.format(step) + "is missing")
            elif step not in logs.hashes:
                if run.info["status"] not in CLOSED and step == logs.last + 1:
                    checked.open_steps.add(step)
                elif not checked.is_damaged("hashes.jsonl"):
                    checked.add(name, the.format(step) + "has no hash in hashes.jsonl")
            elif expected is None:
                checked.add(name, the.format(step) + "is not of the run (hashes.jsonl has none of this step)")
            elif expected != (logs.digests[step] if kind == "metrics" else sha256(run.path / name)):
                checked.add(name, the.format(step) + "has changed since it was written (SHA-256 differs)")
    for step in sorted(logs.hashes.keys() & logs.metrics.keys() - updated - {logs.last}):
        if not checked.is_damaged("metrics.jsonl"):
            problem = f"the line of step {step} has no update, though the run went on after it"
            checked.add("metrics.jsonl", problem)


def _folders(run: Run, kind: str) -> dict[int, Path]:
    found = {step_of(path): path for path in (run.path / kind).glob("step_*") if path.is_dir()}
    return {step: found[step] for step in sorted(step for step in found if step is not None)}


def _check_folders(
    run: Run, kind: str, logs: Logs, fingerprint_of: Callable[[Path], str], checked: Checked, progress: Progress
) -> None:
    """Check every byte of `<kind>/step_N`, and that the weights there are those that hashes.jsonl knows."""
    from safetensors import SafetensorError

    folders = _folders(run, kind)
    initial = {0: run.info.get("sources", {}).get("model")}
    for step, folder in folders.items():
        progress(f"checking {kind}/step_{step}")
        name = f"{kind}/{folder.name}"
        weights = f"{name}/{shards.FOLDER if shards.is_sharded(folder) else 'model.safetensors'}"
        if problems := verify(folder):
            for problem in problems:
                inside, _, what = problem.partition(" ")
                checked.add(name if inside == folder.name else f"{name}/{inside}", what)
            continue
        expected = logs.hashes.get(step, {}).get("weights") or initial.get(step)
        try:
            actual = fingerprint_of(folder)
        except (OSError, UserError, SafetensorError):
            checked.add(weights, "holds no weights of this run's model, though it fits its COMPLETE")
            continue
        if expected is None and step > logs.last + 1 and not checked.is_damaged("hashes.jsonl"):
            checked.add(name, f"hashes.jsonl has no version {step}: it ends with {logs.last}")
        elif expected is None:
            checked.open_weights.setdefault(step, {})[name] = actual
        elif actual != expected:
            problem = f"its weights have the fingerprint {actual}; hashes.jsonl says {expected} for version {step}"
            checked.add(weights, problem)
    checked.counts[kind] = len(folders)


def _model_tensors(folder: Path) -> Tensors:
    from safetensors.torch import load_file

    if not shards.is_sharded(folder):
        return load_file(folder / "model.safetensors")
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        return shards.load(folder, only="model")["model"]
    except (Exception, CheckpointException) as error:  # its index fits the marker, but may be anything
        raise UserError(f"{folder / shards.FOLDER} can't be read ({error})") from error


def _check_states(run: Run, checked: Checked) -> None:
    """Check what each intact checkpoint remembers of the logs and of the draws."""
    ledgers: dict[int, Any] = {}
    logs = {name: run.path / name for name in ("metrics.jsonl", "hashes.jsonl")}
    contents = {name: path.read_bytes() if path.is_file() else b"" for name, path in logs.items()}
    for step, folder in _folders(run, "checkpoints").items():
        name = f"checkpoints/{folder.name}"
        if checked.is_damaged(name):
            continue
        try:
            state = json.loads((folder / "state.json").read_text())
            then = {log: (entry["bytes"], entry["sha256"]) for log, entry in state.get("logs", {}).items()}
            changed = [log for log, (n, was) in then.items() if hashlib.sha256(contents[log][:n]).hexdigest() != was]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            checked.add(f"{name}/state.json", "is not the state of a run, though it fits COMPLETE")
            continue
        for log in changed:
            if not checked.is_damaged(log):
                checked.add(log, f"its first {then[log][0]} bytes are not what checkpoint step_{step} says")
        if state.get("step", step) != step:
            checked.add(name, f"holds version {state['step']}")
        elif run.info["kind"] == "rl":
            ledgers[step] = state.get("ledger")
    if not ledgers:
        return
    recorded: list[dict[str, Any]] = []
    read = [s for s in run.rollout_steps() if s < max(ledgers) and not checked.is_damaged(rollouts_file(s))]
    for step in read:
        try:
            recorded += drawn(run, step)
        except (UserError, KeyError, TypeError):
            checked.add(rollouts_file(step), "is not a file of rollouts that can be read")
            return
    for step, ledger in ledgers.items():
        if problem := _ledger_problem(ledger, [entry for entry in recorded if entry["step"] < step], set(read)):
            checked.add(f"checkpoints/step_{step}/state.json", problem)


def _ledger_problem(ledger: Any, recorded: list[dict[str, Any]], read: set[int]) -> str:
    """Say why this is not the ledger of the recorded draws; "" if it is, as far as rollouts were read."""
    if not isinstance(ledger, list) or not all(isinstance(entry, dict) and "draw" in entry for entry in ledger):
        return "it has no ledger of draws"
    if [entry["draw"] for entry in ledger] != list(range(len(ledger))):
        return "the draws in its ledger are not in order, each once"
    expected, seen = {entry["draw"]: entry for entry in recorded}, set()
    for draw, entry in enumerate(ledger):
        came_before, made = entry.get("example_id") in seen, expected.get(draw)
        seen.add(entry.get("example_id"))
        if made is not None:
            made = {name: value for name, value in made.items() if name not in MEASURED or name in entry}
        elif entry.get("state") == "retired" and entry.get("tokens") == 0 and not entry.keys() & set(MEASURED):
            # passed over by a curriculum: drawn before, and a draw of the same step follows
            following = ledger[draw + 1].get("step") if draw + 1 < len(ledger) else None
            made = entry if came_before and following == entry.get("step") else None
        if entry.get("step") in read and made != entry:
            return f"draw {draw} is in its ledger as {entry}, in the rollouts as {made}"
    missing = min((draw for draw in expected if draw >= len(ledger)), default=None)
    return "" if missing is None else f"draw {missing} is in the rollouts as {expected[missing]}, and not in its ledger"
