from __future__ import annotations

import json
from pathlib import Path

import pytest

from hone.environments import Rubric, SingleTurnEnv, TagParser, load_rows
from hone.errors import UserError

TAGS = TagParser("t")


def exact(completion, answer, parser):
    return float(parser.parse_answer(completion) == answer)


def make(func=exact, **kwargs) -> SingleTurnEnv:
    return SingleTurnEnv(rubric=Rubric([func]), parser=TAGS, id="toy", **kwargs)


def test_rows_become_examples():
    rows = [
        {"question": "2 + 2?", "answer": 4, "extra": "ignored"},
        {"prompt": "3 + 3?", "answer": "6", "info": {"n": [3, 3]}},
        {"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}], "answer": "x"},
        {"prompt": [{"role": "user", "content": "hi"}], "answer": "x", "info": '{"k": 1}'},
    ]
    read = []
    env = make(dataset=lambda: read.append(1) or rows, system_prompt="Think.")
    assert read == [], "data is read on first use"
    split = env.split("train")
    assert env.split("train")[0] == split[0] and read == [1]
    system = {"role": "system", "content": "Think."}
    assert split[0].prompt == [system, {"role": "user", "content": "2 + 2?"}]
    assert (split[0].answer, split[0].info) == ("4", {})
    assert split[1].info == {"n": [3, 3]}
    assert split[2].prompt == rows[2]["prompt"]
    assert (split[3].prompt, split[3].info) == ([system, {"role": "user", "content": "hi"}], {"k": 1})
    assert len(split) == 4 and split[-1] == split[3] and split[1:3] == [split[1], split[2]]


def test_a_missing_column_is_named_with_file_line_and_the_columns_there_are(tmp_path: Path):
    path = tmp_path / "d.jsonl"
    rows = [{"question": "q", "answer": "a"}, {"question": "q", "solution": "a"}]
    path.write_text("\n".join(map(json.dumps, rows)))
    env = make(dataset=lambda: load_rows(path))
    with pytest.raises(UserError) as caught:
        env.split("train")
    assert str(caught.value) == f"{path}, line 2: no column 'answer'; the columns there are 'question', 'solution'"
    with pytest.raises(UserError, match=r"toy \(train\), row 0: no column 'prompt' or 'question'"):
        make(dataset=[{"answer": "a"}]).split("train")


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"question": "q", "anwser": "a"}, "unknown column 'anwser'; the columns are prompt, question, answer, info"),
        ({"question": "q", "answer": "a", "info": "{"}, "'info' is text that is not JSON"),
        ({"question": "q", "answer": "a", "info": [1]}, "'info' is a list; give an object"),
        ({"prompt": [{"role": "user"}], "answer": "a"}, "'prompt' must be text or a list of messages"),
        ({"prompt": "", "answer": "a"}, "'prompt' must be non-empty text, not ''"),
        ({"question": "q", "answer": None}, "'answer' must be non-empty text, not None"),
        ({"question": "\ud800", "answer": "a"}, "half of a surrogate pair"),
        ({"question": "q", "answer": "a", "info": {"k": ["\ud800"]}}, "half of a surrogate pair"),
    ],
)
def test_bad_columns(columns: dict, why: str):
    with pytest.raises(UserError, match=why):
        make().example(**columns)


def test_missing_and_empty_splits():
    with pytest.raises(UserError, match="'toy' has no eval split; it has train"):
        make(dataset=[{"question": "q", "answer": "a"}]).split("eval")
    with pytest.raises(UserError, match="has no test split"):
        make(dataset=[{"question": "q", "answer": "a"}]).split("test")
    with pytest.raises(UserError, match="the train split of environment 'toy' is empty"):
        make(dataset=[]).split("train")
