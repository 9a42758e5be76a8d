"""Contracts 1, 2 and 4 for a task of several turns. To change what is compared is a decision to report, not a fix."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import states
import tampering
import trials
from recipes import STEPS, Recipe
from traps import At, Call, Trap

from hone.runs import Run

KILLS = {
    "sampling a second turn": Call("hone.inference.batch.sample_tokens", 20),
    "answering": Call("hone.environments.multi_turn.settled", 30),
    "checkpoint torn": At("save", "checkpoints/*step_6/optimizer.safetensors", 1, "half"),
}


@pytest.fixture(scope="module")
def recipe(cook) -> Recipe:
    return cook("talk", "fp32")


def test_conversations_are_recorded_and_trained_on(recipe):
    lines = states.lines(recipe.unbroken / "metrics.jsonl")
    assert sum(line.get("groups/trained", 0) for line in lines) >= STEPS
    assert all(line["logprob_gap/max"] < 1e-4 for line in lines if "logprob_gap/max" in line)
    assert all(1 <= line["turns/mean"] <= 3 for line in lines[:-1])
    turns = set()
    for step in range(STEPS):
        rows = Run(recipe.unbroken).rollouts(step).to_pylist()
        assert lines[step]["tokens/environment"] == sum(between(row).sum() for row in rows)
        for row in rows:
            shown = json.loads(row["completion"])
            assert [m["role"] for m in shown] == (["assistant", "user"] * 3)[: len(shown)]
            assert row["text"] == "\n\n".join(m["content"] for m in shown[::2])
            assert json.loads(row["prompt"])[0]["content"].startswith("Guess ")
            turns.add((len(shown) + 1) // 2)
        assert_sampled_tokens_are_told_of(rows, Run(recipe.unbroken).token_stats(step).to_pylist())
    assert turns == {1, 2, 3}


def assert_sampled_tokens_are_told_of(rows: list[dict], tokens: list[dict]) -> None:
    """Of each token that the policy sampled in a row that was trained on; not of what the environment said."""
    for row, shown in zip(rows, tokens, strict=True):
        sampled = np.array(row["logprobs"])[np.array(row["sampled_mask"])]
        assert shown["sample_id"] == row["sample_id"] and (shown["entropies"] is None) == (row["state"] != "trained")
        if shown["entropies"] is not None:
            assert len(shown["entropies"]) == len(sampled)
            assert np.abs(np.array(shown["trainer_logprobs"]) - sampled).max() < 1e-4


def between(row: dict) -> np.ndarray:
    """Which tokens the environment said."""
    mask = np.array(row["sampled_mask"])
    return ~mask & (mask.cumsum() > 0)


def test_the_same_config_and_seed_give_the_same_bytes_if_answers_take_their_time(recipe, tmp_path):
    slow = ["--orchestrator.env.args", '{"slow": 0.001}']
    assert trials.run(recipe.argv(tmp_path / "slow", *slow), tmp_path / "log") == 0
    mine, wanted = states.fingerprint(tmp_path / "slow"), states.fingerprint(recipe.unbroken)
    same = [name for name in wanted if name.startswith(("metrics", "rollouts", "weights")) and "README" not in name]
    assert [name for name in same if mine[name] != wanted[name]] == [] and len(same) > STEPS


@pytest.mark.long
@pytest.mark.parametrize("patience", [False, True])
def test_an_answer_that_never_comes_costs_its_own_sample_or_is_told_to_the_model(patience, recipe, tmp_path):
    """One step, with an environment that hangs at the guess of a 3; all that has no 3 in it is as if it did not."""
    out, log = tmp_path / "run", tmp_path / "log"
    args = json.dumps({"endless": "3", "patience": patience})
    words = ["--max-steps", "1", "--no-orchestrator.eval", "--orchestrator.env.args", args]
    words += ["--orchestrator.grading.timeout", "1", "--orchestrator.grading.max-failed", "1"]
    assert trials.run(recipe.argv(out, *words), log) == 0, log.read_text()
    rows, wanted = (Run(run).rollouts(0).to_pylist() for run in (out, recipe.unbroken))
    hit = 0
    for row, other in zip(rows, wanted, strict=True):
        guesses = [m["content"][:1] for m in json.loads(row["completion"])[::2]]
        if "3" not in guesses[:2]:  # the last is not answered
            assert {**row, "advantage": 0, "state": ""} == {**other, "advantage": 0, "state": ""}
        elif patience:
            hit += 1
            shown = json.loads(row["completion"])
            assert shown[2 * guesses.index("3") + 1] == {"role": "user", "content": "no answer"}
            assert row["outcome"] in ("correct", "wrong", "unparsable")
        else:
            hit += 1
            assert (row["outcome"], row["reward"], row["state"]) == ("grader_timeout", None, "failed")
    assert hit > 0
    cause = "a tool was ended at its deadline" if patience else "a grader was ended at its deadline"
    assert json.loads((out / "run.json").read_text())["inexact"] == [{"step": 0, "cause": cause}]


@pytest.mark.parametrize("event", KILLS)
def test_killed_and_resumed_equals_never_killed(event, recipe, tmp_path):
    recipe.killed_and_resumed(Trap(KILLS[event]), tmp_path)


@pytest.mark.needs("reproduce")
def test_a_copied_run_is_verified_and_replayed(recipe, tmp_path):
    recipe.rebuilt(tmp_path)


@pytest.mark.needs("reproduce")
def test_an_environment_that_answers_otherwise_is_named(recipe, tmp_path):
    """Recorded with one wording, verified with another: the config of the copy names another environment argument."""
    run, log = shutil.copytree(recipe.unbroken, tmp_path / "run"), tmp_path / "log"
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(config.replace("[orchestrator.env.args]", "[orchestrator.env.args]\nwordy = 2"))
    assert (run / "config.toml").read_text() != config
    assert trials.run(["verify", str(run)], log) == 1, log.read_text()
    steps = json.loads((tmp_path / "run.verify.json").read_text())["steps"]
    found = next(check["difference"] for check in steps if not check["equal"])
    assert found["quantity"] == "environment" and "what it said after turn 1 of sample" in found["what"]
    assert found["second"] == f"{found['first']} {found['first']}", found
    assert "environment: what it said" in log.read_text()


@pytest.mark.needs("reproduce")
def test_a_changed_turn_is_found_where_it_is(recipe, tmp_path):
    def edit(rows):
        row = next(row for row in rows if between(row).any())
        index = int(np.flatnonzero(between(row))[5])
        row["token_ids"][index] += 1
        shown = json.loads(row["completion"])
        shown[1]["content"] = "hot, higher"
        row["completion"] = json.dumps(shown)

    run, log = shutil.copytree(recipe.unbroken, tmp_path / "run"), tmp_path / "log"
    tampering.edit_rollouts(run, 3, edit, fit_hashes=True)
    assert trials.run(["diff", str(recipe.unbroken), str(run)], log) == 1, log.read_text()
    assert "they part at step 3, environment: what it said after turn 1 of sample" in log.read_text()
    assert "hot, higher in B" in " ".join(log.read_text().split())
