"""Compare the files of a run with their recorded hashes.

checkpoints/, weights/             every byte against the completion markers, and the weights against hashes.jsonl
rollouts/, evals/, metrics.jsonl   against hashes.jsonl
hashes.jsonl, metrics.jsonl        against the hashes in each checkpoint, and the order of their steps
the ledgers in checkpoints         against the rollouts: they have exactly the draws of all earlier steps

timings.jsonl, events.jsonl and logs/ depend on clocks, and tokens/ follows from the other files: they are not covered.
The hashes of config.toml, and of run.json without tables of extensions, are only in the certificate. Executing a
step again exposes forged hashes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hone.config.shared import StopConfig
from hone.errors import UserError
from hone.extension import gathered
from hone.runs import shards, view
from hone.runs.draws import MEASURED, drawn
from hone.runs.files import parse_json, sha256, verify, whole_lines
from hone.runs.reader import Run

if TYPE_CHECKING:
    import torch

Tensors = dict[str, "torch.Tensor"]
Progress = Callable[[str], None]
CLOSED = frozenset({"done", "stopped", "budget"})
"""Statuses of runs that ended properly, so that all their files have hashes."""


@dataclass(frozen=True)
class Damage:
    """A file (its path in the run) that does not match its hash or other files, and the evidence."""

    file: str
    problem: str

    def __str__(self) -> str:
        return f"{self.file}: {self.problem}"


@dataclass
class Checked:
    """Numbers of checked files by kind, and the damages.

    A killed run may have written steps and weights without their hashes. `open_steps` has such steps. `open_weights`
    has, for each such version, fingerprints by path, such as `weights/step_2/model.safetensors`.
    """

    counts: dict[str, int] = field(default_factory=dict)
    damages: list[Damage] = field(default_factory=list)
    open_steps: set[int] = field(default_factory=set)
    open_weights: dict[int, dict[str, str]] = field(default_factory=dict)

    def add(self, file: str, problem: str) -> None:
        self.damages.append(Damage(file, problem))

    def is_damaged(self, file: str) -> bool:
        return any(damage.file == file or damage.file.startswith(f"{file}/") for damage in self.damages)


Log = dict[int, tuple[dict[str, Any], str]]
"""The lines of a log by step, each with its SHA-256."""


def check(
    run: Run, fingerprint: Callable[[Tensors], str], parameters: Callable[[Path], Tensors], progress: Progress
) -> Checked:
    """Check all files and tensors that have a hash. `parameters` loads an exported model's parameters by name."""
    checked = Checked()
    progress("checking the hashes of metrics and rollouts")
    lines = _read_log(run.path / view.HASHES, checked)
    hashes = {step: record for step, (record, _) in lines.items()}
    metrics = _read_log(run.path / view.METRICS, checked)
    folders = {kind: run.folders(kind) for kind in view.OF_VERSIONS}
    first, last, end = min(hashes, default=0), max(hashes, default=-1), run.config.get("max_steps")
    if first not in (0, (run.info.get("parent") or {}).get("step")):
        checked.add(view.HASHES, f"begins with step {first} instead of step 0")
    if not (run.path / view.HASHES).exists() and (metrics or run.rollout_steps() or any(folders.values())):
        checked.add(view.HASHES, "is missing")
    elif run.info["status"] == "done" and last != end and not _at_target(run, metrics, last):
        how = f"ends with step {last}" if hashes else "is empty"
        checked.add(view.HASHES, f"{how}, but the run is done, after {end} steps")
    _check_steps(run, hashes, metrics, checked)
    for record in gathered("RECORDS", {}).values():
        if problem := record.problem(run.info, run.path):
            checked.add(view.INFO, problem)
    sources = run.info.get("sources", {})
    loaders = {view.CHECKPOINTS: _model_tensors, view.WEIGHTS: parameters}
    for kind, found in folders.items():
        checked.counts[kind] = len(found)
        for version, folder in found.items():
            progress(f"checking {kind}/step_{version}")
            expected = hashes.get(version, {}).get("weights")
            expected = expected or (None if version else sources.get("adapter", sources.get("model")))
            _check_folder(folder, version, expected, last, lambda at, k=kind: fingerprint(loaders[k](at)), checked)
    _check_states(run, folders[view.CHECKPOINTS], checked)
    return checked


