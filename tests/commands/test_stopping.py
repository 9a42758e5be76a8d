"""Runs that stop on purpose, or are told to: what they save and say; going on gives the unbroken run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from present import QUIETLY
from recipes import FEW
from run_folders import exact_files

from hone.cli import main
from hone.loops.groups import GroupSampler
from hone.runs import Run


def line(model: Path, out: Path, *flags: str) -> list[str]:
    """The command line of one small run; later flags win."""
    base = f"--model.name {model} --output-dir {out} --max-steps 4 --seq-len 64 --display plain"
    base += " --orchestrator.batch-size 8 --orchestrator.rollouts-per-example 4"
    base += " --orchestrator.sampling.max-tokens 12 --trainer.micro-batch-tokens 40"
    return ["rl", *base.split(), "--orchestrator.env.args", FEW, *QUIETLY, *flags]


@pytest.fixture
def command(tiny_model_dir, tmp_path):
    return lambda *flags: line(tiny_model_dir, tmp_path / "out", *flags)


@pytest.fixture(scope="module")
def straight(tiny_model_dir, tmp_path_factory):
    """The unbroken run; read only."""
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    assert main(line(tiny_model_dir, folder)) == 0
    return folder


def test_a_token_budget_stops_in_time_and_a_larger_one_goes_on(command, straight, tmp_path, capsys):
    totals = Run(straight).metrics()["tokens/total"].to_pylist()
    limit = totals[1] + max(totals[0], totals[1] - totals[0]) - 1  # the third step might not fit
    capsys.readouterr()
    assert main(command("--budget.tokens", str(limit))) == 0
    out = tmp_path / "out"
    printed = capsys.readouterr().out.splitlines()
    assert f"after 2 of 4 steps ({totals[1]:,} of {limit:,} tokens). Saved: {out}/checkpoints/step_2" in printed[-2]
    assert printed[-1] == f"Go on with a larger one: hone rl @ {out}/config.toml --resume --budget.tokens {2 * limit}"
    assert Run(out).info["status"] == "budget" and Run(out).info["seconds"] > 0
    assert [line["step"] for line in Run(out).hashes()] == [0, 1, 2]
    assert main(["rl", "@", str(out / "config.toml"), "--resume", "--budget.tokens", str(limit)]) == 0
    assert "The budget is used up" in capsys.readouterr().out and not (out / "superseded").exists()
    assert Run(out).metrics()["step"].to_pylist() == [0, 1, 2]  # with the canary of the version that it stopped at
    assert main(["rl", "@", str(out / "config.toml"), "--resume", "--budget.tokens", "1000000"]) == 0
    assert exact_files(out) == exact_files(straight) and Run(out).info["exact"] is True


def wait_for_the_alarm() -> None:
    """SIGTERM, and a step that never ends by itself."""
    os.kill(os.getpid(), signal.SIGTERM)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        pass
    raise AssertionError("the step was not given up")


def test_a_step_that_outlasts_the_grace_period_is_given_up_and_taken_again(
    command, straight, tmp_path, monkeypatch, capfd
):
    sample = GroupSampler.sample

    def endless(self, examples, draws, step, early):
        if step == 2:
            wait_for_the_alarm()
        return sample(self, examples, draws, step, early)

    monkeypatch.setattr(GroupSampler, "sample", endless)
    assert main(command("--grace-seconds", "1.2")) == 143
    monkeypatch.undo()
    printed, out = capfd.readouterr().out, tmp_path / "out"
    saved = f"Saved: {out / 'checkpoints' / 'step_2'}\nGo on with: "
    assert saved in printed and printed.endswith(f"rl @ {out / 'config.toml'} --resume\n")
    assert "within 1.2 s, else the step is given up" in printed
    assert "The step can't be finished in time: saving the state before it." in printed
    assert Run(out).info["status"] == "stopped" and Run(out).checkpoints.steps() == [2]
    assert Run(out).metrics()["step"].to_pylist() == [0, 1]
    assert main([*command(), "--resume"]) == 0
    assert exact_files(out) == exact_files(straight)


def test_a_reader_that_leaves_does_not_end_the_run(command, tmp_path):
    hone = [sys.executable, "-m", "hone.cli", *command("--max-steps", "2")]
    process = subprocess.Popen(hone, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(600) in (0, 141)
    run = Run(tmp_path / "out")
    assert run.info["status"] == "done" and list(run.weights()) == [2]
