"""Tests of my-task. They pass as they are; when you change the task, change what is marked CHANGE."""

from itertools import islice

from hone.environments import load_environment

env = load_environment("my-task")


def test_rewards():
    example = env.example(letters="dbca")  # CHANGE: the columns of one row, and rewards of completions
    assert example.answer == "abcd"
    rewards = {"<answer>abcd</answer>": 1.0, "<answer>abdc</answer>": 0.1, "<answer>a, b</answer>": 0.0, "abcd": 0.0}
    for completion, reward in rewards.items():
        assert env.grade(example, completion).reward == reward, completion


def test_the_reference_deserves_full_marks():
    for split in ("train", "eval"):
        for example in islice(env.split(split), 100):
            score = env.grade(example, env.reference(example))
            assert (score.reward, score.outcome) == (1.0, "correct"), (example.prompt, score.detail)


def test_held_out_problems_are_others():
    ids = {split: {example.id for example in islice(env.split(split), 1000)} for split in ("train", "eval")}
    assert not ids["train"] & ids["eval"]
