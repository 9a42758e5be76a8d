"""Against verifiers itself, which `make verifiers-env` installs into an environment of its own."""

from __future__ import annotations

import json
import math
import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from made import rl

from hone.cli import main
from hone.environments import Environment, load_environment
from hone.errors import UserError
from hone.extensions.libraries import verifiers
from hone.types import Outcome

FOLDER = Path(__file__).parent / "verifiers_tasksets"
pytestmark = pytest.mark.adapters


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "capitals.py").write_text((FOLDER / "capitals.py").read_text())
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def env() -> Iterator[Environment]:
    """The taskset `capitals`, in one process for all tests: importing verifiers takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(FOLDER)
        yield load_environment("verifiers:capitals")


def test_a_taskset_is_an_environment(env: Environment):
    assert (env.rubric.weights, env.rubric.correctness) == ({"exact": 2.0, "letters": 0.5}, "exact")
    example = env.example(index=3)
    assert example.prompt == [{"role": "system", "content": "You copy."}, {"role": "user", "content": "Write Cairo"}]
    assert example.answer == "Cairo"
    right = env.grade(example, "Cairo")
    assert (right.reward, right.components, right.outcome) == (3.0, {"exact": 1.0, "letters": 2.0}, Outcome.CORRECT)
    wrong = env.grade(example, "Cuzco")
    assert (wrong.reward, wrong.components, wrong.outcome) == (1.0, {"exact": 0.0, "letters": 2.0}, Outcome.WRONG)


def test_the_splits_share_no_prompt_and_are_the_same_each_time(here: Path):
    found = []
    for _ in range(2):
        env = load_environment("verifiers:capitals", copies=3, held_out=0.2)
        prompts = [{example.prompt[1]["content"] for example in env.split(name)} for name in ("train", "eval")]
        assert len(prompts[0]) == 8 and len(prompts[1]) == 2 and not prompts[0] & prompts[1]
        assert len(env.split("train")) + len(env.split("eval")) == 30
        found.append((prompts, env.digests(("train", "eval"))))
    assert found[0] == found[1]


def test_arguments_reach_the_taskset_and_wrong_ones_are_named(here: Path):
    env = load_environment("verifiers:capitals", polite=True, correctness="letters")
    assert env.rubric.correctness == "letters"
    assert env.example(index=0).prompt[1]["content"] == "Write Paris, please."
    for arguments, message in (
        ({"polit": True}, "does not take 'polit'"),
        ({"correctness": "speed"}, "is not one of its rewards exact, letters"),
        ({"held_out": 1.5}, "a share between 0 and 1"),
    ):
        with pytest.raises(UserError, match=message):
            load_environment("verifiers:capitals", **arguments)
    with pytest.raises(UserError, match=r"verifiers:nowhere cannot be loaded: .*nowhere"):
        load_environment("verifiers:nowhere")
    (here / "lacking.py").write_text("import nosuchlib\n")
    with pytest.raises(UserError, match=r"\(No module named 'nosuchlib'\)"):
        load_environment("verifiers:lacking")


@pytest.mark.parametrize(("text", "shown"), [("raise", "no such city"), ("nan", "nan"), ("call", "without network")])
def test_a_reward_that_fails_is_no_reward(env: Environment, text: str, shown: str):
    score = env.grade(env.example(index=0), text)
    assert score.outcome is Outcome.GRADER_ERROR and math.isnan(score.reward) and shown in score.detail


def test_a_reward_that_blocks_is_ended_and_the_next_is_scored(env: Environment, monkeypatch):
    monkeypatch.setattr(verifiers, "SCORE_SECONDS", 1)
    example = env.example(index=0)
    hung, fine = env.grade_many([(example, "wait"), (example, "Paris")])
    assert hung.outcome is Outcome.GRADER_TIMEOUT and "1 seconds of processor time" in hung.detail
    assert fine.outcome is Outcome.CORRECT


def test_tasks_are_loaded_again_after_the_process_was_killed(env: Environment):
    """As by a system that is short of memory, between two gradings."""
    example = env.example(index=3)
    assert env.grade(example, "Cairo").outcome is Outcome.CORRECT
    [keeper] = env._served._worker._pool.pids  # type: ignore[attr-defined]
    [process] = map(int, Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split())
    os.kill(process, signal.SIGKILL)
    readable = env._served._worker._pool._processes[0]._status  # type: ignore[attr-defined]
    assert select.select([readable], [], [], 10)[0]
    assert env.grade(example, "Cairo").outcome is Outcome.CORRECT


def test_other_tasks_after_a_process_was_ended_are_not_scored(here: Path, monkeypatch):
    """The process that takes the place of the ended one loads the tasks again, in another order by then."""
    env = load_environment("verifiers:capitals")
    example = env.split("train")[0]
    assert env.grade(example, example.answer).outcome is Outcome.CORRECT
    taskset = here / "capitals.py"
    taskset.write_text(taskset.read_text().replace('"Paris", "Rome"', '"Rome", "Paris"'))
    monkeypatch.setattr(verifiers, "SCORE_SECONDS", 1)
    assert env.grade(example, "wait").outcome is Outcome.GRADER_TIMEOUT
    score = env.grade(example, example.answer)
    assert score.outcome is Outcome.GRADER_ERROR and "loaded other tasks the second time" in score.detail


def test_what_scores_is_digested(here: Path, env: Environment):
    """The prompts stay; a reward function becomes stricter."""
    first, same = (made.digests(("train",)) for made in (env, load_environment("verifiers:capitals")))
    taskset = here / "capitals.py"
    taskset.write_text(taskset.read_text().replace("float(trace.last_reply == task.answer)", "0.0"))
    other = load_environment("verifiers:capitals").digests(("train",))
    assert first == same and first["verifiers"] and first.keys() == other.keys()
    assert [name for name in first if first[name] != other[name]] == ["taskset"]


TASKSET = """
import verifiers.v1 as vf

