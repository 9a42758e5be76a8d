"""Completions are found by words and filters, whatever they hold, while files come and go."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from made_runs import row, write_run

from hone.errors import UserError
from hone.extensions.viewer.query import Query
from hone.extensions.viewer.store import Store, ask

HOSTILE = "' OR 1=1; DROP TABLE x; -- 100% a_b \\ \x00 </textarea><script>alert(1)</script> \u202e \U0001f600"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    steps = {
        0: [
            row(
                "Wait, let me check that.", reward=1.0, outcome="correct", advantage=1.5,
                components=[("format", 1.0), ("correctness", 1.0)],
            ),
            row("waiting room"),
            row(HOSTILE, outcome="unparsable", reward=0.0, components=[("format", 0.0)], advantage=0.0),
        ],
        3: [
            row("x" * 400, stop_reason="length", outcome="truncated", draw=1, group=0, example_id="e1"),
            row("ÄPFEL und wait\nlet me check", draw=1, group=0, example_id="e1"),
            row("it broke", reward=None, outcome="grader_error", state="failed", components=[], draw=2, group=1),
        ],
        7: [row("100 percent", state="filtered", advantage=0.0), row("a-b 10% aXb")],
    }  # fmt: skip
    return Store(write_run(tmp_path / "odd [a]*' ?" / "run", steps))


def found(store: Store, **asked) -> list[tuple[int, int]]:
    return [(one["step"], one["row"]) for one in store.search(Query(**asked)).rows]


def test_all_words_must_occur_in_any_case(store: Store) -> None:
    assert found(store, q="WAIT") == [(3, 1), (0, 0), (0, 1)]
    assert found(store, q="wait check") == [(3, 1), (0, 0)]
    assert found(store, q='"let me check"') == [(3, 1), (0, 0)]
    assert found(store, q="äpfel") == [(3, 1)]
    assert found(store, q=r"/\bwait\b/") == [(3, 1), (0, 0)]
    assert found(store, q=r"/^it .*ke$/") == [(3, 2)]
    with pytest.raises(UserError, match=r"/\(/ is not a regular expression .*missing \)"):
        found(store, q="/(/")
    assert found(store, q="nowhere") == [] and found(store, q="")[0] == (7, 0)


@pytest.mark.parametrize(
    "text", ["100%", "a_b", "' OR", "\\", "\x00", "</textarea>", "\u202e", "DROP TABLE", ".*\\", "\U0001f600", "--"]
)
def test_words_are_taken_literally(store: Store, text: str) -> None:
    expected = [(0, 2)] if text in HOSTILE else []
    assert found(store, q=f'"{text}"') == expected, "neither SQL nor LIKE nor an expression"


def test_filters_choose_by_value(store: Store) -> None:
    assert found(store, outcome="truncated") == [(3, 0)]
    assert found(store, advantage="positive") == [(0, 0)] and found(store, advantage="zero") == [(7, 0), (0, 2)]
    assert found(store, stop="length") == [(3, 0)] and found(store, state="failed") == [(3, 2)]
    assert found(store, reward_max=0.05) == [(0, 2)] and found(store, reward_min=0.5) == [(0, 0)]
    assert found(store, length_min=200) == [(3, 0)] and found(store, length_max=10) == [(3, 2)]
    assert found(store, example="e1") == [(3, 0), (3, 1)] and found(store, example="' OR 1=1 --") == []
    assert found(store, first=1, last=3) == [(3, 0), (3, 1), (3, 2)]


@pytest.mark.parametrize("damage", ["empty", "foreign", "torn", "garbled"])
def test_a_damaged_file_is_left_out_and_named(store: Store, damage: str) -> None:
    path = store.run.path / "rollouts" / "step_000003.parquet"
    whole = path.read_bytes()
    garbled = whole[:4] + os.urandom(len(whole) // 2 - 4) + whole[len(whole) // 2 :]
    path.write_bytes({"empty": b"", "foreign": b"PAR1" + b"x" * 100, "torn": whole[:1000], "garbled": garbled}[damage])
    result = store.search(Query(q="wait"))
    assert [(one["step"], one["row"]) for one in result.rows] == [(0, 0), (0, 1)]
    (sentence,) = result.skipped
    assert "step_000003.parquet is left out: it is damaged" in sentence


def test_new_and_changed_files_are_seen(store: Store) -> None:
    assert found(store, q="fresh") == []
    folder = store.run.path
    write_run(folder, {9: [row("fresh")]})
    assert found(store, q="fresh") == [(9, 0)]
    write_run(folder, {9: [row("another text")]})
    assert found(store, q="fresh") == [] and found(store, q="another") == [(9, 0)]


def test_files_of_older_runs_lack_a_column(store: Store) -> None:
    import pyarrow.parquet as pq

    path = store.run.path / "rollouts" / "step_000000.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["completion"]), path)
    assert found(store, q="wait") == [(3, 1), (0, 0), (0, 1)]
    assert store.rows(0)[0]["completion"] is None


def test_a_question_that_takes_too_long_is_ended() -> None:
    with pytest.raises(UserError, match=r"more than 0\.2 s"):
        ask("SELECT count(*) FROM range(100000000) a, range(100000) b WHERE a.range + b.range = $n", {"n": 7}, 0.2)
    assert ask("SELECT $n + 1 AS n", {"n": 1})["n"].tolist() == [2], "others are answered after it"


def test_questions_of_several_threads_are_answered(store: Store) -> None:
    answers: list[int] = []
    threads = [
        threading.Thread(target=lambda i=i: answers.append(store.search(Query(q=f"/wait{'.?' * i}/")).total))
        for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [3] * 8


def test_the_database_can_not_be_made_to_write_or_load_anything() -> None:
    settings = "'temp_directory', 'autoinstall_known_extensions', 'lock_configuration', 'memory_limit'"
    columns = ask(f"SELECT name, value FROM duckdb_settings() WHERE name IN ({settings})", {})
    output = dict(zip(*columns.values(), strict=True))
    assert output["temp_directory"] == "" and output["autoinstall_known_extensions"] == "false"
    assert output["lock_configuration"] == "true" and "MiB" in output["memory_limit"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ({"outcome": "good"}, "outcome cannot be 'good': give one of grader_error"),
        ({"reward_min": "much"}, "reward_min is 'much', which is not a number"),
        ({"first": "1.5"}, "first is '1.5', which is not a whole number"),
        ({"length_max": "1" * 30}, "give a smaller number"),
        ({"page": "0"}, "no page 0"),
        ({"q": "x" * 1001}, "1,001 characters"),
        ({"sort": "1; DROP TABLE x"}, "sort cannot be"),
    ],
)
def test_what_cannot_be_asked_costs_a_sentence(text: dict[str, str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Query.from_address(text)