def _read_log(path: Path, checked: Checked) -> Log:
    """Read a log's complete lines. A line that is no record of a step, or out of order, counts as damage."""
    lines: Log = {}
    before = None
    for number, line in enumerate(whole_lines(path), 1):
        try:
            record: Any = parse_json(line)
        except ValueError:
            record = None
        step = record.get("step") if isinstance(record, dict) else None
        if not isinstance(step, int):
            checked.add(path.name, f"line {number} is not the record of a step")
            continue
        if before is not None and (step <= before or (path.name == view.HASHES and step != before + 1)):
            checked.add(path.name, f"step {before} is followed by step {step}")
        lines[step], before = (record, hashlib.sha256(line).hexdigest()), step
    return lines


def _at_target(run: Run, metrics: Log, last: int) -> bool:
    """Return True if, by metrics and config, a run that ended at `last` had reached its target."""
    if not (target := run.info.get("target")) or not (stop := run.config.get("stop")) or target["step"] > last:
        return False
    value = metrics.get(target["step"], ({}, b""))[0].get(target["metric"])
    return value is not None and value == target["value"] and StopConfig.model_validate(stop).reached(value)


def _check_steps(run: Run, hashes: dict[int, dict[str, Any]], metrics: Log, checked: Checked) -> None:
    """Compare each step's line of metrics, rollouts and evaluation with their hashes.

    Rollouts are written before metrics. A missing hash is damage, except at the last step of a process that died.
    """
    last, updated = max(hashes, default=-1), {step for step, (line, _) in metrics.items() if "lr" in line}
    kinds: tuple[tuple[str, str, Iterable[int], Callable[[int], str]], ...] = (
        ("metrics", "lines of metrics", metrics, lambda step: view.METRICS),
        ("rollouts", "files of rollouts", run.rollout_steps(), view.rollouts_file),
        ("evals", "files of evaluations", run.evals(), view.evals_file),
    )
    for kind, counted, steps, file_of in kinds:
        written = set(steps)
        needed = updated if kind == "rollouts" and run.info["kind"] == "rl" else set()
        checked.counts[counted] = len(written & hashes.keys())
        for step in sorted(written | hashes.keys() | needed):
            expected, name = hashes.get(step, {}).get(kind), file_of(step)
            problem = ""
            if step not in written:
                problem = "is missing" if expected is not None or step in needed else ""
            elif step not in hashes:
                if run.info["status"] not in CLOSED and step == last + 1:
                    checked.open_steps.add(step)
                elif not checked.is_damaged(view.HASHES):
                    problem = "has no hash in hashes.jsonl"
            elif expected is None:
                problem = "does not belong to the run (hashes.jsonl has no hash of this step)"
            elif expected != (metrics[step][1] if kind == "metrics" else sha256(run.path / name)):
                problem = "has changed since it was written (SHA-256 differs)"
            if problem:
                checked.add(name, f"the line of step {step} {problem}" if kind == "metrics" else problem)
    for step in sorted(hashes.keys() & metrics.keys() - updated - {last}):
        if not checked.is_damaged(view.METRICS):
            problem = f"the line of step {step} has no update, though the run went on after it"
            checked.add(view.METRICS, problem)


