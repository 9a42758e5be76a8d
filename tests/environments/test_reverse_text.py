from __future__ import annotations

import difflib
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hone.environments import load_environment
from hone.environments.data import split_words
from hone.types import Outcome


@pytest.fixture(scope="module")
def env():
    return load_environment("reverse-text")


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


def test_the_reward_is_the_ratcliff_obershelp_ratio_and_correct_means_exact(env):
    example = env.example(text="hello world")
    assert example.answer == "dlrow olleh"
    for answer in ("dlrow olleh", "dlrow oleh", "hello world", "xyz", "dlrow ollehh", "dlrow  olleh"):
        score = env.grade(example, f"Sure. <reversed_text>\n{answer}\n</reversed_text>")
        assert score.reward == difflib.SequenceMatcher(None, answer, "dlrow olleh", autojunk=False).ratio()
        right = answer == "dlrow olleh"
        assert score.outcome is (Outcome.CORRECT if right else Outcome.WRONG)
        assert score.components["exact"] == right and (score.reward == 1.0) == right


def test_long_texts_are_compared_without_the_junk_heuristic(env):
    text = "ab" * 150
    score = env.grade(env.example(text=text), f"<reversed_text>{text}</reversed_text>")
    assert score.reward == pytest.approx(2 * 299 / 600)


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
