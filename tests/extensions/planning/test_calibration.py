"""A calibration takes real steps of the run in a scratch folder, and scales the plan to what they took."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hone.cli import call
from hone.config.parse import parse
from hone.config.rl import RLConfig
from hone.errors import UserError
from hone.extensions.planning.calibration import calibrate
from hone.extensions.planning.data import look_at
from hone.extensions.planning.devices import Device
from hone.extensions.planning.report import Plan, measured_words, plan_of
from hone.inference.memory import GIB

SMALL = "--model.name hone/tiny --model.init.layers 1 --model.init.hidden 48 --precision fp32"
RL = f"{SMALL} --max-steps 5 --seq-len 64 --orchestrator.batch-size 4 --orchestrator.rollouts-per-example 2"
RL += " --orchestrator.sampling.max-tokens 8 --orchestrator.eval.num-examples 4 --orchestrator.eval.interval 2"
SFT = f"{SMALL} --max-steps 4 --data.env.id reverse-text --data.seq-len 64 --data.batch-size 2 --no-data.pack"
CPU = Device("a CPU", "cpu", 16 * GIB, {"bf16": 4e11, "fp32": 1e11}, 3e10)


def rl(*flags: object) -> Plan:
    config = parse(RLConfig, [*RL.split(), *map(str, flags)], "rl")
    return plan_of(config, CPU, look_at(config))


def test_the_steps_of_rl_are_measured_and_the_rest_is_in_proportion(tmp_path: Path) -> None:
    plan = rl("--output-dir", tmp_path / "run", "--ckpt.interval", "1")
    found = calibrate(plan)
    assert 1 <= found.lengths.completion <= found.lengths.longest_completion <= 8
    usual, worst = found.usual, found.worst
    assert usual.sample > 0 and usual.train > 0 and usual.grade == worst.grade > 0
    assert plan.worst is not None and plan.memory is not None
    assert worst.evaluate / worst.sample == pytest.approx(plan.worst.evaluate / plan.worst.sample)
    assert usual.total == pytest.approx(usual.start + 5 * usual.step + 4 * usual.evaluate + usual.save)
    assert 150 * 2**20 < found.memory.total < 3 * GIB
    assert list(tmp_path.iterdir()) == []
    ((heading, lines),) = measured_words(plan, found)
    assert heading == "Measured here" and "the plan above says" in lines[0] and "(8 tokens)" in lines[2]


def test_sft_through_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [*SFT.split(), "--val.interval", "2", "--val.max-examples", "4", "--output-dir", str(tmp_path / "run")]
    assert call("plan", [*flags, "--calibrate", "--json"], "hone plan") == 0
    plan = json.loads(capsys.readouterr().out)
    found = plan["calibration"]
    assert plan["fits"] and found["memory"]["total"] > 150 * 2**20
    usual, worst = found["seconds"]["usual"], found["seconds"]["worst"]
    assert usual["train"] > 0 and usual["evaluate"] > 0
    ratio = worst["train"] / plan["seconds"]["worst"]["train"]
    assert worst["evaluate"] == pytest.approx(ratio * plan["seconds"]["worst"]["evaluate"])
    assert list(tmp_path.iterdir()) == []


def test_memory_that_runs_out_is_a_run_that_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*args: object, **more: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes")

    monkeypatch.setattr("hone.loops.parts.make_trainer", fail)
    argv = [*RL.split(), "--calibrate", "--output-dir", str(tmp_path / "run")]
    assert call("plan", argv, "hone plan") == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("out of memory (DefaultCPUAllocator") and "lower --trainer.micro-batch-tokens" in last
    assert call("plan", [*argv, "--json"], "hone plan") == 1
    assert json.loads(capsys.readouterr().out)["failed"] == last and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--orchestrator.env.id", "no-such-task"], "no-such-task"),
        (["--mode", "split"], "samples from a server without inference.batch_invariant: add --mode colocated"),
        (["--cluster"], "samples from a server without inference.batch_invariant"),
        (["--orchestrator.client.base-url", "http://localhost:1/v1"], "samples from the server at http://localhost:1"),
    ],
)
def test_what_can_not_be_measured(tmp_path: Path, flags: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        calibrate(rl("--output-dir", tmp_path / "run", *flags))
    assert list(tmp_path.iterdir()) == []
