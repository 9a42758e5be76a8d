"""What a run does, in words and numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from hone import hardware
from hone.config.parse import parse
from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.errors import UserError
from hone.extensions.planning.arithmetic import Lengths, Steps, retained_checkpoints
from hone.extensions.planning.devices import DEVICES, device_named, this_device
from hone.extensions.planning.time import times
from hone.hardware import ram
from hone.inference.memory import kv_bytes_per_token
from hone.model.shape import KNOWN

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


NAMES = {"h100": "h100", "RTX 4090": "rtx4090", "rtx-4090": "rtx4090", "24gb": "rtx4090", "48GB": "l40s"}
NAMES |= {"80": "h100", "141": "h200", "a100-80gb": "a100", "a100-40": "a100-40"}


@pytest.mark.parametrize("name", NAMES)
def test_devices_are_found_by_name_and_by_memory(name: str) -> None:
    assert device_named(name) == DEVICES[NAMES[name]]


def test_an_unknown_device_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"'h1000' is not a known device: did you mean h100\?"):
        device_named("h1000")


def test_this_machine_has_memory_and_speed() -> None:
    device = this_device("cpu")
    assert device.kind == "cpu" and device.free is not None and 0 < device.free <= device.memory * 1.1
    assert min(device.flops.values()) > 1e8 and device.bandwidth > 1e8
    assert this_device("cpu", measured=False).flops == {}


def test_a_limit_of_the_control_group_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "CGROUP", tmp_path)
    monkeypatch.setattr(hardware, "resident_bytes", lambda: 0)
    (tmp_path / "memory.current").write_text(f"{100 * 2**20}\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert ram()[0] > 300 * 2**20
    (tmp_path / "memory.max").write_text(f"{300 * 2**20}\n")
    assert ram() == (300 * 2**20, 200 * 2**20)
    (tmp_path / "memory.stat").write_text(f"file {90 * 2**20}\ninactive_file {60 * 2**20}\n")
    assert ram() == (300 * 2**20, 260 * 2**20), "files in the cache make room when it is wanted"