def _check_folder(
    folder: Path,
    version: int,
    expected: str | None,
    last: int,
    fingerprint_of: Callable[[Path], str],
    checked: Checked,
) -> None:
    from safetensors import SafetensorError

    name = f"{folder.parent.name}/{folder.name}"
    weights = f"{name}/{shards.FOLDER if shards.is_sharded(folder) else 'model.safetensors'}"
    if problems := verify(folder):
        for problem in problems:
            inside, _, what = problem.partition(" ")
            checked.add(name if inside == folder.name else f"{name}/{inside}", what)
        return
    try:
        actual = fingerprint_of(folder)
    except (OSError, UserError, SafetensorError):
        checked.add(weights, "holds no weights of this run's model, though its hashes are right")
        return
    if expected is None and version > last + 1 and not checked.is_damaged(view.HASHES):
        checked.add(name, f"hashes.jsonl has no version {version}: it ends with {last}")
    elif expected is None:
        checked.open_weights.setdefault(version, {})[weights] = actual
    elif actual != expected:
        problem = f"its weights have the fingerprint {actual}; hashes.jsonl says {expected} for version {version}"
        checked.add(weights, problem)


def _model_tensors(folder: Path) -> Tensors:
    from safetensors.torch import load_file

    if not shards.is_sharded(folder):
        return load_file(folder / "model.safetensors")
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        return shards.load(folder, only="model")["model"]
    except (Exception, CheckpointException) as error:  # its index fits the marker, but may be anything
        raise UserError(f"{folder / shards.FOLDER} can't be read ({error})") from error


def _check_states(run: Run, folders: dict[int, Path], checked: Checked) -> None:
    """In each intact checkpoint, check the ledger of draws, and the hashes of logs."""
    ledgers: dict[int, Any] = {}
    for step, folder in folders.items():
        name = f"{view.CHECKPOINTS}/{folder.name}"
        if checked.is_damaged(name):
            continue
        try:
            state = json.loads((folder / "state.json").read_bytes())
            for log, then in state.get("logs", {}).items():
                path, size = run.path / Path(log).name, int(then["bytes"])
                content = path.read_bytes()[:size] if path.is_file() else b""
                if hashlib.sha256(content).hexdigest() != then["sha256"] and not checked.is_damaged(log):
                    checked.add(log, f"its first {size} bytes don't match the hash in checkpoint step_{step}")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            checked.add(f"{name}/state.json", "is not the state of a run, though its hash is right")
            continue
        if state.get("step", step) != step:
            checked.add(name, f"holds version {state['step']}")
        elif run.info["kind"] == "rl":
            ledgers[step] = state.get("ledger")
    read = [s for s in run.rollout_steps() if s < max(ledgers, default=0)]
    read = [step for step in read if not checked.is_damaged(view.rollouts_file(step))]
    recorded: list[dict[str, Any]] = []
    for step in read:
        try:
            recorded += drawn(run, step)
        except (UserError, KeyError, TypeError):
            checked.add(view.rollouts_file(step), "can't be read as rollouts")
            return
    for step, ledger in ledgers.items():
        if problem := _ledger_problem(ledger, [entry for entry in recorded if entry["step"] < step], set(read)):
            checked.add(f"checkpoints/step_{step}/state.json", problem)


def _ledger_problem(ledger: Any, recorded: list[dict[str, Any]], read: set[int]) -> str:
    """Say how a ledger differs from the recorded draws; "" if it does not, as far as rollouts were read."""
    if not isinstance(ledger, list) or not all(isinstance(entry, dict) for entry in ledger):
        return "it has no ledger of draws"
    if [entry.get("draw") for entry in ledger] != list(range(len(ledger))):
        return "its ledger has a draw twice, left out or out of order"
    expected, seen = {entry["draw"]: entry for entry in recorded}, set()
    for draw, entry in enumerate(ledger):
        made = expected.pop(draw, None)
        if made is not None:
            made = {name: value for name, value in made.items() if name not in MEASURED or name in entry}
        elif entry.get("state") == "retired" and entry.get("tokens") == 0 and not entry.keys() & set(MEASURED):
            # passed over by a curriculum: drawn before, and a draw of the same step follows
            following = ledger[draw + 1].get("step") if draw + 1 < len(ledger) else None
            made = entry if entry.get("example_id") in seen and following == entry.get("step") else None
        seen.add(entry.get("example_id"))
        if entry.get("step") in read and made != entry:
            return f"draw {draw} is in its ledger as {entry}, in the rollouts as {made}"
    return f"draw {min(expected)} is in the rollouts, but not in its ledger" if expected else ""
