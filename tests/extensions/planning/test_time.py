"""Seconds and dollars of a run: what they are in proportion to."""

from __future__ import annotations

import pytest

from hone.config.parse import parse
from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.extensions.planning.arithmetic import Lengths
from hone.extensions.planning.devices import DEVICES
from hone.extensions.planning.time import times
from hone.inference.memory import kv_bytes_per_token
from hone.model.shape import KNOWN

SHAPE = KNOWN["qwen3-0.6b"]
H100 = DEVICES["h100"]


def sft(*flags: str) -> SFTConfig:
    return parse(SFTConfig, ["--data.path", "x.jsonl", "--max-steps", "10", *flags], "sft")


def test_a_step_on_an_h100() -> None:
    """Eight prompts of 128 tokens with 16 completions of 1,024, sampled at once: each token reads all weights."""
    flags = ["--orchestrator.env.id", "reverse-text", "--seq-len", "2048", "--inference.kv-gib", "40"]
    planned = times(parse(RLConfig, flags, "rl"), SHAPE, H100, Lengths(128, 1024, 128, 1024))
    weights = 28 * SHAPE.layer_matrices * 2 + SHAPE.embedding * 4
    cached = 128 * (8 / 128 * 128 + 512) * kv_bytes_per_token(SHAPE, "bf16_linear", "cuda")
    decode = (weights + cached) / (H100.bandwidth * 0.5) + 28 * 300e-6
    plain = times(
        parse(RLConfig, [*flags, "--no-inference.cuda-graphs"], "rl"), SHAPE, H100, Lengths(128, 1024, 128, 1024)
    )
    prefill = 8 * 128 * 2 * SHAPE.matrices / (989e12 * 0.25)
    assert plain.sample == pytest.approx(prefill + 1024 * decode)
    # With graphs nothing waits for a launch, and each completion reads a prompt of its own.
    cached = 128 * (128 + 512) * kv_bytes_per_token(SHAPE, "bf16_linear", "cuda")
    assert planned.sample == pytest.approx(prefill + 1024 * (weights + cached) / (H100.bandwidth * 0.5))
    assert planned.step == pytest.approx(planned.sample + planned.grade + planned.train + planned.other)
    assert planned.total == planned.start + 100 * planned.step


def test_a_validation_is_a_forward_pass_of_what_is_held_out() -> None:
    planned = times(sft("--no-data.pack", "--val.interval", "5"), SHAPE, H100, pool=640)
    assert planned.evaluations == 3
    assert planned.evaluate == pytest.approx(planned.train / 3 * 32 / 16)  # 5 % of 640, a step has 16


def test_the_price_is_that_of_the_flag_the_budget_or_the_table() -> None:
    assert times(sft(), SHAPE, H100).usd_per_hour == H100.usd_per_hour
    own = sft("--budget.hours", "9", "--budget.usd-per-hour", "12")
    assert times(own, SHAPE, H100).usd_per_hour == 12
    assert times(own, SHAPE, H100, usd_per_hour=20).usd_per_hour == 20
