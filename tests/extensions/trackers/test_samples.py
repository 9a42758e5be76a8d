"""Which completions a table has, and how they are shown."""

from __future__ import annotations

from monitored import row

from hone.extensions.trackers.trackers import COLUMNS, TEXT, chosen, cut


def test_the_best_the_worst_and_some_between_are_chosen():
    rows = [row(i // 4, i / 16, "wrong") for i in range(16)] + [row(4, None, "grader_error")]
    for count, rewards in ((0, []), (1, [15 / 16]), (2, [15 / 16, None]), (3, [15 / 16, 7 / 16, None])):
        assert [cells[COLUMNS.index("reward")] for cells in chosen(rows, count)] == rewards
    assert len(chosen(rows, 99)) == 17


def test_long_texts_are_cut_with_a_mark():
    assert cut("x" * TEXT) == "x" * TEXT
    text = cut("a" * TEXT + "middle" + "z" * TEXT)
    assert text == "a" * (TEXT // 2) + "\n[... 4006 characters left out ...]\n" + "z" * (TEXT // 2)
    (cells,) = chosen([row(0, 1.0, "correct", text="y" * 10 * TEXT)], 1)
    assert len(cells[2]) < TEXT + 50
