"""Does a run fit its hashes? Every file against those that were taken when it was made.

checkpoints/, weights/             every byte against their completion markers, and their weights against hashes.jsonl
rollouts/, evals/, metrics.jsonl   against hashes.jsonl
hashes.jsonl, metrics.jsonl        against what each checkpoint says they were then, and for the order of their steps
the ledger of checkpoints          against the rollouts

timings.jsonl, events.jsonl and logs/ come from clocks and are not covered, nor is tokens/, which follows from the rest;
run.json and config.toml are what re-executing steps starts from, and only the certificate has their hashes, but for the
predictions in run.json.
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
from hone.reproduce.ledgers import check_ledgers
from hone.runs import predictions, shards
from hone.runs.checked import parse_json
from hone.runs.checkpoint import step_of
from hone.runs.evaluations import evals_file
from hone.runs.files import sha256, verify, whole_lines
from hone.runs.reader import Run
from hone.runs.rollouts import rollouts_file

if TYPE_CHECKING:
    import torch

Tensors = dict[str, "torch.Tensor"]
Say = Callable[[str], None]
Look = Callable[[Path, str], str]
"""What is wrong with a file, in words, given the SHA-256 that it had; empty if nothing is."""
LOGS = ("metrics.jsonl", "hashes.jsonl")
"""Logs of which each checkpoint has the size and hash that they had then."""
CLOSED = frozenset({"done", "stopped", "budget"})
"""Statuses of runs that ended as they should: whatever such a run wrote has its hash."""


@dataclass(frozen=True)
class Damage:
    """A file of the run, relative to it, that does not fit its hash or the rest of the run, and how that shows."""

    file: str
    problem: str

    def __str__(self) -> str:
        return f"{self.file}: {self.problem}"


@dataclass
class Checked:
    """How many of each kind of file were checked, and what was wrong.

    `hashed`: the whole run has hashes. What a run that was killed had written, but not yet the hash of: `open_steps`,
    of which there are metrics or files, and `open_weights`, the fingerprints of `checkpoints/step_N` or
    `weights/step_N` by version and folder. Only executing their steps again can tell whether they were changed.
    """

    counts: dict[str, int] = field(default_factory=dict)
    damages: list[Damage] = field(default_factory=list)
    hashed: bool = True
    open_steps: set[int] = field(default_factory=set)
    open_weights: dict[int, dict[str, str]] = field(default_factory=dict)

    def add(self, file: str, problem: str) -> None:
        self.damages.append(Damage(file, problem))

    def is_spoilt(self, file: str) -> bool:
        """True if this file, or one in this folder, is damaged."""
        return any(damage.file == file or damage.file.startswith(f"{file}/") for damage in self.damages)


@dataclass(frozen=True)
class Logs:
    """The lines of hashes.jsonl and metrics.jsonl by step, with the SHA-256 of each line of metrics."""

    hashes: dict[int, dict[str, Any]]
    metrics: dict[int, dict[str, Any]]
    digests: dict[int, str]

    @property
    def first(self) -> int:
        return min(self.hashes)

    @property
    def last(self) -> int:
        """The last step that has a hash; -1 if none has."""
        return max(self.hashes, default=-1)


def check(run: Run, fingerprint: Callable[[Tensors], str], parameters: Callable[[Path], Tensors], say: Say) -> Checked:
    """Reads every byte that a hash was taken of. `parameters` gives those of an exported model, by name."""
    checked = Checked()
    say("checking the hashes of metrics and rollouts")
    logs = check_records(run, checked)
    if problem := predictions.problem(run.info, run.path):
        checked.add("run.json", problem)
    _check_folders(run, "checkpoints", logs, lambda folder: fingerprint(_model_tensors(folder)), checked, say)
    _check_folders(run, "weights", logs, lambda folder: fingerprint(parameters(folder)), checked, say)
    _check_pairs(checked)
    _check_states(run, checked, say)
    return checked


def has_changed(file: Path, expected: str) -> str:
    """What is wrong with a file whose SHA-256 is known; empty if nothing is."""
    same = sha256(file) == expected
    return "" if same else "has changed since it was written (SHA-256 differs from hashes.jsonl)"


def check_records(run: Run, checked: Checked, look: Look = has_changed) -> Logs:
    """The logs, and `look` at each file of rollouts or of an evaluation that has a hash."""
    logs = _read_logs(run, checked)
    _check_span(run, logs, checked)
    if logs.hashes:
        _check_metrics(logs, checked)
    _check_rollouts(run, logs, checked, look)
    _check_evaluations(run, logs, checked, look)
    if checked.hashed:
        _check_covered(run, logs, checked)
    return logs


def _read_logs(run: Run, checked: Checked) -> Logs:
    hashes = [record for record, _ in _read_log(run.path / "hashes.jsonl", checked)]
    for step, following in pairwise(record["step"] for record in hashes):
        if following != step + 1:
            checked.add("hashes.jsonl", f"step {step} is followed by step {following}")
    metrics = _read_log(run.path / "metrics.jsonl", checked)
    digests = {record["step"]: digest for record, digest in metrics}
    for step, following in pairwise(record["step"] for record, _ in metrics):
        if following <= step:
            checked.add("metrics.jsonl", f"step {step} is followed by step {following}")
    by_step = {record["step"]: record for record, _ in metrics}
    return Logs({record["step"]: record for record in hashes}, by_step, digests)


def _read_log(path: Path, checked: Checked) -> list[tuple[dict[str, Any], str]]:
    """(record, SHA-256 of its line) of each whole line; a line that is no record of a step is damage."""
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
    """Whether hashes.jsonl goes from the first step to the last. Of old runs it has only what a resume added."""
    info = run.info
    has_hashes = "sources" in info  # both came with the same version of hone
    if logs.hashes:
        checked.hashed = logs.first in (0, (info.get("parent") or {}).get("step"))
        if has_hashes and not checked.hashed:
            checked.add("hashes.jsonl", f"begins with step {logs.first} instead of step 0")
    else:
        checked.hashed = has_hashes
        if has_hashes and not (run.path / "hashes.jsonl").exists() and _has_recorded(run, logs):
            checked.hashed = False
            checked.add("hashes.jsonl", "is missing")
    end = run.config.get("max_steps")
    if info["status"] == "done" and checked.hashed and logs.last != end:
        last = f"ends with step {logs.last}" if logs.hashes else "is empty"
        checked.add("hashes.jsonl", f"{last}, but the run is done, after {end} steps")


def _has_recorded(run: Run, logs: Logs) -> bool:
    return bool(logs.metrics or run.rollout_steps() or _folders(run, "checkpoints") or _folders(run, "weights"))


def _check_metrics(logs: Logs, checked: Checked) -> None:
    for step, line in logs.hashes.items():
        if (expected := line.get("metrics")) != logs.digests.get(step):
            problem = "is missing" if step not in logs.digests else "was added" if expected is None else "has changed"
            checked.add("metrics.jsonl", f"the line of step {step} {problem} (SHA-256 differs from hashes.jsonl)")
        elif step < logs.last and "lr" not in logs.metrics.get(step, {}):
            checked.add("metrics.jsonl", f"the line of step {step} tells of no update, though the run went on after it")
    checked.counts["lines of metrics"] = len(logs.digests.keys() & logs.hashes.keys())


def _check_rollouts(run: Run, logs: Logs, checked: Checked, look: Look) -> None:
    """A step whose metrics are there has its rollouts, for they are written first."""
    found = {step: rollouts_file(step) for step in run.rollout_steps()}
    taken = {step for step, line in logs.metrics.items() if "lr" in line} if run.info["kind"] == "rl" else set()
    for step in sorted(logs.hashes.keys() | taken):
        name, expected = rollouts_file(step), logs.hashes.get(step, {}).get("rollouts")
        if step not in found:
            if expected is not None or step in taken:
                checked.add(name, "is missing")
        elif step in logs.hashes and expected is None:
            checked.add(name, "the run made no rollouts at this step (hashes.jsonl has none)")
        elif expected is not None and (problem := look(run.path / name, expected)):
            checked.add(name, problem)
    checked.counts["files of rollouts"] = len(found.keys() & logs.hashes.keys())


def _check_evaluations(run: Run, logs: Logs, checked: Checked, look: Look) -> None:
    found = set(run.evals())
    for step, line in sorted(logs.hashes.items()):
        name, expected = evals_file(step), line.get("evals")
        if expected is not None and step not in found:
            checked.add(name, "is missing")
        elif expected is None and step in found:
            checked.add(name, "the run made no evaluation of this version (hashes.jsonl has none)")
        elif expected is not None and (problem := look(run.path / name, expected)):
            checked.add(name, problem)
    checked.counts["files of evaluations"] = len(found & logs.hashes.keys())


def _check_covered(run: Run, logs: Logs, checked: Checked) -> None:
    """What has no hash is damage, but for a last step that a process which died had not got to."""
    closed = run.info["status"] in CLOSED
    for file, what, steps in (
        ("metrics.jsonl", "the line of step {}", set(logs.metrics)),
        ("rollouts", "step {}", set(run.rollout_steps())),
        ("evals", "version {}", set(run.evals())),
    ):
        for step in sorted(steps - logs.hashes.keys()):
            if closed or step != logs.last + 1:
                checked.add(file, f"{what.format(step)} has no hash in hashes.jsonl")
            else:
                checked.open_steps.add(step)


def _folders(run: Run, kind: str) -> dict[int, Path]:
    found = {step_of(path): path for path in (run.path / kind).glob("step_*") if path.is_dir()}
    return {step: found[step] for step in sorted(step for step in found if step is not None)}


def _check_folders(
    run: Run, kind: str, logs: Logs, fingerprint_of: Callable[[Path], str], checked: Checked, say: Say
) -> None:
    """Every byte of `<kind>/step_N`, and whether the weights there are those that hashes.jsonl knows."""
    folders = _folders(run, kind)
    initial = {0: run.info.get("sources", {}).get("model")}
    for step, folder in folders.items():
        say(f"checking {kind}/step_{step}")
        name = f"{kind}/{folder.name}"
        weights = f"{name}/{shards.FOLDER if shards.is_sharded(folder) else 'model.safetensors'}"
        if problems := verify(folder):
            for problem in problems:
                inside, _, what = problem.partition(" ")
                checked.add(name if inside == folder.name else f"{name}/{inside}", what)
            continue
        expected = logs.hashes.get(step, {}).get("weights") or initial.get(step)
        actual = _fingerprint(folder, fingerprint_of)
        if actual is None:
            checked.add(weights, "holds no weights of this run's model, though it fits its COMPLETE")
        elif expected is None and checked.hashed and step > logs.last + 1:
            checked.add(name, f"hashes.jsonl has no version {step}: it ends with {logs.last}")
        elif expected is None:
            checked.open_weights.setdefault(step, {})[name] = actual
        elif actual != expected:
            problem = f"its weights have the fingerprint {actual}; hashes.jsonl says {expected} for version {step}"
            checked.add(weights, problem)
    checked.counts[kind] = len(folders)


def _fingerprint(folder: Path, fingerprint_of: Callable[[Path], str]) -> str | None:
    """That of the weights in a folder; None if there are none that could be this run's."""
    from safetensors import SafetensorError

    try:
        return fingerprint_of(folder)
    except (OSError, UserError, SafetensorError):
        return None


