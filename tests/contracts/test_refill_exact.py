"""Contracts 1, 2 and 4 for a refill. Changing what is compared here is a decision to report, not a fix."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import groupby

import numpy as np
import pytest
import states
from recipes import PROMPTS, ROLLOUTS, STEPS, Recipe
from traps import At, Call, Trap

from hone.runs import Run

KILLS = {
    "a later round": Call("hone.loops.groups.GroupSampler.sample", 9),
    "ledger closed": Call("hone.loops.ledger.Ledger.close", 14, "after"),
    "metrics torn": At("write", "metrics.jsonl", 6, "half"),
}


@pytest.fixture(scope="session")
def recipe(cook) -> Recipe:
    return cook("refill", "fp32")


def test_each_draw_ends_in_one_state_and_the_batch_is_full_where_enough_groups_differ(recipe):
    run = Run(recipe.unbroken)
    ledger = json.loads((recipe.unbroken / "checkpoints" / f"step_{STEPS}" / "state.json").read_text())["ledger"]
    assert [entry["draw"] for entry in ledger] == list(range(len(ledger)))
    assert {"trained", "filtered", "surplus"} <= {entry["state"] for entry in ledger}
    metrics, more_rounds = states.lines(recipe.unbroken / "metrics.jsonl"), 0
    for step, entries in groupby(ledger, lambda entry: entry["step"]):
        found, line = Counter(entry["state"] for entry in entries), metrics[step]
        for state in ("trained", "filtered", "surplus"):
            assert line[f"groups/{state}"] == found[state]
        assert line["groups/drawn"] == found.total() - found["retired"]
        assert found["trained"] == PROMPTS or line["groups/drawn"] > 5
        more_rounds += line["groups/drawn"] > 5
        by_draw = {draw: list(rows) for draw, rows in groupby(run.rollouts(step).to_pylist(), lambda row: row["draw"])}
        assert len(by_draw) == line["groups/drawn"] and all(len(rows) == ROLLOUTS for rows in by_draw.values())
        of = {state: [rows for rows in by_draw.values() if rows[0]["state"] == state] for state in found}
        rewards = [row["reward"] for rows in by_draw.values() for row in rows]
        assert line["reward/mean"] == pytest.approx(np.mean(rewards))
        assert all({row["advantage"] for row in rows} == {0.0} for rows in of.get("surplus", []))
        assert all(len({row["reward"] for row in rows}) > 1 for rows in of.get("surplus", []) + of["trained"])
        last = max(rows[0]["draw"] for rows in of["trained"])
        assert all(rows[0]["draw"] > last for rows in of.get("surplus", []))
    assert more_rounds > 1
    assert all(entry["graded"] == ROLLOUTS for entry in ledger if entry["state"] != "retired")


@pytest.mark.parametrize("event", KILLS)
def test_killed_and_resumed_equals_never_killed(event, recipe, tmp_path):
    recipe.killed_and_resumed(Trap(KILLS[event]), tmp_path)


@pytest.mark.needs("reproduce")
def test_it_is_verified_replayed_and_regraded(recipe, tmp_path):
    text = recipe.rebuilt(tmp_path, ["regrade"])
    assert re.search(r"check +(\d+) of \1 have the recorded reward and outcome", text)
