"""What a run does, in words and numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from hone.config.parse import parse
from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.extensions.planning.arithmetic import Steps, retained_checkpoints

ROOT = Path(__file__).parents[3]


def rl(line: str) -> RLConfig:
    return parse(RLConfig, line.split(), "rl")


def test_the_first_run_on_gsm8k(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan that a public first run would have needed: 5,000 problems, each seen once, 16 completions a step."""
    monkeypatch.chdir(ROOT)
    config = rl("@ examples/gsm8k/v1_sparse.toml")
    plan = Steps.of(config)
    assert (plan.rows, plan.steps, plan.total, plan.draws, plan.epochs) == (16, 1250, 20_000, 5000, 1)
    assert plan.tokens_at_most == 16 * 1024 and plan.sampled_at_most == 16 * 512
    assert plan.words(config) == [
        "a step: 4 prompts x 4 rollouts = 16 completions, at most 8,192 new tokens, 16,384 with their prompts",
        "in all: 1,250 steps x 16 = 20,000 completions, at most 10,240,000 new tokens",
        "prompts drawn: 5,000; each of the 5,000 is seen once",
        "evaluations: 14 (step 0 and the end included) x 200 = 2,800 completions",
    ]
    assert plan.checkpoints == 13


@pytest.mark.parametrize(
    ("steps", "interval", "evaluations"), [(100, 50, 3), (100, 30, 5), (100, 100, 2), (100, 500, 2), (1, 1, 2)]
)
def test_evaluations_are_at_step_0_at_intervals_and_at_the_end(steps: int, interval: int, evaluations: int) -> None:
    assert Steps.of(rl(f"--max-steps {steps} --orchestrator.eval.interval {interval}")).evaluations == evaluations


@pytest.mark.parametrize(("turns", "sampled"), [(1, 1600), (2, 3200), (9, 16 * 255)])
def test_several_turns_sample_more_but_not_beyond_the_sequence(turns: int, sampled: int) -> None:
    config = rl("--seq-len 256 --orchestrator.sampling.max-tokens 100 --orchestrator.batch-size 16")
    assert Steps.of(config, turns=turns).sampled_at_most == sampled


def test_rows_of_sft() -> None:
    config = parse(SFTConfig, ["--data.path", "x.jsonl", "--max-steps", "10", "--val.interval", "4"], "sft")
    plan = Steps.of(config, pool=100, tokens=100_000)
    assert (plan.tokens_at_most, plan.total, plan.evaluations) == (16 * 4096, 160, 4)  # at 0, 4, 8 and the end
    assert plan.evaluated == 5 and Steps.of(config, pool=10**6).evaluated == 256
    assert plan.epochs == 10 * 16 * 4096 / 100_000
    assert plan.words(config)[0] == "a step: 16 rows of 4,096 tokens = 65,536 tokens"
    unpacked = parse(SFTConfig, ["--data.path", "x.jsonl", "--no-data.pack", "--max-steps", "10"], "sft")
    plan = Steps.of(unpacked, pool=40)
    assert plan.epochs == 4 and plan.words(unpacked)[2] == "data: each of 40 examples is seen 4.0 times"


@pytest.mark.parametrize(
    ("flags", "written", "retained"),
    [
        ("", 0, 0),
        ("--ckpt", 1, 1),
        ("--ckpt.interval 30", 4, 4),
        ("--ckpt.interval 10 --ckpt.keep-last 2", 10, 2),
        ("--ckpt.interval 10 --ckpt.keep-last 2 --ckpt.keep-interval 50", 10, 4),
    ],
)
def test_checkpoints_written_and_kept(flags: str, written: int, retained: int) -> None:
    config = rl(f"--max-steps 100 {flags}")
    assert (Steps.of(config).checkpoints, retained_checkpoints(config)) == (written, retained)
