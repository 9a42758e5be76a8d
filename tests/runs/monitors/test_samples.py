"""Which completions a table has, and how they are shown."""

from __future__ import annotations

from monitored import row

from hone.runs.monitors import COLUMNS, TEXT, chosen, cut


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


def test_long_texts_are_cut_with_a_mark():
    assert cut("x" * TEXT) == "x" * TEXT
    text = cut("a" * TEXT + "middle" + "z" * TEXT)
    assert text.startswith("a" * (TEXT // 2) + "\n[... 4006 characters left out ...]\n") and text.endswith(
        "z" * (TEXT // 2)
    )
    (cells,) = chosen([row(0, 1.0, "correct", text="y" * 10 * TEXT)], 1)
    assert len(cells[2]) < TEXT + 50
