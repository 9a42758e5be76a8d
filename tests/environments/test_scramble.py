from __future__ import annotations

import json
from pathlib import Path

import pytest
from scramble import anagrams, letters_of, scramble, split_words

from hone import rng
from hone.environments import load_environment
from hone.environments.data import common_words
from hone.types import Outcome


@pytest.fixture(scope="module")
def env():
    return load_environment("scramble")


REWARDS = {
    1.0: ["<answer>stop</answer>", "<answer>\n Stop. \n</answer>\n", '<answer>"**STOP**"</answer>', "\\boxed{stop}",
        "<answer>post</answer>", "<answer>spot</answer>",
        "<answer>psto</answer> Let me correct it. <answer>stop</answer>"],
    0.1: ["<answer>opst</answer>", "<answer>stops</answer>", "<answer>top</answer>", "<answer>table</answer>"],
    0.0: ["<answer>stop or post</answer>", "<answer>st op</answer>", "<answer>st0p</answer>", "stop",
        "<think><answer>stop</answer></think>"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("completion", "reward"), [(given, value) for value, texts in REWARDS.items() for given in texts]
)
def test_any_anagram_in_the_word_list_is_right(env, completion: str, reward: float):
    score = env.grade(env.example(word="stop", scrambled="opts"), completion)
    assert score.reward == reward
    assert score.outcome is {1.0: Outcome.CORRECT, 0.1: Outcome.WRONG, 0.0: Outcome.UNPARSABLE}[reward]


def test_every_word_of_the_list_is_scrambled_into_no_word():
    words = set(common_words())
    for word in common_words():
        scrambled = scramble(word, rng.stream(0, word))
        assert sorted(scrambled) == sorted(word) and scrambled not in words
        assert word in anagrams()[letters_of(scrambled)]
    assert scramble("aaa", rng.stream(0)) == "aaa"


def test_words_of_the_same_letters_are_on_the_same_side():
    train, held_out = split_words(3, 8)
    assert set(train) | set(held_out) == set(common_words())
    assert not set(map(letters_of, train)) & set(map(letters_of, held_out))
    assert len(held_out) == pytest.approx(len(common_words()) / 10, rel=0.05)
    assert set(split_words(3, 4)[1]) == {word for word in held_out if len(word) <= 4}


def test_rows_of_ones_own(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"word": word}) + "\n" for word in common_words()[:40]))
    env = load_environment("scramble", dataset=str(path))
    assert (len(env.split("train")), len(env.split("eval"))) == (36, 4)
    assert env.split("train")[0] == load_environment("scramble", dataset=str(path)).split("train")[0]
    assert env.split("train")[0] != load_environment("scramble", dataset=str(path), seed=1).split("train")[0]
    example = env.example(question="What do o, p, s and t make?", answer="Stop")
    assert env.grade(example, "<answer>post</answer>").reward == 1.0
