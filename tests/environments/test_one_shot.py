from __future__ import annotations

import pytest

from hone import rng
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


def test_without_a_choice_the_seed_chooses():
    def ids(**kwargs):
        env = load_environment("one-shot", task="gsm8k", rows=8, **kwargs)
        return [example.id for example in env.split("train")]

    assert ids(k=4) == ids(k=4) and len(set(ids(k=4))) == 4
    assert ids(k=4) != ids(k=4, seed=1)
    assert len(set(ids())) == 1


def test_grading_and_demonstrations_are_those_of_the_task(task):
    env = load_environment("one-shot", task="gsm8k", examples=[5], args={"mode": "sparse"})
    sparse = load_environment("gsm8k", mode="sparse")
    example = env.split("train")[0]
    assert env.demonstrate(example, rng.stream(0)) == env.reference(example) == sparse.reference(example)
    for text, outcome in ((env.reference(example), Outcome.CORRECT), ("1 2 3", Outcome.UNPARSABLE)):
        score, of_task = env.grade(example, text), sparse.grade(example, text)
        assert score.outcome is of_task.outcome is outcome and score.reward == of_task.reward


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
