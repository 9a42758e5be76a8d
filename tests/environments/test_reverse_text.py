from __future__ import annotations

import difflib
import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hone import rng
from hone.environments import load_environment
from hone.environments.words import common_words, split_words
from hone.errors import UserError
from hone.types import Outcome


@pytest.fixture(scope="module")
def env():
    return load_environment("reverse-text")


def test_the_word_list():
    words = common_words()
    assert 2000 < len(words) < 5000
    assert list(words) == sorted(set(words))
    assert all(3 <= len(w) <= 8 and w.isascii() and w.islower() and w.isalpha() for w in words)


def test_a_tenth_of_the_words_is_held_out():
    train, held_out = split_words()
    assert set(train) | set(held_out) == set(common_words())
    assert not set(train) & set(held_out)
    assert len(held_out) == round(len(common_words()) / 10)


@pytest.mark.parametrize("split", ["train", "eval"])
def test_phrases_hold_only_words_of_their_split(env, split: str):
    train, held_out = map(set, split_words())
    own, other = (train, held_out) if split == "train" else (held_out, train)
    lengths = Counter()
    for i in range(500):
        text = env.split(split)[i].info["text"]
        lengths[len(text)] += 1
        *whole, last = text.split(" ")
        assert set(whole) <= own
        assert last not in other and any(word.startswith(last) for word in own)
        assert text == text.strip()
    assert set(lengths) == set(range(8, 17))


def test_examples(env):
    assert (len(env.split("train")), len(env.split("eval"))) == (50_000, 1_000)
    example = env.split("train")[0]
    text = example.info["text"]
    instruction = "Reverse the text character-by-character. Put your answer in <reversed_text> tags."
    assert example.prompt == [{"role": "system", "content": instruction}, {"role": "user", "content": text}]
    assert example.answer == text[::-1]
    again = load_environment("reverse-text", num_train_examples=10).split("train")
    assert [again[i] for i in range(10)] == [env.split("train")[i] for i in range(10)]
    assert load_environment("reverse-text", seed=1).split("train")[0] != example


def test_the_first_phrases_are_fixed_for_ever(env):
    assert [env.split("train")[i].info["text"] for i in range(3)] == ["sections", "ate poss", "watch dan"]
    assert [env.split("eval")[i].info["text"] for i in range(3)] == ["facility l", "common r", "ignore hands sud"]


def test_the_reward_is_the_ratcliff_obershelp_ratio_and_correct_means_exact(env):
    example = env.example(text="hello world")
    assert example.answer == "dlrow olleh"
    for answer in ("dlrow olleh", "dlrow oleh", "hello world", "xyz", "dlrow ollehh", "dlrow  olleh"):
        score = env.grade(example, f"Sure. <reversed_text>\n{answer}\n</reversed_text>")
        assert score.reward == difflib.SequenceMatcher(None, answer, "dlrow olleh", autojunk=False).ratio()
        right = answer == "dlrow olleh"
        assert score.outcome is (Outcome.CORRECT if right else Outcome.WRONG)
        assert score.components["exact"] == right and (score.reward == 1.0) == right


def test_it_is_not_lcs(env):
    """bd is the longest common subsequence of abcd and bbda, worth 2·2/8; blocks found longest first hold one."""
    score = env.grade(env.example(text="adbb"), "<reversed_text>abcd</reversed_text>")
    assert score.reward == 0.25


def test_long_texts_are_compared_without_the_junk_heuristic(env):
    text = "ab" * 150
    score = env.grade(env.example(text=text), f"<reversed_text>{text}</reversed_text>")
    assert score.reward == pytest.approx(2 * 299 / 600)


def test_no_tag_is_unparsable_and_no_wrong_answer(env):
    example = env.example(text="hello")
    for text in ("olleh", "<reversed_text>olleh", "", "<reversed_text></reversed_text>"):
        score = env.grade(example, text)
        assert (score.outcome, score.reward) == (Outcome.UNPARSABLE, 0.0)
    assert "no <reversed_text>…</reversed_text> pair" in env.grade(example, "olleh").detail


def test_the_reference_deserves_full_marks_and_is_the_clean_demonstration(env):
    for i in range(100):
        example = env.split("eval")[i]
        score = env.grade(example, env.reference(example))
        assert (score.reward, score.outcome) == (1.0, Outcome.CORRECT)
        assert env.demonstrate(example, rng.stream(0, i)) == env.reference(example)


def demonstrations(noise: float, count: int = 4000) -> list[tuple[str, str]]:
    env = load_environment("reverse-text", demo_noise=noise)
    examples = [env.split("train")[i] for i in range(count)]
    return [(e.info["text"], env.demonstrate(e, rng.stream(0, "test", i))) for i, e in enumerate(examples)]


