"""Which completions a table has, and how they are shown."""

from __future__ import annotations

import json

import numpy as np
from monitored import row

from hone.runs.monitors.samples import COLUMNS, TEXT, chosen, cut
from hone.runs.rollouts import schema


def rewards(table):
    return [cells[COLUMNS.index("reward")] for cells in table]


def outcomes(table):
    return [cells[COLUMNS.index("outcome")] for cells in table]


def test_the_best_the_worst_the_median_and_one_of_each_outcome():
    rows = [row(i // 4, i / 16, "wrong") for i in range(16)]
    rows[3] |= {"outcome": "unparsable"}
    rows[15] |= {"outcome": "correct"}
    rows[9] |= {"reward": None, "outcome": "grader_error"}
    assert rewards(chosen(rows, 1)) == [15 / 16]
    assert rewards(chosen(rows, 2)) == [0.0, 15 / 16]
    assert rewards(chosen(rows, 3)) == [0.0, 7 / 16, 15 / 16]
    five = chosen(rows, 5)
    assert sorted(outcomes(five)) == ["correct", "grader_error", "unparsable", "wrong", "wrong"]
    assert rewards(five) == [0.0, 3 / 16, 7 / 16, None, 15 / 16]  # in the order of the step
    for count in range(20):
        table = chosen(rows, count)
        assert len(table) == min(count, 16) and table == chosen(rows, count)
        assert len({cells[3] for cells in table}) == len(table)


def test_one_group_does_not_fill_the_table():
    rows = [row(i // 4, 1.0 if i % 2 else 0.0, "correct" if i % 2 else "wrong", text=f"{i // 4}") for i in range(32)]
    assert len({cells[2] for cells in chosen(rows, 8)}) == 8  # eight of eight groups


def test_steps_without_a_graded_completion_have_a_table_too():
    rows = [row(i, None, "grader_timeout") for i in range(4)]
    assert outcomes(chosen(rows, 2)) == ["grader_timeout"] * 2
    assert chosen([], 8) == []


def test_long_texts_are_cut_with_a_mark():
    assert cut("x" * TEXT) == "x" * TEXT
    text = cut("a" * TEXT + "middle" + "z" * TEXT)
    assert text.startswith("a" * (TEXT // 2) + "\n[... 4006 characters left out ...]\n") and text.endswith(
        "z" * (TEXT // 2)
    )
    (cells,) = chosen([row(0, 1.0, "correct", text="y" * 10 * TEXT)], 1)
    assert len(cells[2]) < TEXT + 50


def test_rows_are_those_of_the_rollouts():
    """The keys that are read are columns of the rollouts; numbers as the loop has them."""
    assert row(0, 1.0, "correct").keys() <= set(schema().names)
    (cells,) = chosen(
        [row(0, np.float64(0.1) * 3, "wrong", advantage=np.float32(0.1), components={"a": 1.0, "b": 0.5})], 1
    )
    assert cells[3:] == [0.3, "a 1, b 0.5", "wrong", 0.1]
    assert json.loads(json.dumps(cells)) == cells
