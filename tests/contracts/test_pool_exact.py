"""Contracts 1, 2 and 4 for a curriculum with a pool. Changing what is compared here is a decision to report, not a fix.

Kills are those of test_refill_exact.py, which has this pool.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import states
import tampering
import trials
from recipes import PROMPTS, STEPS, Recipe


@pytest.fixture(scope="session")
def recipe(cook) -> Recipe:
    return cook("pool", "fp32")


def ledger(run: Path, step: int = STEPS) -> list[dict]:
    return json.loads((run / "checkpoints" / f"step_{step}" / "state.json").read_text())["ledger"]


def test_the_pool_shrinks_and_each_of_it_comes_once_per_epoch(recipe):
    entries = ledger(recipe.unbroken)
    assert [entry["draw"] for entry in entries] == list(range(len(entries)))
    counts = {state: sum(entry["state"] == state for entry in entries) for state in ("trained", "filtered", "retired")}
    assert sum(counts.values()) == len(entries) and sum(counts.values()) - counts["retired"] == STEPS * PROMPTS
    assert counts["retired"] > 0 and counts["trained"] > STEPS
    lines = states.lines(recipe.unbroken / "metrics.jsonl")[:-1]
    pools = [tuple(line[f"pool/{name}"] for name in ("active", "retired", "parked")) for line in lines]
    assert all(sum(pool) == 10 for pool in pools)
    assert pools[-1][1] > pools[0][1] and max(parked for _, _, parked in pools) > 0
    first = [entry["example_id"] for entry in entries[:10]]
    assert len(set(first)) == 10


@pytest.mark.needs("reproduce")
def test_it_is_verified_and_replayed(recipe, tmp_path):
    assert "retired (solved)" in recipe.rebuilt(tmp_path, ["runs ledger"])


def change_solved(entries: list[dict]) -> int:
    entries[4]["solved"] += 1
    return 4


def retire(entries: list[dict]) -> int:
    entries[4] = {name: entries[4][name] for name in ("draw", "step", "example_id")} | {"state": "retired", "tokens": 0}
    return 4


def pass_over_one_more(entries: list[dict]) -> int:
    entries.append({"draw": len(entries), "step": 6, "example_id": "x", "state": "retired", "tokens": 0})
    return len(entries) - 1


@pytest.mark.parametrize("change", [change_solved, retire, pass_over_one_more])
@pytest.mark.needs("reproduce")
def test_another_ledger_than_the_rollouts_tell_is_damage(change, recipe, tmp_path):
    run, log = shutil.copytree(recipe.unbroken, tmp_path / "run"), tmp_path / "log"
    state = run / "checkpoints" / f"step_{STEPS}" / "state.json"
    content = json.loads(state.read_text())
    draw = change(content["ledger"])
    state.write_text(json.dumps(content))
    tampering.fit_complete(state.parent)
    assert trials.run(["verify", str(run), "--steps", "0"], log) == 1, log.read_text()
    assert f"checkpoints/step_{STEPS}/state.json: draw {draw} is in its ledger as" in log.read_text()
