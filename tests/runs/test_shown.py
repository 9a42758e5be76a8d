"""Tables that a notebook shows of a run and its samples."""

from __future__ import annotations

import copy

import pyarrow as pa

from hone.runs.shown import Samples, html_table, text_table

ROWS = [{"prompt": f"q{i}", "text": "<b>\x1b[31m" + "x" * 60, "reward": i / 3, "outcome": "wrong"} for i in range(12)]


def test_samples_are_the_arrow_table_and_are_shown_as_rows():
    table = pa.Table.from_pylist(ROWS)
    samples = Samples(table)
    assert samples == table and len(samples) == 12 and samples["reward"].to_pylist() == [i / 3 for i in range(12)]
    assert isinstance(samples.slice(0, 3), Samples) and samples.slice(0, 3).to_pylist() == ROWS[:3]
    assert pa.table(samples) == table and copy.copy(samples) == table and samples.schema == table.schema
    lines = repr(samples).splitlines()
    assert lines[0].split() == ["prompt", "text", "reward", "outcome"] and len(lines) == 1 + 10 + 1
    assert lines[2].startswith("q1") and "0.3333" in lines[2] and "\x1b" not in repr(samples)
    shown = samples._repr_html_()
    assert shown.count("<tr>") == 11 and "&lt;b&gt;" in shown and "<b>" not in shown


def test_a_cell_is_one_short_line_and_nothing_is_a_dash():
    rows = [{"a": "one\ntwo", "b": None}, {"a": "x" * 50, "b": 0.123456}]
    assert text_table(rows).splitlines()[1:] == ["one two" + " " * 35 + "-", "x" * 39 + "…  0.1235"]
    assert text_table([]) == "" and html_table([]) == "<table><tr></tr></table>"
