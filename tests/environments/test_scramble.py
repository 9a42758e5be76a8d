from __future__ import annotations

import json
from pathlib import Path

import pytest
from scramble import anagrams, letters_of, read_word, scramble, split_words

from hone import rng
from hone.environments import load_environment
from hone.environments.words import common_words
from hone.errors import UserError
from hone.types import Outcome


@pytest.fixture(scope="module")
def env():
    return load_environment("scramble")


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        ("<answer>stop</answer>", 1.0),
        ("<answer>\n Stop. \n</answer>\n", 1.0),
        ('<answer>"**STOP**"</answer>', 1.0),
        ("\\boxed{stop}", 1.0),
        ("<answer>post</answer>", 1.0),
        ("<answer>spot</answer>", 1.0),
        ("<answer>psto</answer> Let me correct it. <answer>stop</answer>", 1.0),
        ("<answer>opst</answer>", 0.1),
        ("<answer>stops</answer>", 0.1),
        ("<answer>top</answer>", 0.1),
        ("<answer>table</answer>", 0.1),
        ("<answer>stop or post</answer>", 0.0),
        ("<answer>st op</answer>", 0.0),
        ("<answer>st0p</answer>", 0.0),
        ("stop", 0.0),
        ("<think><answer>stop</answer></think>", 0.0),
    ],
)
def test_any_anagram_in_the_word_list_is_right(env, completion: str, reward: float):
    score = env.grade(env.example(word="stop", scrambled="opts"), completion)
    assert score.reward == reward
    assert score.outcome is {1.0: Outcome.CORRECT, 0.1: Outcome.WRONG, 0.0: Outcome.UNPARSABLE}[reward]


def test_a_word_that_is_not_in_the_list_is_right_if_it_was_scrambled(env):
    example = env.example(word="Zyzzyva")
    assert (example.answer, letters_of(example.info["scrambled"])) == ("zyzzyva", "avyyzzz")
    assert env.example(answer="zyzzyva", info=example.info) == example
    assert env.grade(example, "<answer>zyzzyva</answer>").reward == 1.0
    assert env.grade(example, f"<answer>{example.info['scrambled']}</answer>").reward == 0.1


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


@pytest.mark.parametrize("split", ["train", "eval"])
def test_puzzles_are_of_their_split(env, split: str):
    short = load_environment("scramble", min_chars=3, max_chars=4)
    for task, longest in ((env, 8), (short, 4)):
        words = set(split_words(3, longest)[split == "eval"])
        seen = set()
        for i in range(200):
            example = task.split(split)[i]
            assert example.answer in words and example.info["scrambled"] in example.prompt[0]["content"]
            assert task.grade(example, task.reference(example)).reward == 1.0
            assert task.grade(example, task.reference(example)).outcome is Outcome.CORRECT
            seen.add(len(example.answer))
        assert seen == set(range(3, longest + 1))


def test_the_first_puzzles_are_fixed_for_ever(env):
    shown = [(env.split("train")[i].answer, env.split("train")[i].info["scrambled"]) for i in range(3)]
    assert shown == [("signal", "lsnagi"), ("friendly", "yirlfnde"), ("army", "ryam")]
    assert (len(env.split("train")), len(env.split("eval"))) == (50_000, 1_000)
    assert load_environment("scramble", seed=1).split("train")[0] != env.split("train")[0]


def test_prompt(env):
    plain = load_environment("scramble", format_hint=False).example(word="army", scrambled="ryam").prompt
    assert plain == [
        {"role": "user", "content": "The letters of an English word were scrambled into ryam. Which word is it?"}
    ]
    assert "<answer>" in env.example(word="army").prompt[0]["content"]


def test_demonstrations(env):
    noisy = load_environment("scramble", demo_noise=1.0, min_chars=6)
    wrong = 0
    for i in range(600):
        example = noisy.split("train")[i]
        shown = noisy.demonstrate(example, rng.stream(0, i))
        assert sorted(shown) == sorted(f"<answer>{example.answer}</answer>")
        wrong += shown != noisy.reference(example)
        assert env.demonstrate(example, rng.stream(0, i)) == env.reference(example)
    assert wrong / 600 == pytest.approx(0.3, rel=0.15)


def test_rows_of_ones_own(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"word": word}) + "\n" for word in common_words()[:40]))
    env = load_environment("scramble", dataset=str(path))
    assert (len(env.split("train")), len(env.split("eval"))) == (36, 4)
    assert env.split("train")[0] == load_environment("scramble", dataset=str(path)).split("train")[0]
    assert env.split("train")[0] != load_environment("scramble", dataset=str(path), seed=1).split("train")[0]
    example = env.example(question="What do o, p, s and t make?", answer="Stop")
    assert env.grade(example, "<answer>post</answer>").reward == 1.0


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"text": "sky"}, "no column 'word'"),
        ({"word": "two words"}, "'word' must be non-empty text, not 'two words'"),
        ({"word": "sky", "scrambled": "skz"}, "'skz' is not made of the letters of 'sky'"),
    ],
)
def test_bad_rows(env, row: dict, why: str):
    with pytest.raises(UserError, match=why):
        env.example(**row)


@pytest.mark.parametrize(
    ("kwargs", "why"),
    [
        ({"prompt": "unscramble"}, r"must contain \{letters\}"),
        ({"demo_noise": 4.0}, "demo_noise is 4.0"),
        ({"min_chars": 2}, "min_chars is 2; it must be at least 3"),
        ({"min_chars": 9, "max_chars": 9}, "the words of the list have at most 8 letters"),
        ({"max_chars": 2}, "max_chars is 2; it must be at least 3"),
    ],
)
def test_bad_arguments(kwargs: dict, why: str):
    with pytest.raises(UserError, match=why):
        load_environment("scramble", **kwargs)


@pytest.mark.parametrize(
    ("text", "word"), [("Word", "word"), ("`word`!", "word"), ("a b", None), ("", None), ("x2", None)]
)
def test_read_word(text: str, word: str | None):
    assert read_word(text) == word
