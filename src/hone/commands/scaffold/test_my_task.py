"""Tests of my-task. They pass as they are; when you change the task, change what is marked CHANGE."""

from itertools import islice

import numpy as np

from hone.environments import load_environment

env = load_environment("my-task")


def test_rewards():
    example = env.example(letters="dbca")  # CHANGE: the columns of one row, and what completions of it are worth
    assert example.answer == "abcd"
    rewards = {
        "<answer>abcd</answer>": 1.0,
        "First a, then b: <answer>\nabcd\n</answer>": 1.0,
        "<answer>abdc</answer>": 0.1,
        "<answer>a, b, c, d</answer>": 0.0,
        "abcd": 0.0,
        "": 0.0,
    }
    for completion, reward in rewards.items():
        assert env.grade(example, completion).reward == reward, completion


def test_the_reference_deserves_full_marks():
    for split in ("train", "eval"):
        for example in islice(env.split(split), 100):
            score = env.grade(example, env.reference(example))
            assert (score.reward, score.outcome) == (1.0, "correct"), (example.prompt, score.detail)


def test_problems_are_fixed_by_the_seed_and_held_out_ones_are_others():
    ids = {split: [example.id for example in islice(env.split(split), 1000)] for split in ("train", "eval")}
    again = load_environment("my-task")
    assert [example.id for example in islice(again.split("train"), 1000)] == ids["train"]
    assert not set(ids["train"]) & set(ids["eval"])


def test_the_teacher_is_right_only_sometimes():
    teacher = load_environment("my-task", demo_noise=1.0)
    examples = list(islice(teacher.split("train"), 400))
    rng = np.random.default_rng(0)
    right = [teacher.grade(example, teacher.demonstrate(example, rng)).outcome == "correct" for example in examples]
    assert 0.4 < np.mean(right) < 0.8  # CHANGE: RL has something to learn between never and always right