def _check_pairs(checked: Checked) -> None:
    """A checkpoint and the weights beside it are of one version, whether hashes.jsonl knows it or not."""
    for step, found in checked.open_weights.items():
        if len(set(found.values())) > 1:
            checkpoint, weights = found.values()
            checked.add(
                f"weights/step_{step}/model.safetensors",
                f"its weights have the fingerprint {weights}, those of checkpoints/step_{step} {checkpoint}, and "
                "hashes.jsonl has neither: one of the two was changed, and its COMPLETE with it",
            )


def _model_tensors(folder: Path) -> Tensors:
    from safetensors.torch import load_file

    if not shards.is_sharded(folder):
        return load_file(folder / "model.safetensors")
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        return shards.load(folder, only="model")["model"]
    except (Exception, CheckpointException) as error:  # its index fits the marker, but may be anything
        raise UserError(f"{folder / shards.FOLDER} can't be read ({error})") from error


def _check_states(run: Run, checked: Checked, say: Say) -> None:
    """What each intact checkpoint remembers of the logs and of the draws."""
    logs = {path.name: path.read_bytes() if path.is_file() else b"" for path in map(run.path.joinpath, LOGS)}
    ledgers = {}
    for step, folder in _folders(run, "checkpoints").items():
        if checked.is_spoilt(f"checkpoints/{folder.name}"):
            continue
        try:
            state = json.loads((folder / "state.json").read_text())
            then = {name: (log["bytes"], log["sha256"]) for name, log in state.get("logs", {}).items()}
            changed = [name for name, (n, was) in then.items() if hashlib.sha256(logs[name][:n]).hexdigest() != was]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            checked.add(f"checkpoints/{folder.name}/state.json", "is not the state of a run, though it fits COMPLETE")
            continue
        for name in changed:
            if not checked.is_spoilt(name):
                checked.add(name, f"its first {then[name][0]} bytes are not what checkpoint step_{step} says")
        if state.get("step", step) != step:
            checked.add(f"checkpoints/{folder.name}", f"holds version {state['step']}")
        elif run.info["kind"] == "rl":
            ledgers[step] = state.get("ledger")
    if ledgers:
        say("checking the ledger against the rollouts")
        spoilt = {step for step in range(max(ledgers)) if checked.is_spoilt(rollouts_file(step))}
        for file, problem in check_ledgers(run, ledgers, spoilt):
            checked.add(file, problem)