class Task(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    {body}

class Tasks(vf.Taskset[Task, vf.TasksetConfig]):
    def load(self):
        yield Task(vf.TaskData(idx=0, {data}), self.config.task)
        yield Task(vf.TaskData(idx=1, prompt="2"), self.config.task)

__all__ = ["Tasks"]
"""
REWARD = """@vf.reward
    async def exact(self, trace) -> float:
        return 1.0
    """
IMAGE = '[vf.UserMessage(content=[{"type": "image_url", "image_url": {"url": "data:,"}}])]'
REFUSED = {
    "container": (REWARD + "NEEDS_CONTAINER = True", 'prompt="1"', "need a container"),
    "user": (REWARD, 'prompt="1", agent_user="nobody"', "its own agent_user, which needs a container"),
    "image": (REWARD, f"prompt={IMAGE}", "more than text"),
    "rewardless": ("pass", 'prompt="1"', "no reward function"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_text_alone_does_not_do_is_refused_with_the_reason(here: Path, name: str):
    body, data, words = REFUSED[name]
    (here / f"{name}.py").write_text(TASKSET.format(body=body, data=data))
    with pytest.raises(UserError, match=words):
        load_environment(f"verifiers:{name}").split("train")


def test_eval_and_rl_run(here: Path, tiny_model_dir: Path, capfd):
    few = ["-n", "1", "-r", "2", "--max-tokens", "4"]
    assert main(["eval", "verifiers:capitals", "-m", str(tiny_model_dir), *few]) == 0, capfd.readouterr().err
    assert rl(tiny_model_dir, task="verifiers:capitals") == 0, capfd.readouterr().err
    metrics = json.loads(Path("outputs/metrics.jsonl").read_text().splitlines()[0])
    assert "reward/exact/mean" in metrics and "reward/letters/mean" in metrics
