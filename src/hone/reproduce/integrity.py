"""Is a run as it was written? Every file against the hashes that were taken when it was made.

checkpoints/, weights/     against their completion markers, and their weights against the fingerprints in hashes.jsonl
rollouts/, metrics.jsonl   against hashes.jsonl
hashes.jsonl               against what each checkpoint says it was then
the ledger of checkpoints  against the rollouts

timings.jsonl, events.jsonl and logs/ come from clocks and are not covered; run.json and config.toml are what
re-executing steps starts from.
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
from hone.runs.checkpoint import step_of
from hone.runs.files import sha256, verify
from hone.runs.reader import Run

if TYPE_CHECKING:
    import torch

Tensors = dict[str, "torch.Tensor"]
CLOSED = frozenset({"done", "stopped", "budget"})
"""Statuses of runs that ended as they should: whatever such a run wrote has its hash."""


@dataclass(frozen=True)
class Damage:
    """A file of the run, relative to it, that is not as it was written, and how that shows."""

    file: str
    problem: str

    def __str__(self) -> str:
        return f"{self.file}: {self.problem}"


@dataclass
class Checked:
    """How many of each kind of file were checked, and what was wrong. `hashed`: the run has a hashes.jsonl."""

    counts: dict[str, int] = field(default_factory=dict)
    damages: list[Damage] = field(default_factory=list)
    hashed: bool = True

    def add(self, file: str, problem: str) -> None:
        self.damages.append(Damage(file, problem))


def check(
    run: Run,
    fingerprint: Callable[[Tensors], str],
    parameters: Callable[[Path], Tensors],
    say: Callable[[str], None],
) -> Checked:
    """Reads every byte that a hash was taken of. `parameters` gives those of an exported model, by name."""
    checked = Checked()
    hash_lines = _read_log(run.path / "hashes.jsonl", checked)
    checked.hashed = bool(hash_lines)
    hashes = {line["step"]: line for line, _ in hash_lines}
    if hashes:
        _check_steps([line["step"] for line, _ in hash_lines], checked)
        say("checking the hashes of metrics and rollouts")
        closed = run.info["status"] in CLOSED
        _check_metrics(run, hashes, closed, checked)
        _check_rollouts(run, hashes, closed, checked)
    _check_folders(run, "checkpoints", hashes, lambda folder: fingerprint(_model_tensors(folder)), checked, say)
    _check_folders(run, "weights", hashes, lambda folder: fingerprint(parameters(folder)), checked, say)
    _check_states(run, checked, say)
    return checked


def _read_log(path: Path, checked: Checked) -> list[tuple[dict[str, Any], str]]:
    """(record, SHA-256 of its line) of each whole line; a line that is no record of a step is damage."""
    data = path.read_bytes() if path.exists() else b""
    records = []
    for number, line in enumerate(data[: data.rfind(b"\n") + 1].splitlines(keepends=True), 1):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if isinstance(record, dict) and isinstance(record.get("step"), int):
            records.append((record, hashlib.sha256(line).hexdigest()))
        else:
            checked.add(path.name, f"line {number} is not the record of a step")
    return records


def _check_steps(steps: list[int], checked: Checked) -> None:
    for step, following in pairwise(steps):
        if following != step + 1:
            checked.add("hashes.jsonl", f"step {step} is followed by step {following}")


def _check_metrics(run: Run, hashes: dict[int, dict[str, Any]], closed: bool, checked: Checked) -> None:
    lines = _read_log(run.path / "metrics.jsonl", checked)
    found = {record["step"]: digest for record, digest in lines}
    if len(found) < len(lines):
        checked.add("metrics.jsonl", "a step has two lines")
    for step, line in hashes.items():
        if (expected := line.get("metrics")) != found.get(step):
            problem = "is missing" if step not in found else "was added" if expected is None else "has changed"
            checked.add("metrics.jsonl", f"the line of step {step} {problem} (SHA-256 differs from hashes.jsonl)")
    checked.counts["lines of metrics"] = len(found.keys() & hashes.keys())
    _check_covered("metrics.jsonl", "the line of step {}", set(found), hashes, closed, checked)


def _check_rollouts(run: Run, hashes: dict[int, dict[str, Any]], closed: bool, checked: Checked) -> None:
    found = {step: _rollout_name(step) for step in run.rollout_steps()}
    for step, line in hashes.items():
        name, expected = _rollout_name(step), line.get("rollouts")
        if expected is None and step in found:
            checked.add(name, "the run made no rollouts at this step (hashes.jsonl has none)")
        elif expected is not None and step not in found:
            checked.add(name, "is missing")
        elif step in found and sha256(run.path / name) != expected:
            checked.add(name, "has changed since it was written (SHA-256 differs from hashes.jsonl)")
    checked.counts["files of rollouts"] = len(found.keys() & hashes.keys())
    _check_covered("rollouts", "step {}", set(found), hashes, closed, checked)


def _rollout_name(step: int) -> str:
    return f"rollouts/step_{step:06d}.parquet"


def _check_covered(
    file: str, what: str, steps: set[int], hashes: dict[int, dict[str, Any]], closed: bool, checked: Checked
) -> None:
    """What has no hash is damage, but for a last step that a process which died had not got to."""
    newest = max(hashes)
    for step in sorted(steps - hashes.keys()):
        if closed or step != newest + 1:
            checked.add(file, f"{what.format(step)} has no hash in hashes.jsonl")


def _folders(run: Run, kind: str) -> dict[int, Path]:
    found = {step_of(path): path for path in (run.path / kind).glob("step_*") if path.is_dir()}
    return {step: found[step] for step in sorted(step for step in found if step is not None)}


def _check_folders(
    run: Run,
    kind: str,
    hashes: dict[int, dict[str, Any]],
    fingerprint_of: Callable[[Path], str],
    checked: Checked,
    say: Callable[[str], None],
) -> None:
    """Every byte of `<kind>/step_N`, and whether the weights there are those that hashes.jsonl knows."""
    folders = _folders(run, kind)
    for step, folder in folders.items():
        say(f"checking {kind}/step_{step}")
        problems = verify(folder)
        for problem in problems:
            name, _, what = problem.partition(" ")
            inside = name != folder.name
            checked.add(f"{kind}/{folder.name}" + (f"/{name}" if inside else ""), what)
        expected = hashes.get(step, {}).get("weights")
        if not problems and expected and (actual := fingerprint_of(folder)) != expected:
            checked.add(
                f"{kind}/{folder.name}/model.safetensors",
                f"its weights have the fingerprint {actual}; hashes.jsonl says {expected} for version {step}",
            )
    checked.counts[kind] = len(folders)


def _model_tensors(folder: Path) -> Tensors:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def _check_states(run: Run, checked: Checked, say: Callable[[str], None]) -> None:
    """What each intact checkpoint remembers of the logs and of the draws."""
    damaged = {damage.file.rsplit("/", 1)[0] for damage in checked.damages}
    spoilt = {damage.file for damage in checked.damages}
    hashes = run.path / "hashes.jsonl"
    data = hashes.read_bytes() if hashes.exists() else b""
    states = {}
    for step, folder in _folders(run, "checkpoints").items():
        if f"checkpoints/{folder.name}" in damaged | spoilt:
            continue
        states[step] = json.loads((folder / "state.json").read_text())
        log = states[step].get("logs", {}).get("hashes.jsonl")
        if log and hashlib.sha256(data[: log["bytes"]]).hexdigest() != log["sha256"]:
            checked.add("hashes.jsonl", f"its first {log['bytes']} bytes are not what checkpoint step_{step} says")
    _check_ledgers(run, states, spoilt, checked, say)


def _check_ledgers(
    run: Run, states: dict[int, dict[str, Any]], spoilt: set[str], checked: Checked, say: Callable[[str], None]
) -> None:
    ledgers = {step: state["ledger"] for step, state in states.items() if "ledger" in state}
    if not ledgers:
        return
    say("checking the ledger against the rollouts")
    entries: dict[int, dict[str, Any]] = {}
    for step in run.rollout_steps():
        if step < max(ledgers) and (name := _rollout_name(step)) not in spoilt:
            try:
                entries |= {entry["draw"]: entry for entry in drawn(run, step)}
            except UserError:  # without hashes.jsonl nothing else has looked at it
                checked.add(name, "is not a Parquet file that can be read")
    for step, ledger in ledgers.items():
        wrong = [entry for entry in ledger if entries.get(entry["draw"], entry) != entry]
        if wrong:
            checked.add(
                f"checkpoints/step_{step}/state.json",
                f"draw {wrong[0]['draw']} is in its ledger as {_facts(wrong[0])}, in the rollouts as "
                f"{_facts(entries[wrong[0]['draw']])}",
            )


def drawn(run: Run, step: int) -> list[dict[str, Any]]:
    """The ledger's entries of a step, from its rollouts."""
    table = run.rollouts(step).select(["draw", "example_id", "state", "token_ids"])
    entries: dict[int, dict[str, Any]] = {}
    for row in table.to_pylist():
        draw, tokens = row["draw"], len(row["token_ids"])
        new = {"draw": draw, "step": step, "example_id": row["example_id"], "state": row["state"], "tokens": 0}
        entry = entries.setdefault(draw, new)
        entry["tokens"] += tokens
        if row["state"] != "failed":  # a row whose grader failed says so, whatever became of its group
            entry["state"] = row["state"]
    return list(entries.values())


def _facts(entry: dict[str, Any]) -> str:
    return f"example {entry['example_id']} of step {entry['step']}, {entry['state']}, {entry['tokens']} tokens"
