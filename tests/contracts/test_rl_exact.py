"""Contracts 1 and 2 for RL. Changing what is compared here is a decision to report, not a fix.

Here a sample of the moments at which it is killed; `make test-contracts` has them all.
"""

import json

import pytest
import states
import trials
from recipes import PROMPTS, STEPS, Recipe
from traps import At, Call, Trap

KILLS = {
    "sampling": Call("hone.inference.batch.sample_tokens", 40),
    "metrics torn": At("write", "metrics.jsonl", 6, "half"),
    "checkpoint torn": At("save", "checkpoints/*step_6/optimizer.safetensors", 1, "half"),
}


@pytest.fixture(scope="session", params=["fp32", "bf16_linear"])
def recipe(request, cook) -> Recipe:
    return cook("rl", request.param)


def test_a_run_really_trains(recipe):
    lines = states.lines(recipe.unbroken / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(STEPS + 1))
    assert sum(line.get("groups/trained", 0) for line in lines) >= STEPS
    assert len({line["grad_norm"] for line in lines[:-1] if "grad_norm" in line}) >= STEPS - 1
    assert [line["step"] for line in lines if "eval/reverse-text/reward/mean" in line] == [0, 4, 8]
    assert all(line["logprob_gap/max"] < 5e-2 for line in lines if "logprob_gap/max" in line)


def test_the_same_config_and_seed_give_the_same_bytes(recipe, tmp_path):
    assert trials.run(recipe.argv(tmp_path / "run"), tmp_path / "log") == 0
    states.assert_ended_like(tmp_path / "run", recipe.unbroken)


def test_another_seed_gives_other_samples(recipe, tmp_path):
    assert trials.run(recipe.argv(tmp_path / "run", "--seed", "4"), tmp_path / "log") == 0
    mine, other = states.fingerprint(tmp_path / "run"), states.fingerprint(recipe.unbroken)
    assert mine.keys() == other.keys() and all(mine[name] != other[name] for name in mine if "rollouts" in name)


@pytest.mark.parametrize("event", KILLS)
def test_killed_and_resumed_equals_never_killed(event, rl, tmp_path):
    rl.killed_and_resumed(Trap(KILLS[event]), tmp_path)


def test_a_full_disk_leaves_the_last_checkpoint_and_one_sentence(rl, tmp_path):
    out, log = tmp_path / "run", tmp_path / "log"
    full = Trap(At("save", "checkpoints/*step_6/model.safetensors", 1, "half"), "ENOSPC", lasting=True)
    assert trials.run(rl.argv(out), log, full) == 2
    text = log.read_text().splitlines()[-1]
    assert text.startswith(f"error: the disk is full ({out}/") and "the last checkpoint is step_4" in text
    assert states.intact_checkpoints(out) == [2, 4]
    assert trials.run(rl.argv(out, "--resume"), log) == 0, log.read_text()
    states.assert_ended_like(out, rl.unbroken)


def test_each_draw_ends_in_the_ledger_once(recipe):
    state = json.loads((recipe.unbroken / "checkpoints" / f"step_{STEPS}" / "state.json").read_text())
    assert [entry["draw"] for entry in state["ledger"]] == list(range(STEPS * PROMPTS))
    assert {entry["state"] for entry in state["ledger"]} <= {"trained", "filtered"}
    metrics = states.lines(recipe.unbroken / "metrics.jsonl")
    assert metrics[-2]["tokens/total"] == sum(entry["tokens"] for entry in state["ledger"])