@pytest.mark.parametrize("noise", [1.0, 0.5])
def test_demonstrations_are_as_sloppy_as_documented(noise: float):
    shown = demonstrations(noise)
    opened = [d for _, d in shown if d.startswith("<reversed_text>")]
    whole = [d for d in opened if d.endswith("</reversed_text>")]
    assert len(shown) - len(opened) == pytest.approx(4000 * 0.15 * noise, rel=0.15)
    assert len(opened) - len(whole) == pytest.approx(4000 * 0.15 * noise, rel=0.15)
    closer_to_text = closer = changed = characters = 0
    for text, demonstration in shown:
        body = demonstration.removeprefix("<reversed_text>").removesuffix("</reversed_text>")
        forward = difflib.SequenceMatcher(None, body, text, autojunk=False)
        backward = difflib.SequenceMatcher(None, body, text[::-1], autojunk=False)
        closer_to_text += forward.ratio() > backward.ratio()
        closer += 1
        kept = max(forward, backward, key=lambda m: m.ratio())
        changed += sum(max(a2 - a1, b2 - b1) for tag, a1, a2, b1, b2 in kept.get_opcodes() if tag != "equal")
        characters += len(text)
    assert closer_to_text / closer == pytest.approx(0.3 * noise, rel=0.12)
    assert changed / characters == pytest.approx(0.1 * noise, rel=0.12)


def test_demonstrations_are_a_function_of_the_generator():
    env = load_environment("reverse-text", demo_noise=1.0)
    example = env.split("train")[5]
    shown = [env.demonstrate(example, np.random.default_rng(seed)) for seed in (1, 1, 2, 3, 4)]
    assert shown[0] == shown[1]
    assert len(set(shown)) > 2


def test_a_named_data_set_with_a_tenth_held_out(tmp_path: Path):
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": f"line {i}\n"}) + "\n" for i in range(50)))
    env = load_environment("reverse-text", dataset=str(path))
    assert (len(env.split("train")), len(env.split("eval"))) == (45, 5)
    example = env.split("train")[0]
    assert [m["role"] for m in example.prompt] == ["system", "user"]
    assert "<reversed_text> tags" in example.prompt[0]["content"]
    text = example.prompt[1]["content"]
    assert example.answer == text[::-1] and text == text.strip()
    train = {e.answer for e in env.split("train")}
    assert not train & {e.answer for e in env.split("eval")}


def test_the_columns_of_the_field(tmp_path: Path):
    rows = [
        {"prompt": "abc"},
        {"question": "abc", "answer": "cba"},
        {"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "abc"}], "completion": "ignored"},
    ]
    for row in rows:
        pq.write_table(pa.Table.from_pylist([row]), tmp_path / "d.parquet")
        path = str(tmp_path / "d.parquet")
        env = load_environment("reverse-text", dataset=path, eval_dataset=path, system_prompt="s")
        for split in ("train", "eval"):
            (example,) = env.split(split)
            expected = [{"role": "system", "content": "s"}, {"role": "user", "content": "abc"}]
            assert (example.prompt, example.answer) == (expected, "cba")


def test_a_row_without_text_is_named(tmp_path: Path):
    path = tmp_path / "texts.jsonl"
    path.write_text('{"text": "one"}\n{"words": "two"}\n')
    env = load_environment("reverse-text", dataset=str(path))
    with pytest.raises(UserError) as caught:
        env.split("train")
    assert str(caught.value) == f"{path}, line 2: no column 'text'; the columns there are 'words'"


def test_a_text_that_is_none_is_shown(tmp_path: Path):
    path = tmp_path / "texts.jsonl"
    path.write_text('{"text": 5}\n')
    with pytest.raises(UserError, match=r"line 1: 'text' must be non-empty text, not 5$"):
        load_environment("reverse-text", dataset=str(path)).split("train")


@pytest.mark.parametrize(
    ("kwargs", "why"),
    [
        ({"prompt": "Reverse it"}, "prompt is 'Reverse it'; it must contain {text}"),
        ({"demo_noise": 4}, "demo_noise is 4"),
        ({"demo_noise": -0.1}, "demo_noise is -0.1"),
        ({"demo_noise": "high"}, "demo_noise is 'high'"),
        ({"num_train_examples": 0}, "num_train_examples is 0; it must be at least 1"),
        ({"min_chars": "8"}, "min_chars is '8'; it must be a whole number"),
        ({"prompt": 5}, "reverse-text: prompt is 5; it must be text"),
        ({"dataset": 5}, "dataset is 5; it must be text"),
        ({"demo_noise": math.nan}, "demo_noise is nan"),
        ({"min_chars": 9, "max_chars": 8}, "max_chars is 8; it must be at least 9"),
    ],
)
def test_bad_arguments(kwargs: dict, why: str):
    with pytest.raises(UserError, match=why):
        load_environment("reverse-text", **kwargs)
