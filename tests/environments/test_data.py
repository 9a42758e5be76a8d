from __future__ import annotations

import json
from datetime import date, datetime
from decimal import Decimal
from hashlib import blake2b
from pathlib import Path

import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hone.environments import Rubric, SingleTurnEnv, hold_out, load_rows
from hone.environments.data import Overlap, epoch_order, find_overlap, given_rows
from hone.errors import UserError

ROWS = [{"question": "a", "answer": "1"}, {"question": "b", "answer": "2", "info": {"k": 3}}]


def write_jsonl(path: Path, rows: list) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("name", "text", "places"),
    [
        ("d.jsonl", "{}\n\n{}", ["line 1", "line 3"]),
        ("d.jsonl", "\ufeff{}\n{}\n", ["line 1", "line 2"]),  # a byte order mark is no part of the data
        ("d.json", "[{}, {}]", ["element 0", "element 1"]),
    ],
)
def test_rows_are_what_was_written_and_know_their_place(tmp_path: Path, name: str, text: str, places: list[str]):
    path = tmp_path / name
    path.write_text(text.replace("{}", "%s") % tuple(map(json.dumps, ROWS)), encoding="utf-8")
    rows = load_rows(path)
    assert list(rows) == ROWS and rows[-1] == ROWS[1] and rows[0:2] == ROWS
    assert [rows.where(i) for i in range(2)] == [f"{path}, {place}" for place in places]
    with pytest.raises(IndexError):
        rows[2]


def test_a_missing_number_is_missing_in_every_format(tmp_path: Path):
    """Python's json writes NaN for a missing number of pandas; the answer was "nan", which no completion gives."""
    values = [1.0, float("nan")]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps({"answer": v, "info": {"n": [v]}}) + "\n" for v in values))
    pq.write_table(pa.table({"answer": values, "info": [{"n": [v]} for v in values]}), tmp_path / "d.parquet")
    given = given_rows([{"answer": v, "info": {"n": [v]}} for v in values], "dataset")
    assert load_rows(tmp_path / "d.parquet").where(1) == f"{tmp_path}/d.parquet, row 1"
    for rows in (load_rows(tmp_path / "d.jsonl"), load_rows(tmp_path / "d.parquet"), given):
        assert list(rows) == [{"answer": 1.0, "info": {"n": [1.0]}}, {"answer": None, "info": {"n": [None]}}]
    rows = [{"question": "a", "answer": float("nan")}]
    (tmp_path / "e.jsonl").write_text(json.dumps(rows[0]))
    env = SingleTurnEnv(id="e", rubric=Rubric([lambda answer: 1.0]), dataset=load_rows(tmp_path / "e.jsonl"))
    with pytest.raises(UserError, match=r"e.jsonl, line 1: 'answer' must be non-empty text, not None"):
        env.split("train")[0]


def test_a_table_of_pandas_gives_what_its_file_gives(tmp_path: Path):
    columns = {
        "prompt": [[{"role": "user", "content": "q"}]] * 2,
        "when": [datetime(2024, 1, 2, 3), None],
        "day": [date(2024, 1, 2)] * 2,
        "price": [Decimal("1.50")] * 2,
        "level": [5, None],
    }
    path = tmp_path / "d.parquet"
    pq.write_table(pa.table(columns), path)
    first = {"when": "2024-01-02 03:00:00", "day": "2024-01-02", "price": "1.50", "level": 5}
    first = {"prompt": columns["prompt"][0]} | first
    expected = [first, first | {"when": None, "level": None}]
    assert list(load_rows(path)) == list(given_rows(pandas.read_parquet(path), "dataset")) == expected


def test_shards_of_int_and_double_are_one_column(tmp_path: Path):
    for name, value in (("a", 1), ("b", 1.5)):
        pq.write_table(pa.table({"level": [value]}), tmp_path / f"{name}.parquet")
    assert [row["level"] for row in load_rows(tmp_path)] == [1.0, 1.5]


def test_a_folder_is_read_in_order_and_only_the_split_that_it_names(tmp_path: Path):
    write_jsonl(tmp_path / "plain" / "b.jsonl", ROWS[1:])
    write_jsonl(tmp_path / "plain" / "a.jsonl", ROWS[:1])
    assert list(load_rows(tmp_path / "plain")) == ROWS
    for name in ("train-00000.parquet", "train-00001.parquet", "test-00000.parquet"):
        (tmp_path / "hub").mkdir(exist_ok=True)
        pq.write_table(pa.table({"name": [name]}), tmp_path / "hub" / name)
    assert [row["name"] for row in load_rows(tmp_path / "hub")] == ["train-00000.parquet", "train-00001.parquet"]
    assert [row["name"] for row in load_rows(tmp_path / "hub", "test")] == ["test-00000.parquet"]


