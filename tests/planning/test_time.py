"""Seconds and dollars of a run: what they are in proportion to."""

from __future__ import annotations

import pytest

from hone.config.parse import parse
from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.planning.arithmetic import Lengths
from hone.planning.devices import DEVICES
from hone.planning.memory import weight_bytes
from hone.planning.shape import KNOWN
from hone.planning.time import times

SHAPE = KNOWN["qwen3-0.6b"]
H100 = DEVICES["h100"]


def sft(*flags: str) -> SFTConfig:
    return parse(SFTConfig, ["--data.path", "x.jsonl", "--max-steps", "10", *flags], "sft")


def rl(*flags: str) -> RLConfig:
    return parse(RLConfig, ["--orchestrator.env.id", "reverse-text", "--seq-len", "512", *flags], "rl")


def test_gpus_that_hone_does_not_use_make_no_step_faster() -> None:
    """One server samples whatever the number of GPUs; ranks share what is trained on; weights go through files."""
    lengths = Lengths(128, 256, 128, 384)
    one = times(rl().on_gpus(1), SHAPE, H100, lengths)
    many = times(rl().on_gpus(9), SHAPE, H100, lengths, gpus=9)
    assert many.sample == one.sample and many.evaluate == one.evaluate
    assert one.train / 8 < many.train < one.train
    assert many.other - one.other == pytest.approx(2 * weight_bytes(SHAPE, "bf16_linear") / 1e9)
    fixed = rl("--mode", "colocated").on_gpus(512)
    assert times(fixed, SHAPE, H100, lengths, gpus=512).step == one.step


def test_an_asynchronous_step_takes_as_long_as_its_slower_half() -> None:
    config = rl("--orchestrator.max-async-level", "1", "--mode", "split")
    both = times(config, SHAPE, H100, gpus=2)
    assert both.step == max(both.sample + both.grade, both.train + both.other)
    shared = times(config, SHAPE, H100, gpus=1)
    assert shared.step == both.sample + both.grade + both.train + both.other


def test_a_validation_is_a_forward_pass_of_what_is_held_out() -> None:
    told = times(sft("--no-data.pack", "--val.interval", "5"), SHAPE, H100, examples=640)
    assert told.evaluations == 3
    assert told.evaluate == pytest.approx(told.train / 3 * 32 / 16)  # 5 % of 640, a step has 16


def test_the_price_of_the_machine_is_that_of_all_its_gpus() -> None:
    assert times(sft(), SHAPE, H100, gpus=8).usd_per_hour == 8 * H100.usd_per_hour
    own = sft("--budget.hours", "9", "--budget.usd-per-hour", "12")
    assert times(own, SHAPE, H100, gpus=8).usd_per_hour == 12
    assert times(own, SHAPE, H100, gpus=8, usd_per_hour=20).usd_per_hour == 20
