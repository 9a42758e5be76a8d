from __future__ import annotations

import json
from pathlib import Path

import pytest

from hone import rng
from hone.environments import load_environment
from hone.types import Outcome


@pytest.fixture(scope="module")
def env():
    return load_environment("char-count")


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        ("<think>s0t0r1</think>\n<answer>3</answer>\n", 1.0),
        ("<answer>\n3\n</answer>", 1.0),
        ("There are \\boxed{3}.", 1.0),
        ("ANSWER: 3", 1.0),
        ("<answer>2</answer> no, <answer>3</answer>", 1.0),
        ("<answer>3 times</answer>", 1.0),
        ("<answer>2</answer>", 0.1),
        ("<answer>3</answer> no, <answer>2</answer>", 0.1),
        ("<answer>2 or 3</answer>", 0.0),
        ("<answer>three</answer>", 0.0),
        ("<answer>r</answer>", 0.0),
        ("3", 0.0),
        ("<think><answer>3</answer>", 0.0),
        ("<answer>3", 0.0),
    ],
)
def test_rewards(env, completion: str, reward: float):
    score = env.grade(env.example(word="strawberry", letter="r"), completion)
    assert score.reward == reward
    assert score.outcome is {1.0: Outcome.CORRECT, 0.1: Outcome.WRONG, 0.0: Outcome.UNPARSABLE}[reward]


def test_demonstrations_slip_as_often_as_documented():
    noisy = load_environment("char-count", demo_noise=1.0)
    steps = slips = 0
    for i in range(800):
        example = noisy.split("train")[i]
        shown = noisy.demonstrate(example, rng.stream(0, i))
        scratchpad, answer = shown.removeprefix("<think>").removesuffix("</answer>").split("</think><answer>")
        word, before = example.info["word"], 0
        assert scratchpad[::2] == word and scratchpad[-1] == answer
        for char, count in zip(scratchpad[::2], map(int, scratchpad[1::2]), strict=True):
            steps, slips = steps + 1, slips + (count - before != (char == example.info["letter"]))
            before = count
    assert slips / steps == pytest.approx(0.1, rel=0.12)


def test_rows_of_ones_own(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"word": f"{'ab' * (i + 1)}", "letter": "b"}) + "\n" for i in range(20)))
    env = load_environment("char-count", dataset=str(path))
    assert (len(env.split("train")), len(env.split("eval"))) == (18, 2)
    assert {e.answer for e in [*env.split("train"), *env.split("eval")]} == {str(i + 1) for i in range(20)}
    example = env.example(question="How many r are in strawberry?", answer="3")
    assert example.prompt == [{"role": "user", "content": "How many r are in strawberry?"}]
    assert env.grade(example, env.reference(example)).reward == 1.0
