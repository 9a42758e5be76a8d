"""Contracts 1 to 4 for each kind of run. Changing what is compared here is a decision to report, not a fix.

Here a few of the moments at which a run is killed; `make test-contracts` has many more.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from itertools import groupby

import numpy as np
import pyarrow.parquet as pq
import pytest
import states
import tampering
import torch
import trials
from recipes import FEW, FOREGROUND, LATE, PROMPTS, ROLLOUTS, STEPS
from safetensors.torch import load_file
from transformers import LogitsProcessorList, MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper
from traps import At, Call, Trap

from hone.config.shared import LoraConfig
from hone.model.attention import PackedAttention
from hone.model.hf import load_model, merged
from hone.model.lora import load_adapter
from hone.model.tokenizer import build_tiny_tokenizer
from hone.runs import Run

BF16, LORA, KL = "bf16_linear", ("--model.lora.rank", "4"), ("--trainer.loss.kl-coef", "0.1")
FOUR_BITS = ("lora", BF16, "--model.lora.base", "4bit")
SAMPLING, LEDGER = "hone.loops.groups.GroupSampler.sample", Call("hone.loops.ledger.Ledger.close", 14, "after")
UPDATE = Call("hone.trainer.optim.Optimizer._publish_masters", 5)
KILLS = [
    (("rl",), Call("hone.inference.batch.sample_tokens", 40)),
    (("rl",), At("write", "metrics.jsonl", 6, "half")),
    (("rl",), At("save", "checkpoints/*step_6/optimizer.safetensors", 1, "half")),
    (("talk",), Call("hone.inference.batch.sample_tokens", 20)),  # a second turn
    (("talk",), Call("hone.environments.multi_turn.settled", 30)),
    (("mix",), Call(SAMPLING, 9)),  # the second task
    (("mix",), Call("hone.loops.parts.evaluate", 4)),  # the second evaluation
    (("refill",), Call(SAMPLING, 9)),  # a later round
    (("refill",), LEDGER),
    (("cut",), LATE.where),
    (("lora", BF16), LATE.where),
    (FOUR_BITS, LATE.where),
]
KL_KINDS = [
    ("rl", "fp32", "--algorithm", "reinforce++", "--orchestrator.rollouts-per-example", "1", *KL),
    ("rl", "fp32", "--algorithm", "rloo", *KL),
    ("refill", "fp32", *KL),
    ("mix", "fp32", *KL),
]
PACKING = Call("hone.loops.steps.trainable", 6)
KILLS += [(kind, PACKING) for kind in KL_KINDS]


@pytest.mark.parametrize(("kind", "where"), KILLS)
def test_killed_and_resumed_equals_never_killed(kind, where, cook, tmp_path):
    recipe = cook(*kind)
    if kind in KL_KINDS:
        assert any(line.get("kl") for line in states.lines(recipe.unbroken / "metrics.jsonl"))
    recipe.killed_and_resumed(Trap(where), tmp_path, *([FOREGROUND] if where == LATE.where else []))


@pytest.mark.needs("services", "server")
def test_so_does_a_run_with_a_teacher(cook, warm_model, tmp_path):
    from real_server import serving

    with serving(load_model(warm_model, precision="fp32")) as served:
        taught = ["--teacher.base-url", f"{served.url}/v1", "--teacher.reward-coef", "1", "--trainer.optim.lr", "3e-3"]
        recipe = cook("rl", "fp32", *taught)
        assert any(line.get("teacher/kl") for line in states.lines(recipe.unbroken / "metrics.jsonl"))
        recipe.killed_and_resumed(Trap(PACKING), tmp_path)


@pytest.mark.needs("reproduce")
@pytest.mark.parametrize("kind", [("rl",), ("sft", BF16), ("sft", BF16, *LORA)], ids=" ".join)
def test_a_killed_and_resumed_run_is_no_other_run(kind, cook, tmp_path):
    recipe, log = cook(*kind), tmp_path / "log"
    run = recipe.killed_and_resumed(Trap(UPDATE), tmp_path)
    assert trials.run(["diff", str(recipe.unbroken), str(run)], log) == 0, log.read_text()
    assert trials.run(["verify", str(run), "--steps", "2"], log) == 0, log.read_text()
    if kind[0] == "sft":
        losses = [line["loss"] for line in states.lines(run / "metrics.jsonl")[:-1]]
        assert losses[-1] < losses[0]


ONE_TASK = json.dumps([{"id": "reverse-text", "weight": 3, "sampling": {"max_tokens": 16}, "args": json.loads(FEW)}])
SAME = {
    "again": (("rl",), ()),
    "again in bf16": (("rl", BF16), ()),
    "answers take their time": (("talk",), ("--orchestrator.env.args", '{"slow": 0.001}')),
    "one task at any weight": (("rl",), ("--orchestrator.envs", ONE_TASK, "--orchestrator.sampling.max-tokens", "32")),
}


@pytest.mark.parametrize("case", SAME)
def test_the_same_config_and_seed_give_the_same_bytes(case, cook, tmp_path):
    kind, more = SAME[case]
    recipe, out = cook(*kind), tmp_path / "run"
    assert trials.run(recipe.argv(out, *more), tmp_path / "log") == 0
    if not more:
        return states.assert_ended_like(out, recipe.unbroken)
    mine, wanted = (states.fingerprint(run) for run in (out, recipe.unbroken))
    free = "README.md" if kind[0] == "talk" else "nothing"  # it says how the task was called
    different = [name for name in mine.keys() | wanted.keys() if mine.get(name) != wanted.get(name)]
    assert [name for name in different if free not in name] == []


def test_another_seed_gives_other_samples(rl, tmp_path):
    assert trials.run(rl.argv(tmp_path / "run", "--seed", "4"), tmp_path / "log") == 0
    mine, other = states.fingerprint(tmp_path / "run"), states.fingerprint(rl.unbroken)
    assert mine.keys() == other.keys() and all(mine[name] != other[name] for name in mine if "rollouts" in name)


REBUILT = {
    ("rl",): ["regrade"],
    ("rl", BF16): ["regrade"],
    ("sft", BF16): [],
    ("cut",): [],
    ("talk",): [],
    ("pool",): ["runs ledger"],
    ("refill",): ["regrade"],
    ("mix",): ["regrade", "--env", "parity"],
    ("lora", BF16): [],
    FOUR_BITS: [],
}


@pytest.mark.needs("reproduce")
@pytest.mark.parametrize("kind", REBUILT, ids=" ".join)
def test_a_copied_run_is_verified_replayed_and_regraded(kind, cook, tmp_path):
    more = REBUILT[kind]
    text = cook(*kind).rebuilt(tmp_path, *([more] if more else []))
    certificate = json.loads((tmp_path / "copied.verify.json").read_text())
    assert certificate["verdict"] == "verified"
    assert [check["step"] for check in certificate["steps"]] == list(range(STEPS))
    if more == ["runs ledger"]:
        assert "retired (solved)" in text
    elif more:
        rows = [row for step in range(STEPS) for row in Run(tmp_path / "copied").rollouts(step).to_pylist()]
        count = sum(row["env"] == "parity" for row in rows) if "--env" in more else len(rows)
        assert count and f"{count} of {count} have the recorded reward and outcome" in text


@pytest.mark.needs("reproduce")
def test_of_several_tasks_one_is_regraded(cook, tmp_path):
    assert trials.run(["regrade", str(cook("mix").unbroken)], log := tmp_path / "log") == 2
    assert "has several tasks: name one with --env chances or --env parity or --env reverse-text" in log.read_text()


AGREE = {("rl",): 1e-5, ("rl", BF16): 5e-2, ("talk",): 1e-5, ("cut",): 1e-5, ("lora",): 1e-5, ("lora", BF16): 5e-2}


@pytest.mark.parametrize("kind", AGREE, ids=" ".join)
def test_sampler_and_trainer_agree_and_the_run_trains(kind, cook):
    lines = states.lines(cook(*kind).unbroken / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(STEPS + 1))
    assert [line["step"] for line in lines if any(name.startswith("eval/") for name in line)] == [0, 4, 8]
    assert sum(line.get("groups/trained", 0) for line in lines) >= STEPS
    steps = [line for line in lines if "logprob_gap/max" in line]
    assert len(steps) >= STEPS - 2 and all(line["grad_norm"] > 0 for line in steps)
    assert len({line["grad_norm"] for line in steps}) == len(steps)
    assert all(line["logprob_gap/max"] <= AGREE[kind] for line in steps)
    if kind[0] == "cut":
        assert all(line["canary/gap/max"] <= 1e-5 for line in lines)
        assert all(1 < line["completion/kept_ids/mean"] < 20 and 0 < line["entropy"] < np.log(20) for line in steps)
    elif kind[0] == "lora":
        assert steps[0]["kl"] == 0 and steps[-1]["kl"] > 1e-4


STATES = {
    "rl": {"trained", "filtered"},
    "pool": {"trained", "filtered", "retired"},
    "refill": {"trained", "filtered", "surplus", "retired"},
    "mix": {"trained", "filtered", "surplus", "retired"},
}


def ledger_of(run) -> list[dict]:
    return states.read_json(run / "checkpoints" / f"step_{STEPS}" / "state.json")["ledger"]


@pytest.mark.parametrize("kind", STATES)
def test_each_draw_ends_in_the_ledger_once(kind, cook):
    run = cook(kind).unbroken
    ledger, lines = ledger_of(run), states.lines(run / "metrics.jsonl")
    assert [entry["draw"] for entry in ledger] == list(range(len(ledger)))
    counts = Counter(entry["state"] for entry in ledger)
    assert counts.keys() <= STATES[kind] and counts["trained"] > STEPS
    assert lines[-2]["tokens/total"] == sum(entry["tokens"] for entry in ledger)
    if kind in ("rl", "pool"):
        assert counts.total() - counts["retired"] == STEPS * PROMPTS
    if kind == "rl":
        return
    assert counts["retired"] > 0
    assert all(entry["graded"] == ROLLOUTS for entry in ledger if entry["state"] != "retired")
    pools = [tuple(line[f"pool/{name}"] for name in ("active", "retired", "parked")) for line in lines[:-1]]
    if kind == "pool":
        assert all(sum(pool) == 10 for pool in pools) and len({entry["example_id"] for entry in ledger[:10]}) == 10
        assert pools[-1][1] > pools[0][1] and max(parked for _, _, parked in pools) > 0


def test_a_batch_is_full_where_enough_groups_differ(cook):
    run = Run(cook("refill").unbroken)
    ledger, metrics, more_rounds = ledger_of(run.path), states.lines(run.path / "metrics.jsonl"), 0
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
        assert line["reward/mean"] == pytest.approx(
            np.mean([row["reward"] for rows in by_draw.values() for row in rows])
        )
        assert all({row["advantage"] for row in rows} == {0.0} for rows in of.get("surplus", []))
        assert all(len({row["reward"] for row in rows}) > 1 for rows in of.get("surplus", []) + of["trained"])
        last = max(rows[0]["draw"] for rows in of["trained"])
        assert all(rows[0]["draw"] > last for rows in of.get("surplus", []))
    assert more_rounds > 1


def test_each_task_of_a_mix_has_its_share_its_sampling_and_its_metrics(cook):
    run, names = Run(cook("mix").unbroken), {"chances", "parity", "reverse-text"}
    ledger, lines = ledger_of(run.path), states.lines(run.path / "metrics.jsonl")
    assert {entry["env"] for entry in ledger} == names
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
        assert line["groups/trained"] == sum(line.get(f"env/{name}/groups/trained", 0) for name in names) <= PROMPTS
        assert line["pool/active"] == sum(line[f"env/{name}/pool/active"] for name in names)
    assert tokens["chances"] == 12 and tokens["parity"] <= 16 and total["chances"] > total["parity"] > 0
    assert all(f"eval/{name}/reward/mean" in lines[4] for name in ("chances", "reversed"))
    rows = run.eval_rows(4)
    assert Counter(row["env"] for row in rows) == {"chances": 6, "reversed": 6}
    assert max(row["completion_tokens"] for row in rows if row["env"] == "reversed") == 4


def change_solved(entries: list[dict]) -> int:
    entries[4]["solved"] += 1
    return 4


def retire(entries: list[dict]) -> int:
    entries[4] = {name: entries[4][name] for name in ("draw", "step", "example_id")} | {"state": "retired", "tokens": 0}
    return 4


def pass_over_one_more(entries: list[dict]) -> int:
    entries.append({"draw": len(entries), "step": 6, "example_id": "x", "state": "retired", "tokens": 0})
    return len(entries) - 1


@pytest.mark.needs("reproduce")
@pytest.mark.parametrize("change", [change_solved, retire, pass_over_one_more])
def test_another_ledger_than_the_rollouts_tell_is_damage(change, cook, tmp_path):
    run, log = shutil.copytree(cook("pool").unbroken, tmp_path / "run"), tmp_path / "log"
    state = run / "checkpoints" / f"step_{STEPS}" / "state.json"
    content = states.read_json(state)
    draw = change(content["ledger"])
    state.write_text(json.dumps(content))
    tampering.fit_complete(state.parent)
    assert trials.run(["verify", str(run), "--steps", "0"], log) == 1, log.read_text()
    assert f"checkpoints/step_{STEPS}/state.json: draw {draw} is in its ledger as" in log.read_text()


def test_the_kept_ids_are_those_of_transformers_and_the_logprobs_are_of_them(cook, warm_model):
    model, tokenizer = load_model(str(warm_model), precision="fp32"), build_tiny_tokenizer()
    warpers = LogitsProcessorList([TopKLogitsWarper(20), TopPLogitsWarper(0.9), MinPLogitsWarper(0.05)])
    rows = pq.read_table(cook("cut").unbroken / "rollouts" / "step_000000.parquet").to_pylist()
    stopped = 0
    for row in rows:
        ids, mask = np.array(row["token_ids"]), np.array(row["sampled_mask"])
        with torch.no_grad():
            hidden = model.hidden(torch.tensor(ids), torch.arange(len(ids)), PackedAttention([len(ids)]))
            cut = warpers(None, model.logits(hidden)[:-1])
        counts, kept = np.array(row["kept_counts"]), iter(row["kept_ids"])
        assert not counts[~mask].any() and 1 <= counts[mask].min() <= counts[mask].max() <= 20
        for place in np.flatnonzero(mask):
            assert [next(kept) for _ in range(counts[place])] == cut[place - 1].isfinite().nonzero().flatten().tolist()
            logprob = cut[place - 1].double().log_softmax(-1)[ids[place]]
            assert row["logprobs"][place] == pytest.approx(float(logprob), abs=1e-5)
        text = tokenizer.decode(ids[mask].tolist(), skip_special_tokens=True)
        assert row["text"] == text.partition("a")[0]
        if "a" in text:
            stopped += 1
            assert text.index("a") == len(text) - 1 and row["stop_reason"] == "stop"
    assert stopped > 0


@pytest.mark.parametrize("precision", ["fp32", BF16])
def test_a_checkpoint_has_only_the_adapter_and_the_weights_are_merged(precision, cook, warm_model):
    run = cook("lora", precision).unbroken
    saved = load_file(run / "checkpoints" / f"step_{STEPS}" / "model.safetensors")
    assert len(saved) == 8 and {name.rpartition(".")[2] for name in saved} == {"lora_A", "lora_B"}
    moments = load_file(run / "checkpoints" / f"step_{STEPS}" / "optimizer.safetensors")
    assert {name.partition("/")[2] for name in moments} == saved.keys()
    weights = run / "weights" / f"step_{STEPS}"
    model = load_model(warm_model, precision=precision, lora=LoraConfig(rank=4))
    adapter = load_adapter(weights / "adapter", model.config)
    assert all((adapter[name] == saved[name]).all() for name in saved)
    exported = load_model(weights, precision=precision)
    for name, parameter in exported.named_parameters():
        assert (merged(model, name, dict(model.base) | adapter) == parameter).all(), name
    assert not (exported.layers[0].qkv_proj.weight == model.layers[0].qkv_proj.weight).all()


@pytest.mark.needs("reproduce")
@pytest.mark.parametrize("kind", [("lora", BF16), FOUR_BITS], ids=" ".join)
def test_other_merged_weights_and_another_base_are_refused(kind, cook, warm_model, tmp_path):
    recipe, log, up = cook(*kind), tmp_path / "log", "model.layers.0.mlp.up_proj.weight"
    run, model = (shutil.copytree(one, tmp_path / one.name) for one in (recipe.unbroken, warm_model))
    last = f"weights/step_{STEPS}"
    tampering.edit_tensor(model / "model.safetensors", up, True)
    assert trials.run(["verify", str(run), "--model", str(model), "--steps", "1"], log) == 2
    assert "is not the model that the run began with" in log.read_text()
    more = ["--resume", "--max-steps", str(STEPS + 1), "--model.name", str(model)]
    assert trials.run(recipe.argv(run, *more), log) == 2 and "with another initial model" in log.read_text()
    tampering.edit_tensor(run / last / "model.safetensors", up, True)
    assert trials.run(["replay", str(run)], log) == 1
    assert f"layers.0.gate_up_proj.weight in {last}/merged" in log.read_text()


def between(row: dict) -> np.ndarray:
    """Which tokens the environment said."""
    mask = np.array(row["sampled_mask"])
    return ~mask & (mask.cumsum() > 0)


def test_conversations_are_recorded_and_told_of(cook):
    run, turns = Run(cook("talk").unbroken), set()
    lines = states.lines(run.path / "metrics.jsonl")
    for step in range(STEPS):
        rows = run.rollouts(step).to_pylist()
        assert lines[step]["tokens/environment"] == sum(between(row).sum() for row in rows)
        for row, tokens in zip(rows, run.token_stats(step).to_pylist(), strict=True):
            shown = json.loads(row["completion"])
            assert [m["role"] for m in shown] == (["assistant", "user"] * 3)[: len(shown)]
            assert row["text"] == "\n\n".join(m["content"] for m in shown[::2])
            assert json.loads(row["prompt"])[0]["content"].startswith("Guess ")
            turns.add((len(shown) + 1) // 2)
            sampled = np.array(row["logprobs"])[np.array(row["sampled_mask"])]
            trained = row["state"] == "trained"
            assert tokens["sample_id"] == row["sample_id"] and (tokens["entropies"] is not None) == trained
            if trained:
                assert len(tokens["entropies"]) == len(sampled)
                assert np.abs(np.array(tokens["trainer_logprobs"]) - sampled).max() < 1e-4
    assert turns == {1, 2, 3} and all(1 <= line["turns/mean"] <= 3 for line in lines[:-1])


@pytest.mark.long
@pytest.mark.parametrize("patience", [False, True])
def test_an_answer_that_never_comes_costs_its_own_sample_or_is_told_to_the_model(patience, cook, tmp_path):
    """One step, with an environment that hangs at the guess of a 3; all that has no 3 in it is as if it did not."""
    recipe, out, log = cook("talk"), tmp_path / "run", tmp_path / "log"
    args = json.dumps({"endless": "3", "patience": patience})
    words = ["--max-steps", "1", "--no-orchestrator.eval", "--orchestrator.env.args", args]
    words += ["--orchestrator.grading.timeout", "1", "--orchestrator.grading.max-failed", "1"]
    assert trials.run(recipe.argv(out, *words), log) == 0, log.read_text()
    rows, wanted = (Run(run).rollouts(0).to_pylist() for run in (out, recipe.unbroken))
    hit = 0
    for row, other in zip(rows, wanted, strict=True):
        shown = json.loads(row["completion"])
        guesses = [m["content"][:1] for m in shown[::2]]
        if "3" not in guesses[:2]:  # the last is not answered
            assert {**row, "advantage": 0, "state": ""} == {**other, "advantage": 0, "state": ""}
            continue
        hit += 1
        if patience:
            assert shown[2 * guesses.index("3") + 1] == {"role": "user", "content": "no answer"}
            assert row["outcome"] in ("correct", "wrong", "unparsable")
        else:
            assert (row["outcome"], row["reward"], row["state"]) == ("grader_timeout", None, "failed")
    assert hit > 0
    cause = "a tool was ended at its deadline" if patience else "a grader was ended at its deadline"
    assert states.read_json(out / "run.json")["inexact"] == [{"step": 0, "cause": cause}]


@pytest.mark.needs("reproduce")
def test_an_environment_that_answers_otherwise_is_named(cook, tmp_path):
    """Verified with another wording: the config of the copy names another environment argument."""
    run, log = shutil.copytree(cook("talk").unbroken, tmp_path / "run"), tmp_path / "log"
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(config.replace("[orchestrator.env.args]", "[orchestrator.env.args]\nwordy = 2"))
    assert trials.run(["verify", str(run)], log) == 1, log.read_text()
    steps = states.read_json(tmp_path / "run.verify.json")["steps"]
    found = next(check["difference"] for check in steps if not check["equal"])
    assert found["quantity"] == "environment" and "the answer to turn 1 of sample" in found["what"]
    assert found["second"] == f"{found['first']} {found['first']}", found


@pytest.mark.needs("reproduce")
def test_a_changed_turn_is_found_where_it_is(cook, tmp_path):
    def edit(rows):
        row = next(row for row in rows if between(row).any())
        row["token_ids"][int(np.flatnonzero(between(row))[5])] += 1
        shown = json.loads(row["completion"])
        shown[1]["content"] = "hot, higher"
        row["completion"] = json.dumps(shown)

    first = cook("talk").unbroken
    run, log = shutil.copytree(first, tmp_path / "run"), tmp_path / "log"
    tampering.edit_rollouts(run, 3, edit, fit_hashes=True)
    assert trials.run(["diff", str(first), str(run)], log) == 1, log.read_text()
    assert "they first differ at step 3, environment: the answer to turn 1 of sample" in log.read_text()
    assert "hot, higher in B" in " ".join(log.read_text().split())


def test_a_full_disk_leaves_the_last_checkpoint_and_one_sentence(rl, tmp_path):
    out, log = tmp_path / "run", tmp_path / "log"
    full = Trap(At("save", "checkpoints/*step_6/model.safetensors", 1, "half"), "ENOSPC", lasting=True)
    assert trials.run(rl.argv(out), log, full) == 2
    text = log.read_text().splitlines()[-1]
    assert text.startswith(f"error: the disk is full ({out}/") and "the last checkpoint is step_4" in text
    assert states.intact_checkpoints(out) == [2, 4]
    assert trials.run(rl.argv(out, "--resume"), log) == 0, log.read_text()
    states.assert_ended_like(out, rl.unbroken)
