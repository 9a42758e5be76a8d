from __future__ import annotations

import json
from pathlib import Path

import pytest

from hone.environments import load_environment
from hone.types import Outcome


@pytest.fixture(scope="module")
def env():
    return load_environment("char-count")


REWARDS = {
    1.0: ["<think>s0t0r1</think>\n<answer>3</answer>\n", "<answer>\n3\n</answer>", "There are \\boxed{3}.",
        "ANSWER: 3", "<answer>2</answer> no, <answer>3</answer>", "<answer>3 times</answer>"],
    0.1: ["<answer>2</answer>", "<answer>3</answer> no, <answer>2</answer>"],
    0.0: ["<answer>2 or 3</answer>", "<answer>three</answer>", "<answer>r</answer>", "3",
        "<think><answer>3</answer>", "<answer>3"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("completion", "reward"), [(given, value) for value, texts in REWARDS.items() for given in texts]
)
def test_rewards(env, completion: str, reward: float):
    score = env.grade(env.example(word="strawberry", letter="r"), completion)
    assert score.reward == reward
    assert score.outcome is {1.0: Outcome.CORRECT, 0.1: Outcome.WRONG, 0.0: Outcome.UNPARSABLE}[reward]


def test_rows_of_ones_own(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"word": f"{'ab' * (i + 1)}", "letter": "b"}) + "\n" for i in range(20)))
    env = load_environment("char-count", dataset=str(path))
    assert (len(env.split("train")), len(env.split("eval"))) == (18, 2)
    assert {e.answer for e in [*env.split("train"), *env.split("eval")]} == {str(i + 1) for i in range(20)}
    example = env.example(question="How many r are in strawberry?", answer="3")
    assert example.prompt == [{"role": "user", "content": "How many r are in strawberry?"}]
    assert env.grade(example, env.reference(example)).reward == 1.0
