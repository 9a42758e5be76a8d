"""`RL` in a program's own hands: the bytes of the command, and a run that can be resumed whatever happens."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from graders import gone
from present import NO_AUDIT
from processes import until
from run_folders import exact_files

from hone.errors import UserError
from hone.loops.rl import RL
from hone.runs import Run
from hone.runs.settings import about

COMMAND = ["rl", *NO_AUDIT]
SETTINGS = {
    "max_steps": 4,
    "seq_len": 64,
    "orchestrator.env.args": {"num_train_examples": 99},
    "orchestrator.batch_size": 8,
    "orchestrator.rollouts_per_example": 4,
    "orchestrator.sampling.max_tokens": 12,
    "orchestrator.eval.interval": 2,
    "orchestrator.eval.num_examples": 4,
    "trainer.optim.lr": 1e-3,
}
NO_ARGS = {"orchestrator.env.args": {}}


def resumed(out: Path, settings: dict) -> Path:
    with RL(**settings, output_dir=out, resume=True) as rl:
        rl.train()
    return out


def test_the_loop_in_ones_own_hands_has_the_bytes_of_the_command(settings, by_command, tmp_path):
    steps = []
    with RL(**settings, output_dir=tmp_path / "out") as rl:
        while not rl.done:
            groups = rl.sample()
            steps.append((rl.version, [group.draw for group in groups], rl.update(groups)["reward/mean"]))
    lines = [json.loads(line) for line in (by_command / "metrics.jsonl").read_text().splitlines()]
    assert steps == [(i, [2 * i, 2 * i + 1], lines[i]["reward/mean"]) for i in range(4)]
    assert exact_files(tmp_path / "out") == exact_files(by_command) and len(exact_files(by_command)) == 4 + 4 + 4 + 3
    assert rl.ending == "done" and Run(tmp_path / "out").info["status"] == "done"


@pytest.mark.needs("alarms", "audit", "split", "viewer")
def test_settings_that_decide_nothing_change_no_byte(settings, by_command, tmp_path):
    others = {"ckpt.interval": 3, "ckpt.background": False, "stop.metric": "reward/mean", "stop.above": 9.0}
    others |= {"budget.hours": 9, "grace_seconds": 9, "alarms.window": 3, "alarms.action": "off", "gap.action": "warn"}
    others |= {"report": False, "display": "plain", "audit": False, "restarts": 1, "transport.max_tokens": 9}
    others |= {"predict": ["reward/mean@2 > 0 p=0.9"], "orchestrator.grading.workers": 1, "inference.port": 9000}
    others |= {"orchestrator.grading.timeout": 60, "orchestrator.client.timeout": 9}
    assert {about(name).decides for name in others} == {"nothing"}
    with RL(**settings, **others, output_dir=tmp_path / "out") as rl:
        rl.train()
    assert exact_files(tmp_path / "out") == exact_files(by_command)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_program_that_has_switched_gradients_off_trains_all_the_same(mode, settings, by_command, tmp_path):
    with mode():
        with RL(**settings, output_dir=tmp_path / "out") as rl:
            while not rl.done:
                rl.step()
        assert not torch.is_grad_enabled(), "the program's own mode is as it was"
    assert exact_files(tmp_path / "out") == exact_files(by_command)


def test_a_reward_function_that_switches_gradients_off_changes_nothing(settings, tmp_path):
    def frozen(completion):
        torch.set_grad_enabled(False)
        return float(len(completion[-1]["content"]) % 2)

    task = {"dataset": [{"prompt": f"{i}+1="} for i in range(8)], "reward_funcs": [frozen]}
    try:
        with RL(**settings | NO_ARGS | {"max_steps": 2, "output_dir": tmp_path / "out"}, **task) as rl:
            trained = [rl.step() for _ in range(2)]
    finally:
        torch.set_grad_enabled(True)
    assert [step["optimizer/skipped"] for step in trained] == [0.0, 0.0]


GRADED_APART = """
import os
import time
import zlib
from pathlib import Path

from hone.environments import Rubric, SingleTurnEnv


def checksum(completion, prompt):
    Path(f"grading-{os.getpid()}").touch()
    while Path("busy").exists():
        time.sleep(0.01)
    return zlib.crc32(f"{prompt} {completion}".encode()) % 1000 / 1000


def load_environment():
    rows = [{"question": f"question {i}"} for i in range(8)]
    return SingleTurnEnv(rubric=Rubric([checksum]), dataset=rows, eval_dataset=rows)
