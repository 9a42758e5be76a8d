"""What became of every draw of an RL run, read from its checkpoints and rollouts; and whether each epoch was whole.

The ledger of record is in the checkpoints. What a run did after its newest one is read from the rollouts; a resume
would take those draws again.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hone.runs.files import MARKER, is_complete, sha256

if TYPE_CHECKING:
    from hone.runs.reader import Run

CHECKPOINT, ROLLOUTS = "checkpoint", "rollouts"
MEASURED = ("solved", "graded")
"""What an entry of the ledger has besides where the curriculum goes by it."""


def read_draws(run: Run) -> list[dict[str, Any]]:
    """One record per draw, in their order: draw, step, example_id, state, tokens, and `source`.

    With a curriculum that measures, also how many of the `graded` rollouts were `solved`. Draws that were passed over
    (`retired`) since the newest checkpoint have left no trace but the gap in the numbers.
    `source` says where it is from: `checkpoint` is the newest intact one; `rollouts` are of steps since then.
    """
    step, entries = _newest_ledger(run)
    draws = [entry | {"source": CHECKPOINT} for entry in entries]
    measured = measures(run)
    for later in run.rollout_steps():
        if later >= step:
            for entry in drawn(run, later):
                told = {name: entry[name] for name in entry if measured or name not in MEASURED}
                draws.append(told | {"source": ROLLOUTS})
    return draws


def measures(run: Run) -> bool:
    """Whether the run's curriculum goes by what was solved."""
    if not (run.path / "config.toml").is_file():
        return False
    curriculum = run.config.get("orchestrator", {}).get("curriculum", {})
    return curriculum.get("order") == "difficulty" or "pool" in curriculum


def _newest_ledger(run: Run) -> tuple[int, list[dict[str, Any]]]:
    """(step, entries) of the newest checkpoint whose ledger is as it was written; (0, []) without one."""
    for step in reversed(run.checkpoints.steps()):
        if (state := _state(run.checkpoints.path(step))) is not None and "ledger" in state:
            return step, state["ledger"]
    return 0, []


def _state(folder: Path) -> dict[str, Any] | None:
    """`state.json` of a checkpoint, if it is intact. Its tensors, which may be large, are not read."""
    if not is_complete(folder):
        return None
    listed = json.loads((folder / MARKER).read_text())["files"].get("state.json")
    if listed is None or sha256(folder / "state.json") != listed["sha256"]:
        return None
    return json.loads((folder / "state.json").read_bytes())


def drawn(run: Run, step: int) -> list[dict[str, Any]]:
    """The ledger's entries of a step, from its rollouts, by draw; with `solved` and `graded`.

    A group's state is that of a sample that isn't failed, if there is one: a sample whose grader failed says so,
    whatever became of its group.
    """
    from hone.types import Outcome  # loads numpy, which a list of runs does without

    failures = {outcome.value for outcome in Outcome if outcome.is_failure}
    draws: dict[int, dict[str, Any]] = {}
    for row in run.rollouts(step).select(["draw", "example_id", "state", "token_ids", "outcome"]).to_pylist():
        new = {"draw": row["draw"], "step": step, "example_id": row["example_id"], "state": row["state"], "tokens": 0}
        entry = draws.setdefault(row["draw"], new | {"solved": 0, "graded": 0})
        entry["tokens"] += len(row["token_ids"])
        entry["solved"] += row["outcome"] == Outcome.CORRECT
        entry["graded"] += row["outcome"] not in failures
        if entry["state"] == "failed":
            entry["state"] = row["state"]
    return [draws[draw] for draw in sorted(draws)]


@dataclass(frozen=True)
class Epochs:
    """How often the examples came. `pool` is how many there are, None while that isn't known.

    `over` epochs have ended; `open` draws belong to the one under way. `faults` says, epoch by epoch, what came too
    often or not at all. Where a curriculum changes what is drawn, `sizes` are the draws of each epoch begun, and `left`
    is how many examples are in its pool (`pool/active`, …), if it has one.
    """

    pool: int | None
    over: int
    open: int
    faults: list[str] = field(default_factory=list)
    sizes: tuple[int, ...] = ()
    left: dict[str, float] = field(default_factory=dict)


def epochs(draws: list[dict[str, Any]], pool: int | None = None) -> Epochs:
    """Whether each epoch of the draws, which must be all of a run from its first on, had each example exactly once.

    Without `pool`, its size is taken from the draws: an epoch is over when an example comes again. Rows of equal
    content are one example here, which then comes as often in every epoch as in the first.
    """
    ids = [draw["example_id"] for draw in draws]
    pool = pool or _first_repeat(ids)
    if pool is None:
        return Epochs(None, 0, len(ids))
    over, open_draws = divmod(len(ids), pool)
    once = Counter(ids[:pool])
    faults = []
    for epoch in range(over + 1):
        counts = Counter(ids[epoch * pool : (epoch + 1) * pool])
        wrong = [
            f"{name} came {counts[name]}x instead of {once[name]}x" for name in counts if counts[name] > once[name]
        ]
        if epoch < over:
            wrong += [
                f"{name} came {counts[name]}x instead of {once[name]}x" for name in once if counts[name] < once[name]
            ]
        if wrong and over:
            faults.append(f"epoch {epoch}: {'; '.join(wrong[:4])}{' ...' if wrong[4:] else ''}")
    return Epochs(pool, over, open_draws, faults)


def _first_repeat(ids: list[str]) -> int | None:
    seen: set[str] = set()
    for number, name in enumerate(ids):
        if name in seen:
            return number
        seen.add(name)
    return None
