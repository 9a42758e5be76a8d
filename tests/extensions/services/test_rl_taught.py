"""`hone rl` with a teacher: the policy comes nearer to it; the run is resumed, replayed and verified to the byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from real_server import Served, serving
from recorded import Bench
from refusals import fails
from states import lines, steps

from hone.cli import main
from hone.extensions.services.teacher import Teacher
from hone.model.hf import load_model
from hone.runs import Run

STEPS = 16


@pytest.fixture(scope="module")
def teacher(guesser: Path) -> Iterator[Served]:
    """A tiny model that was trained to say a digit and end its turn."""
    with serving(load_model(guesser, precision="fp32")) as served:
        yield served


@pytest.fixture(scope="module")
def student(bench: Bench) -> Path:
    """Such a model after a third of that training, from other weights."""
    argv = "--model.name hone/tiny --model.init.layers 1 --model.init.hidden 48 --data.env.id guessing --max-steps 20"
    argv += " --seed 1 --data.batch-size 16 --no-data.pack --data.seq-len 512 --optim.lr 5e-3 --precision fp32"
    bench.hone("sft", *argv.split(), "--display", "none", "--output-dir", "student")
    return bench.folder / "student" / "weights" / "step_20"


def flags(teacher: Served, *more: str) -> list[str]:
    argv = ["--teacher.base-url", f"{teacher.url}/v1", "--teacher.reward-coef", "0"]
    argv += ["--teacher.max-retries", "0", "--max-steps", str(STEPS), "--ckpt.interval", "4"]
    return [*argv, "--orchestrator.eval", "None", "--trainer.optim.lr", "3e-3", *more]


@pytest.fixture(scope="module")
def talk(student: Path) -> list[str]:
    """Flags of the student on a task of several turns."""
    argv = ["--model.name", str(student), "--orchestrator.env.id", "guessing", "--seq-len", "256"]
    return [*argv, "--orchestrator.batch-size", "16", "--orchestrator.sampling.max-tokens", "8"]


@pytest.fixture(scope="module")
def taught(bench: Bench, teacher: Served, talk: list[str]) -> Path:
    return bench.rl("taught", *flags(teacher), *talk)


def test_the_policy_comes_nearer_to_its_teacher(taught: Path, teacher: Served):
    told = lines(taught / "metrics.jsonl")[:STEPS]
    kl = [line["teacher/kl"] for line in told]
    assert np.mean(kl[:4]) > 0.4 and np.mean(kl[-4:]) < 0.5 * np.mean(kl[:4]), kl
    assert all(line["groups/trained"] == 4 for line in told)
    assert all(line["time/teacher"] > 0 for line in lines(taught / "timings.jsonl")[:STEPS])
    rows = Run(taught).rollouts(STEPS - 1).to_pylist()
    masks, logprobs, scores = (
        np.concatenate([row[name] for row in rows]) for name in ("sampled_mask", "logprobs", "teacher_logprobs")
    )
    assert not scores[~masks].any() and (scores[masks] < 0).mean() > 0.9
    assert kl[-1] == pytest.approx((logprobs - scores)[masks].mean(), abs=1e-5)
    cause = f"tokens are scored by the teacher at {teacher.url}/v1"
    assert Run(taught).info["inexact"] == [{"step": 0, "cause": cause}]


def test_it_is_replayed_and_verified_without_the_teacher(taught: Path, bench: Bench, monkeypatch, capsys):
    monkeypatch.setattr("hone.extensions.services.teacher.ServerClient", None)
    monkeypatch.chdir(bench.folder)
    assert main(["verify", str(taught), "--steps", str(STEPS)]) == 0
    shown = capsys.readouterr().out
    assert f"{STEPS} steps came out equal, bit for bit" in shown.replace(" and the evaluation at the end", "")
    assert "the teacher's scores of tokens are taken from the records" in shown
    assert main(["replay", str(taught)]) == 0
    assert "verdict       equal" in capsys.readouterr().out


def test_a_teacher_that_goes_away_costs_no_finished_step(bench: Bench, guesser: Path, monkeypatch, capsys):
    ask, asked = Teacher.__call__, list[int]()
    with serving(load_model(guesser, precision="fp32")) as served:

        def dying(self: Teacher, groups):
            asked.append(len(groups))
            if len(asked) == 3:
                served.stop()
            return ask(self, groups)

        with monkeypatch.context() as patch:
            patch.setattr(Teacher, "__call__", dying)
            capsys.readouterr()
            bench.rl("gone", *flags(served, "--max-steps", "4"), code=2)
        fails(capsys, 2, "is gone, or fails", "checkpoints/step_2; go on with: ", " --resume")
    out = bench.folder / "gone"
    assert Run(out).info["status"] == "failed" and steps(out / "metrics.jsonl") == [0, 1]
    monkeypatch.chdir(bench.folder)
    with serving(load_model(guesser, precision="fp32")) as other:
        again = ["rl", "@", "gone/config.toml", "--resume", "--teacher.base-url", f"{other.url}/v1"]
        assert main(again) == 0, "where the teacher is does not matter"
        assert main([*again, "--max-steps", "5", "--teacher.coef", "2"]) == 2, "its weight does"
    assert "teacher.coef (1.0, now 2.0)" in capsys.readouterr().err
    assert Run(out).info["status"] == "done" and steps(out / "metrics.jsonl") == [0, 1, 2, 3, 4]
