"""Small charts as SVG: where values lie, gaps, spikes of long lines, and that labels are only text."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from hone.pages.lines import MOST, Line, Points, Scale, chart


def drawn(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def paths(svg: str) -> list[list[tuple[float, float]]]:
    """The points of each line."""
    found = re.findall(r'd="M([\d. L-]+)" fill="none" style', svg)
    return [[tuple(map(float, point.split())) for point in path.split("L")] for path in found]


def test_values_lie_where_the_axes_say() -> None:
    svg = chart([Line([0, 5, 10], [0.0, 0.5, 1.0])], x_label="step", y_label="reward")
    ((left, middle, right),) = paths(svg)
    ticks = {text.text: float(text.attrib["y"]) - 4 for text in drawn(svg) if text.attrib.get("text-anchor") == "end"}
    assert left[1] == pytest.approx(ticks["0"], abs=0.1) and right[1] == pytest.approx(ticks["1"], abs=0.1)
    assert middle[0] == pytest.approx((left[0] + right[0]) / 2) and middle[1] == pytest.approx(ticks["0.5"], abs=0.1)


def test_a_gap_parts_a_line_and_a_lone_value_is_a_dot() -> None:
    svg = chart([Line(range(7), [1.0, 2.0, None, 3.0, math.nan, 4.0, 5.0])])
    assert [len(path) for path in paths(svg)] == [2, 2] and svg.count("<circle") == 1


def test_a_long_line_keeps_its_spikes() -> None:
    values = [0.5] * 20_000
    values[12_345], values[777] = 9.0, -3.0
    svg = chart([Line(range(20_000), values)])
    (path,) = paths(svg)
    heights = [y for _, y in path]
    assert len(path) <= MOST and len(svg) < 40_000
    assert heights.count(min(heights)) == 1 and heights.count(max(heights)) == 1


def test_points_have_their_intervals_where_they_are_known() -> None:
    svg = chart([], [Points([0, 1], [0.4, 0.6], [0.3, None], [0.5, None])])
    assert svg.count("<circle") == 2 and svg.count('stroke-width="1.5"') == 3


def test_nothing_to_draw_is_nothing() -> None:
    assert chart([Line([1, 2], [None, math.inf])]) == ""


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 150), (-3.7, 12), (1e-6, 3e-6), (5, 5.001), (0, 1e6)])
def test_ticks_are_round_and_few(low: float, high: float) -> None:
    ticks = Scale(low, high, 0, 100).ticks(5)
    assert 2 <= len(ticks) <= 8 and all(low - 1e-9 <= tick <= high + 1e-9 * abs(high) for tick in ticks)
    step = ticks[1] - ticks[0]
    assert f"{step:.1e}"[:3] in ("1.0", "2.0", "5.0")


def test_one_value_and_equal_values_have_a_chart() -> None:
    assert "<circle" in chart([Line([3], [0.7])]) and "<path" in chart([Line([1, 2], [5.0, 5.0])])


@pytest.mark.parametrize(("width", "rows"), [(720, 1), (360, 2)])
def test_a_legend_that_is_too_wide_for_a_row_takes_two_above_the_chart(width: int, rows: int) -> None:
    lines = [
        Line([0, 1], [0.0, 1.0], label="training reward, smoothed"),
        Line([0, 1], [1.0, 1.0], label="held out, later"),
    ]
    svg = chart(lines, width=width)
    labels = [text for text in drawn(svg) if text.text in {line.label for line in lines}]
    assert len({text.attrib["y"] for text in labels}) == rows
    assert all(float(text.attrib["x"]) - 17 >= 46 for text in labels)
    assert min(y for path in paths(svg) for _, y in path) > max(float(text.attrib["y"]) for text in labels)


def test_labels_are_text() -> None:
    svg = chart([Line([1, 2], [1.0, 2.0], label="<script>")], x_label='"&<b>', y_label="</svg>", title='" onload="')
    root = drawn(svg)
    assert {element.tag for element in root.iter()} <= {"svg", "path", "text", "rect", "circle"}
    assert "onload" not in root.attrib and "<script>" in [element.text for element in root]
