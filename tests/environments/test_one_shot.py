from __future__ import annotations

import pytest

from hone.environments import MultiTurnEnv, load_environment
from hone.types import Outcome


@pytest.fixture(scope="module")
def task():
    return load_environment("gsm8k")


def test_the_chosen_examples_are_repeated_and_stay_what_they_were(task):
    env = load_environment("one-shot", task="gsm8k", examples=[7, 0], rows=5)
    split, of_task = env.split("train"), task.split("train")
    assert [split[i] for i in range(5)] == [of_task[i] for i in (7, 0, 7, 0, 7)]
    assert len(split) == 5 and split.where(1) == of_task.where(0)
    by_id = load_environment("one-shot", task="gsm8k", examples=[of_task[7].id, of_task[0].id], rows=5)
    assert list(by_id.split("train")) == list(split)
    assert list(env.split("eval"))[:20] == task.split("eval")[:20] and len(env.split("eval")) == 1000


def test_what_the_task_is_counts_in_the_digests():
    found = [
        load_environment("one-shot", task=name).digests(["train"])["environment"] for name in ("gsm8k", "math-problems")
    ]
    assert found[0] != found[1]


@pytest.mark.needs("sandbox")
def test_a_task_of_several_turns_stays_one():
    env = load_environment("one-shot", task="math-python", args={"max_turns": 3, "sandbox": "none"})
    assert isinstance(env, MultiTurnEnv) and (env.id, env.max_turns) == ("one-shot", 3)
    assert env.tool_schemas and env.tool_schemas[0]["function"]["name"] == "python"
    example = env.split("train")[0]
    assert env.grade(example, env.reference(example)).outcome is Outcome.CORRECT
