from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from hone import rng
from hone.environments import load_environment
from hone.environments.words import split_words
from hone.errors import UserError
from hone.types import Outcome


@pytest.fixture(scope="module")
def env():
    return load_environment("char-count")


@pytest.mark.parametrize(
    ("word", "letter", "count"), [("strawberry", "r", "3"), ("Banana", "A", "3"), ("sky", "a", "0")]
)
def test_the_answer_is_the_count(env, word: str, letter: str, count: str):
    example = env.example(word=word, letter=letter)
    assert example.answer == count
    assert env.example(answer=count, info={"word": word, "letter": letter}) == example


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


@pytest.mark.parametrize("split", ["train", "eval"])
def test_questions_are_about_words_of_their_split(env, split: str):
    words = set(split_words()[split == "eval"])
    counts: Counter[str] = Counter()
    offered: Counter[str] = Counter()
    for i in range(600):
        example = env.split(split)[i]
        word, letter = example.info["word"], example.info["letter"]
        assert word in words and example.answer == str(word.count(letter))
        counts[example.answer] += 1
        there = {word.count(char) for char in "abcdefghijklmnopqrstuvwxyz"}
        offered.update({str(count): 1 / len(there) for count in there})
        assert env.grade(example, env.reference(example)).reward == 1.0
    for count in "012":
        assert counts[count] == pytest.approx(offered[count], rel=0.25), "each count that a word offers is as likely"


def test_the_first_questions_are_fixed_for_ever(env):
    assert [tuple(env.split("train")[i].info.values()) for i in range(3)] == [
        ("events", "e"),
        ("relate", "e"),
        ("ensure", "e"),
    ]
    assert (len(env.split("train")), len(env.split("eval"))) == (50_000, 1_000)
    assert load_environment("char-count", seed=1).split("train")[0] != env.split("train")[0]


def test_words_are_run_together_if_wished():
    train = split_words()[0]
    word = load_environment("char-count", words=3).split("train")[0].info["word"]
    assert (
        any(word.startswith(a) and word.endswith(c) for a in train for c in train if word.startswith(a))
        and len(word) >= 9
    )


def test_prompt(env):
    plain = load_environment("char-count", format_hint=False).example(word="sky", letter="k").prompt
    assert plain == [{"role": "user", "content": "How many times does the letter k occur in the word sky?"}]
    hint = env.example(word="sky", letter="k").prompt[0]["content"].removeprefix(plain[0]["content"])
    assert "<answer>" in hint
    short = load_environment("char-count", prompt="{word} {letter}", format_hint=False, system_prompt="Count.")
    messages = [{"role": "system", "content": "Count."}, {"role": "user", "content": "sky k"}]
    assert short.example(word="sky", letter="k").prompt == messages


def test_the_reference_counts_on_a_scratchpad(env):
    example = env.example(word="banana", letter="a")
    assert env.reference(example) == "<think>b0a1n1a2n2a3</think><answer>3</answer>"
    assert env.demonstrate(example, rng.stream(0)) == env.reference(example)


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


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"word": "sky"}, "no column 'letter'"),
        ({"letter": "k"}, "no column 'word'"),
        ({"word": 5, "letter": "k"}, "'word' must be non-empty text, not 5"),
        ({"word": "sky", "letter": "sk"}, "letter is 'sk'; it must be one character"),
    ],
)
def test_bad_rows(env, row: dict, why: str):
    with pytest.raises(UserError, match=why):
        env.example(**row)


@pytest.mark.parametrize(
    ("kwargs", "why"),
    [
        ({"prompt": "{word}"}, r"must contain \{letter\}"),
        ({"demo_noise": 11.0}, "demo_noise is 11.0"),
        ({"words": 0}, "words is 0; it must be at least 1"),
        ({"num_eval_examples": 0}, "num_eval_examples is 0"),
    ],
)
def test_bad_arguments(kwargs: dict, why: str):
    with pytest.raises(UserError, match=why):
        load_environment("char-count", **kwargs)
