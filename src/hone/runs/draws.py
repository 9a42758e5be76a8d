"""Reads how every draw of an RL run ended, from its checkpoints and rollouts; checks that each epoch was whole.

The ledger of record is in the checkpoints. Draws after the newest one are read from the rollouts; a resume would take
them again.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hone.runs.files import MARKER, read_json, sha256

if TYPE_CHECKING:
    from hone.runs.reader import Run

CHECKPOINT, ROLLOUTS = "checkpoint", "rollouts"
MEASURED = ("solved", "graded")
"""Further keys of a ledger entry if the curriculum uses it."""


def read_draws(run: Run) -> list[dict[str, Any]]:
    """Return one record per draw, in their order: draw, step, example_id, state, tokens, and `source`.

    If the curriculum measures, also how many of the `graded` rollouts were `solved`. Draws that were passed over
    (`retired`) since the newest checkpoint leave only a gap in the numbers. `source` is `checkpoint` up to the newest
    intact one, `rollouts` for steps since then.
    """
    step, draws = 0, []
    for saved in reversed(run.checkpoints.steps()):
        folder = run.checkpoints.path(saved)
        listed = read_json(folder / MARKER)["files"].get("state.json")  # its tensors, which may be large, are not read
        if listed and sha256(folder / "state.json") == listed["sha256"]:
            ledger = json.loads((folder / "state.json").read_bytes()).get("ledger", [])
            step, draws = saved, [entry | {"source": CHECKPOINT} for entry in ledger]
            break
    left_out = () if measures(run) else MEASURED
    for later in run.rollout_steps():
        for entry in drawn(run, later) if later >= step else ():
            draws.append({name: entry[name] for name in entry if name not in left_out} | {"source": ROLLOUTS})
    return draws


def measures(run: Run) -> bool:
    """Return True if the run's curriculum uses what was solved."""
    config = run.config if (run.path / "config.toml").is_file() else {}
    curriculum = config.get("orchestrator", {}).get("curriculum", {})
    return curriculum.get("order") == "difficulty" or "pool" in curriculum


def drawn(run: Run, step: int) -> list[dict[str, Any]]:
    """Return the ledger's entries of a step, from its rollouts, by draw; with `solved` and `graded`.

    A group's state is that of a sample that isn't failed, if there is one: a sample whose grader failed has the
    state `failed`, whatever became of its group.
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
    """Counts of the examples' draws. `pool` is how many examples there are, None while unknown.

    `over` epochs have ended; `open` draws belong to the one under way. `faults` lists, epoch by epoch, examples that
    came too often or not at all. If a curriculum changes what is drawn, `sizes` are the draws of each epoch begun, and
    `left` is how many examples are in its pool (`pool/active`, …), if it has one.
    """

    pool: int | None
    over: int
    open: int
    faults: list[str] = field(default_factory=list)
    sizes: tuple[int, ...] = ()
    left: dict[str, float] = field(default_factory=dict)


def epochs(draws: list[dict[str, Any]], pool: int | None = None) -> Epochs:
    """Check that each epoch of the draws, which must be all of a run from its first on, had each example once.

    Without `pool`, its size is taken from the draws: an epoch is over when an example comes again. Rows of equal
    content are one example here, which then comes as often in every epoch as in the first.
    """
    ids = [draw["example_id"] for draw in draws]
    seen: set[str] = set()
    pool = pool or next((number for number, name in enumerate(ids) if name in seen or seen.add(name)), None)
    if pool is None:
        return Epochs(None, 0, len(ids))
    over, open_draws = divmod(len(ids), pool)
    once = Counter(ids[:pool])
    faults = []
    for epoch in range(over + 1):
        counts = Counter(ids[epoch * pool : (epoch + 1) * pool])
        wrong = [name for name in counts if counts[name] > once[name]]
        wrong += [name for name in once if counts[name] < once[name]] if epoch < over else []
        if wrong and over:
            words = [f"{name} came {counts[name]}x instead of {once[name]}x" for name in wrong[:4]]
            faults.append(f"epoch {epoch}: {'; '.join(words)}{' ...' if wrong[4:] else ''}")
    return Epochs(pool, over, open_draws, faults)
