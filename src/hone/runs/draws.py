"""Reads the outcome of every draw of an RL run from its checkpoints and rollouts.

Draws up to the newest checkpoint come from its ledger. Later draws come from rollouts; a resume would repeat them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hone.runs.files import MARKER, read_json, sha256
from hone.runs.view import CONFIG

if TYPE_CHECKING:
    from hone.runs.reader import Run

CHECKPOINT, ROLLOUTS = "checkpoint", "rollouts"
MEASURED = ("solved", "graded")
"""Keys that a ledger entry has only if pass rates are measured."""


def read_draws(run: Run) -> list[dict[str, Any]]:
    """Return one record per draw, in order: draw, step, example_id, state, tokens and `source`.

    If pass rates are measured, a record also has the numbers of `graded` and `solved` rollouts. `source` is
    `checkpoint` up to the newest intact checkpoint, then `rollouts`; retired draws after the checkpoint are missing.
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
    config = run.config if (run.path / CONFIG).is_file() else {}
    curriculum = config.get("orchestrator", {}).get("curriculum", {})
    return curriculum.get("order") == "difficulty" or "pool" in curriculum


def drawn(run: Run, step: int) -> list[dict[str, Any]]:
    """Make a step's ledger entries from its rollouts, in the order of draws. Each has `solved` and `graded`.

    A group has the state of one of its graded samples, if any.
    """
    from hone.types import Outcome  # loads numpy, which a list of runs does without

    failures = {outcome.value for outcome in Outcome if outcome.is_failure}
    draws: dict[int, dict[str, Any]] = {}
    for row in run.rollouts(
        step, ["draw", "example_id", "state", "token_ids", "outcome", "env", "branches"]
    ).to_pylist():
        new = {"draw": row["draw"], "step": step, "example_id": row["example_id"], "state": row["state"], "tokens": 0}
        new |= {"solved": 0, "graded": 0} | ({"env": row["env"]} if "env" in row else {})
        entry = draws.setdefault(row["draw"], new)
        branches = json.loads(row.get("branches") or "[]")
        entry["tokens"] += len(row["token_ids"]) + sum(len(branch["token_ids"]) for branch in branches)
        if row["state"] != "cut":
            entry["solved"] += row["outcome"] == Outcome.CORRECT
            entry["graded"] += row["outcome"] not in failures
        if entry["state"] == "failed":
            entry["state"] = row["state"]
    return [draws[draw] for draw in sorted(draws)]
