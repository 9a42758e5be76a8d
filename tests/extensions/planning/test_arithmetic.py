"""What a run does, in words and numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from hone import hardware
from hone.config.parse import parse
from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.extensions.planning.arithmetic import Steps, retained_checkpoints
from hone.extensions.planning.devices import DEVICES, device_named, this_device
from hone.hardware import ram


def rl(line: str) -> RLConfig:
    return parse(RLConfig, line.split(), "rl")


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


NAMES = {"h100": "h100", "RTX 4090": "rtx4090", "rtx-4090": "rtx4090", "24gb": "rtx4090", "48GB": "l40s"}
NAMES |= {"80": "h100", "141": "h200", "a100-80gb": "a100", "a100-40": "a100-40"}


@pytest.mark.parametrize("name", NAMES)
def test_devices_are_found_by_name_and_by_memory(name: str) -> None:
    assert device_named(name) == DEVICES[NAMES[name]]


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