"""


def test_what_is_graded_while_others_are_sampled_changes_no_byte(settings, tmp_path, monkeypatch):
    """Nor does an error in the midst of that."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "graded_apart", raising=False)
    Path("graded_apart.py").write_text(GRADED_APART)
    task = NO_ARGS | {"orchestrator.env.id": "graded-apart", "orchestrator.grading.workers": 2}
    for out in ("after", "while"):
        with RL(**settings | task, output_dir=out) as rl:
            if out == "after":
                rl.env.early_grading = lambda *_: nullcontext()
            rl.step()
            if out == "while":
                fail_while_grading(rl)
            rl.train()
    assert exact_files(Path("while")) == exact_files(Path("after"))
    assert len({row["reward"] for step in range(4) for row in Run("while").rollouts(step).to_pylist()}) > 16


def fail_while_grading(rl: RL) -> None:
    """Let the sampling of a step fail while both graders are at work: none goes on."""
    for file in Path().glob("grading-*"):
        file.unlink()
    Path("busy").touch()
    sample, pool = rl.policy.sample, rl.env._workers.pool

    def fail(requests, sampling, finished=None):
        turns = sample(requests, sampling, finished)
        if finished is None:
            return turns
        # A turn that is given again changes nothing, and lets this thread hear which rollouts have ended.
        until(lambda: finished(0, turns[0]) or len(list(Path().glob("grading-*"))) == 2)
        raise ZeroDivisionError

    rl.policy.sample = fail
    with pytest.raises(ZeroDivisionError):
        rl.sample()
    assert pool.pids == [] and all(gone(int(file.name.partition("-")[2])) for file in Path().glob("grading-*"))
    rl.policy.sample = sample
    Path("busy").unlink()


def test_compiled_kernels_make_no_run_exact(settings, tmp_path, monkeypatch):
    monkeypatch.setattr("hone.model.fusion.check_compiler", lambda _: None)
    with RL(**settings, output_dir=tmp_path, **{"model.compile": True}):
        pass
    info = Run(tmp_path).info
    assert (info["exact"], info["inexact"]) == (False, [{"step": 0, "cause": "model.compile"}])


def test_an_error_of_the_block_leaves_a_run_that_can_be_resumed(settings, by_command, tmp_path):
    with pytest.raises(ZeroDivisionError), RL(**settings, output_dir=tmp_path / "out") as rl:
        rl.step()
        rl.step()
        rl.sample()
        1 / 0  # noqa: B018
    info = Run(tmp_path / "out").info
    assert info["status"] == "failed" and info["failure"] == "ZeroDivisionError: division by zero"
    assert Run(tmp_path / "out").checkpoints.steps() == [2]
    assert exact_files(resumed(tmp_path / "out", settings)) == exact_files(by_command)
    assert "failure" not in Run(tmp_path / "out").info


def test_threads_and_kernels_are_set_and_put_back(settings, tmp_path):
    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(False)
    try:
        with RL(**settings, output_dir=tmp_path / "out", threads=1) as rl:
            assert torch.get_num_threads() == 1 and torch.are_deterministic_algorithms_enabled()
            rl.step()
        assert torch.get_num_threads() == 2 and not torch.are_deterministic_algorithms_enabled()
    finally:
        torch.set_num_threads(1)


def test_steps_need_an_open_run(settings, tmp_path):
    rl = RL(**settings, output_dir=tmp_path / "out")
    for action in (rl.sample, rl.train, rl.step, lambda: rl.done):
        with pytest.raises(UserError, match=r"with RL\(...\) as rl:"):
            action()


def test_each_of_several_tasks_can_be_evaluated_on(settings: dict, tmp_path: Path):
    envs = [{"id": "reverse-text", "name": "a"}, {"id": "char-count", "name": "b"}]
    with RL(**settings | NO_ARGS | {"orchestrator.envs": envs, "seq_len": 256, "output_dir": tmp_path / "out"}) as rl:
        found = [rl.evaluate(num_examples=2, **which) for which in ({}, {"task": "a"}, {"task": "b"})]
        assert [result.env_id for result in found] == ["reverse-text", "reverse-text", "char-count"]
        assert all(len(result.samples) == 2 for result in found)
        with pytest.raises(UserError, match="task 'c' is not one of 'a', 'b'"):
            rl.evaluate(task="c")
