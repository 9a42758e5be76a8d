"""Contracts 1 and 2 for RL. Changing what is compared here is a decision to report, not a fix.

- The same config, seed and machine give the same bytes of metrics and rollouts, the same weights and the same ledger.
- A run that is killed by SIGKILL (while sampling, grading, updating, writing a checkpoint, exporting weights) and
resumed
  ends with the same bytes as the run that was never killed; each draw is in the ledger once.
"""

import json
from pathlib import Path

import pytest
import trials

STEPS = 6
PROMPTS, ROLLOUTS = 3, 4


def argv(model: Path, out: Path, precision: str, *more: str) -> list[str]:
    return [
        *("rl", "--model.name", str(model), "--output-dir", str(out), "--max-steps", str(STEPS), "--seed", "3"),
        *("--precision", precision, "--seq-len", "96", "--ckpt.interval", "2", "--trainer.optim.lr", "1e-3"),
        *("--orchestrator.batch-size", str(PROMPTS * ROLLOUTS), "--orchestrator.rollouts-per-example", str(ROLLOUTS)),
        *("--orchestrator.sampling.max-tokens", "16", "--orchestrator.env.id", "reverse-text"),
        *("--orchestrator.eval.interval", "3", "--orchestrator.eval.num-examples", "6", *more),
    ]


@pytest.fixture(scope="session")
def warm_model(tiny_model_dir, tmp_path_factory) -> Path:
    """A tiny model after a short SFT, so that rewards differ within a group and every step really updates."""
    out = tmp_path_factory.mktemp("warm")
    args = ["sft", "--model.name", str(tiny_model_dir), "--output-dir", str(out / "sft"), "--max-steps", "60"]
    args += ["--data.env.id", "reverse-text", "--data.batch-size", "16", "--no-data.pack", "--data.seq-len", "96"]
    args += ["--optim.lr", "3e-3", "--precision", "fp32"]
    assert trials.run(args, out / "log") == 0, (out / "log").read_text()
    return out / "sft" / "weights" / "step_60"


@pytest.fixture(scope="session", params=["fp32", "bf16_linear"])
def unbroken(request, warm_model, tmp_path_factory) -> tuple[str, Path]:
    out = tmp_path_factory.mktemp("unbroken")
    assert trials.run(argv(warm_model, out / "run", request.param), out / "log") == 0, (out / "log").read_text()
    return request.param, out / "run"


def test_a_run_really_trains(unbroken):
    _, run = unbroken
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(STEPS + 1))
    assert sum(line.get("groups/trained", 0) for line in lines) >= STEPS
    assert len({line["grad_norm"] for line in lines[:-1] if "grad_norm" in line}) >= STEPS - 1
    assert [line["step"] for line in lines if "eval/reverse-text/reward/mean" in line] == [0, 3, 6]
    assert all(line["logprob_gap/max"] < 5e-2 for line in lines if "logprob_gap/max" in line)


def test_the_same_config_and_seed_give_the_same_bytes(unbroken, warm_model, tmp_path):
    precision, run = unbroken
    assert trials.run(argv(warm_model, tmp_path / "run", precision), tmp_path / "log") == 0
    assert trials.fingerprint(tmp_path / "run") == trials.fingerprint(run)


def test_another_seed_gives_other_samples(unbroken, warm_model, tmp_path):
    precision, run = unbroken
    assert trials.run(argv(warm_model, tmp_path / "run", precision, "--seed", "4"), tmp_path / "log") == 0
    mine, other = trials.fingerprint(tmp_path / "run"), trials.fingerprint(run)
    assert mine.keys() == other.keys() and all(mine[name] != other[name] for name in mine if "rollouts" in name)


@pytest.mark.parametrize("event", trials.EVENTS)
def test_killed_and_resumed_equals_never_killed(event, unbroken, warm_model, tmp_path):
    precision, run = unbroken
    args = argv(warm_model, tmp_path / "run", precision)
    assert trials.run(args, tmp_path / "log", trials.EVENTS[event]) == -9, (tmp_path / "log").read_text()
    assert trials.fingerprint(tmp_path / "run") != trials.fingerprint(run)
    assert trials.run([*args, "--resume"], tmp_path / "log") == 0, (tmp_path / "log").read_text()
    assert trials.fingerprint(tmp_path / "run") == trials.fingerprint(run)


def test_each_draw_ends_in_the_ledger_once(unbroken):
    _, run = unbroken
    state = json.loads((run / "checkpoints" / f"step_{STEPS}" / "state.json").read_text())
    assert [entry["draw"] for entry in state["ledger"]] == list(range(STEPS * PROMPTS))
    assert {entry["state"] for entry in state["ledger"]} <= {"trained", "filtered"}
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert metrics[-2]["tokens/total"] == sum(entry["tokens"] for entry in state["ledger"])
