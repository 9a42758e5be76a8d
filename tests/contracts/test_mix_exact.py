"""Contracts 1, 2 and 4 for several tasks. Changing what is compared here is a decision to report, not a fix."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
import recipes
import states
import trials
from recipes import PROMPTS, STEPS, Recipe
from traps import Call, Trap

from hone.runs import Run

KILLS = {
    "the second task": Call("hone.loops.groups.GroupSampler.sample", 9),
    "ledger closed": Call("hone.loops.ledger.Ledger.close", 14, "after"),
    "the second evaluation": Call("hone.loops.parts.evaluate", 4),
}
NAMES = {"chances", "parity", "reverse-text"}


@pytest.fixture(scope="session")
def recipe(cook) -> Recipe:
    return cook("mix", "fp32")


def test_each_task_has_its_share_its_sampling_and_its_metrics(recipe):
    run, lines = Run(recipe.unbroken), states.lines(recipe.unbroken / "metrics.jsonl")
    ledger = json.loads((recipe.unbroken / "checkpoints" / f"step_{STEPS}" / "state.json").read_text())["ledger"]
    assert [entry["draw"] for entry in ledger] == list(range(len(ledger)))
    assert {entry["env"] for entry in ledger} == NAMES
    tokens, total = Counter(), Counter()
    for step, line in enumerate(lines[:-1]):
        rows = run.rollouts(step).to_pylist()
        for name in {row["env"] for row in rows}:
            own = [row for row in rows if row["env"] == name]
            assert line[f"env/{name}/reward/mean"] == pytest.approx(np.mean([row["reward"] for row in own]))
            drawn = {row["draw"] for row in own}
            assert line[f"env/{name}/groups/drawn"] == len(drawn)
            mine = [entry for entry in ledger if entry["step"] == step and entry["env"] == name]
            assert {entry["draw"] for entry in mine if entry["state"] != "retired"} == drawn
            tokens[name] = max(tokens[name], *(sum(row["sampled_mask"]) for row in own))
            total[name] += line[f"env/{name}/groups/trained"]
        assert line["groups/trained"] == sum(line.get(f"env/{name}/groups/trained", 0) for name in NAMES) <= PROMPTS
        assert line["pool/active"] == sum(line[f"env/{name}/pool/active"] for name in NAMES)
    assert tokens["chances"] == 12 and tokens["parity"] <= 16
    assert total["chances"] > total["parity"] > 0


def test_it_is_evaluated_on_the_tasks_that_are_named(recipe):
    run, lines = Run(recipe.unbroken), states.lines(recipe.unbroken / "metrics.jsonl")
    assert all((f"eval/{name}/reward/mean" in lines[4]) for name in ("chances", "reversed"))
    rows = run.eval_rows(4)
    assert Counter(row["env"] for row in rows) == {"chances": 6, "reversed": 6}
    assert max(row["completion_tokens"] for row in rows if row["env"] == "reversed") == 4


@pytest.mark.parametrize("event", KILLS)
def test_killed_and_resumed_equals_never_killed(event, recipe, tmp_path):
    recipe.killed_and_resumed(Trap(KILLS[event]), tmp_path)


@pytest.mark.needs("reproduce")
def test_it_is_verified_replayed_and_regraded(recipe, tmp_path):
    text, run, log = recipe.rebuilt(tmp_path, ["regrade", "--env", "parity"]), tmp_path / "copied", tmp_path / "log"
    rows = [row for step in range(STEPS) for row in Run(run).rollouts(step).to_pylist() if row["env"] == "parity"]
    assert f"{len(rows)} of {len(rows)} have the recorded reward and outcome" in text
    assert trials.run(["regrade", str(run)], log) == 2
    assert "has several tasks: say which one, by --env chances or --env parity or --env reverse-text" in log.read_text()


def test_one_task_at_any_weight_is_the_run_of_that_task(cook, warm_model, tmp_path):
    single, log = cook("rl", "fp32"), tmp_path / "log"
    task = [{"id": "reverse-text", "weight": 3, "sampling": {"max_tokens": 16}}]
    args = recipes.rl(warm_model, "fp32")
    alone = [*args, "--orchestrator.envs", json.dumps(task), "--orchestrator.sampling.max-tokens", "32"]
    assert trials.run([*alone, "--output-dir", str(tmp_path / "run")], log) == 0, log.read_text()
    mine, wanted = states.fingerprint(tmp_path / "run"), states.fingerprint(single.unbroken)
    assert mine == wanted