def test_the_hub_is_asked_for_what_is_no_path(monkeypatch: pytest.MonkeyPatch):
    import datasets

    asked = []

    def fake(name, config, split):
        asked.append((name, config, split))
        return datasets.Dataset.from_list([{"question": "a"}])

    monkeypatch.setattr(datasets, "load_dataset", fake)
    rows = load_rows("someone/something", "test")
    assert (asked, rows[0], rows.where(0)) == (
        [("someone/something", None, "test")],
        {"question": "a"},
        "someone/something (test), row 0",
    )
    load_rows("someone/something:main")
    assert asked[1:] == [("someone/something", "main", "train")]


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("d.jsonl", b"", "holds no rows"),
        ("d.jsonl", b"\n\n", "holds no rows"),
        ("d.json", b"[]", "holds no rows"),
        ("d.jsonl", b'{"a": 1}\n{"a": 2\n', "line 2: not valid JSON"),
        ("d.jsonl", b"[1]\n", "line 1: a list, but a row must be a JSON object"),
        ("d.json", b'[{"a": 1},\n {]', "line 2: not valid JSON"),
        ("d.jsonl", b"\xff\xfe", "UTF-8"),
        ("d.jsonl", b'{"a": "\\ud83d\\ude00"}\n{"a": ["\\uD800"]}\n', "line 2: a text holds half of a surrogate pair"),
        ("d.parquet", b"PAR?", "cannot be read as Parquet"),
    ],
)
def test_unreadable_files(tmp_path: Path, name: str, content: bytes, why: str):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=why) as caught:
        load_rows(tmp_path / name)
    assert name in str(caught.value) and "\n" not in str(caught.value)


def test_hold_out_keeps_equal_keys_on_one_side_and_ignores_the_order(tmp_path: Path):
    texts = [f"text {i % 40}" for i in range(100)]
    rows = load_rows(write_jsonl(tmp_path / "d.jsonl", [{"text": t} for t in texts]))
    back = load_rows(write_jsonl(tmp_path / "r.jsonl", [{"text": t} for t in reversed(texts)]))
    train, held_out = hold_out(rows, lambda row: row["text"])
    train_texts, eval_texts = {r["text"] for r in train}, {r["text"] for r in held_out}
    assert (len(train) + len(held_out), len(eval_texts)) == (100, 4)
    assert eval_texts == set(sorted(set(texts), key=lambda text: blake2b(text.encode(), digest_size=8).digest())[:4])
    assert not train_texts & eval_texts
    assert {r["text"] for r in hold_out(back, lambda row: row["text"])[1]} == eval_texts
    first = held_out[0]["text"]
    assert held_out.where(0) == f"{tmp_path}/d.jsonl, line {texts.index(first) + 1}"


def test_the_order_is_fixed_for_ever():
    """A checkpoint stores the number of draws only: another order would make it resume elsewhere."""
    assert epoch_order(8, 0, 0).tolist() == [7, 3, 0, 1, 2, 6, 5, 4]
    assert epoch_order(8, 0, 3).tolist() == [0, 5, 1, 3, 2, 6, 4, 7]
    assert sorted(epoch_order(50, 1, 0)) == [*range(50)] and [*epoch_order(50, 1, 0)] != [*epoch_order(50, 0, 0)]


def right(completion, answer) -> float:
    return 1.0


def overlap(train: list[dict], held_out: list[dict], indices=None) -> Overlap:
    env = SingleTurnEnv(rubric=Rubric([right]), dataset=train, eval_dataset=held_out)
    return find_overlap(
        env.split("train"), env.split("eval"), range(len(train)) if indices is None else indices, range(len(held_out))
    )


def pairs(*texts: str) -> list[dict]:
    return [{"question": pair[0], "answer": pair[1:]} for pair in texts]


@pytest.mark.parametrize(
    ("train", "held_out", "indices", "found"),
    [
        ("a1 b2 c3 b5 d4", "x0 b2 d9 b2", None, Overlap(5, 4, rows=(1, 3, 4), identical=1, pair=(1, 1))),
        ("a1 b2", "c1 d2", None, Overlap(2, 2)),
        ("a1 b2 c3", "a1 b2 c3", [2, 0], Overlap(2, 3, rows=(0, 2), identical=2, pair=(0, 0))),
    ],
)
def test_equal_prompts_are_found_whatever_the_answer_in_the_named_rows(train, held_out, indices, found):
    assert overlap(pairs(*train.split()), pairs(*held_out.split()), indices) == found
