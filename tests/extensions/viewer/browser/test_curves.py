"""Curves in the browser: what is drawn are the run's numbers, and a point leads to the samples behind it."""

from __future__ import annotations

import math
import re
import time
from pathlib import Path
from typing import Any

import pytest
from looking import PATIENCE, STEPS, Looks, metrics_of, shot

pytestmark = pytest.mark.browser

RL = "run/quickstart~rl/"


def chart(name: str) -> str:
    return f'[data-chart="{name}"]'


def traces(page: Any, place: str) -> list[dict[str, Any]]:
    page.locator(place).scroll_into_view_if_needed()
    page.wait_for_selector(f"{place} .main-svg")
    return page.evaluate(
        """place => document.querySelector(place).data.map(trace => ({name: trace.name, meta: trace.meta,
             x: Array.from(trace.x), y: Array.from(trace.y)}))""",
        place,
    )


def values(run: Path, name: str) -> dict[int, float]:
    return {line["step"]: line[name] for line in metrics_of(run) if line.get(name) is not None}


def same(trace: dict[str, Any], expected: dict[int, float]) -> bool:
    there = {x: y for x, y in zip(trace["x"], trace["y"], strict=True) if y is not None}
    return there.keys() == expected.keys() and all(math.isclose(there[x], expected[x], rel_tol=1e-6) for x in there)


def click_at(page: Any, place: str, x: float) -> None:
    """Click at the value `x` as soon as its values are told; the chart may be drawn anew meanwhile, so move again."""
    spot = """([place, x]) => {
        const plot = document.querySelector(place), box = plot.getBoundingClientRect();
        const {xaxis, _size} = plot._fullLayout;
        return [box.left + xaxis._offset + xaxis.d2p(x), box.top + _size.t + _size.h / 2];
    }"""
    end, nudge = time.monotonic() + PATIENCE / 1000, 0
    while not page.locator(f"{place} .hoverlayer .legend").count():
        assert time.monotonic() < end, "no values were shown"
        left, top = page.evaluate(spot, [place, x])
        nudge = 1 - nudge
        page.mouse.move(left, top + nudge)
        page.wait_for_timeout(300)
    page.mouse.click(left, top + nudge)


def test_the_overview_draws_the_metrics_of_the_run(page: Any, url: str, root: Path) -> None:
    run = root / "quickstart" / "rl"
    page.goto(f"{url}/{RL}?smooth=1")
    reward = traces(page, chart("reward"))
    assert any(trace["meta"] == "step" and same(trace, values(run, "reward/mean")) for trace in reward)
    held_out = [trace for trace in reward if trace["meta"] == "eval"]
    assert len(held_out) == 1 and same(held_out[0], values(run, "eval/reverse-text/reward/mean"))
    assert len(held_out[0]["x"]) == STEPS // 10 + 1
    parts = traces(page, chart("outcomes"))
    by_name = {trace["name"]: trace for trace in parts}
    assert same(by_name["wrong"], values(run, "outcome/wrong"))
    (entropy,) = traces(page, chart("entropy"))
    assert same(entropy, values(run, "entropy"))


def test_a_point_opens_the_samples_of_its_step(page: Any, url: str) -> None:
    page.goto(f"{url}/{RL}?smooth=1")
    traces(page, chart("reward"))
    click_at(page, chart("reward"), 23)
    page.wait_for_url(re.compile(rf"/{RL}step/23/$"))
    assert page.locator("h1").inner_text() == "Step 23"


def test_runs_are_chosen_and_overlaid(looks: Looks, url: str, root: Path) -> None:
    """From the list of runs to curves of two of them; the address that results shows another visitor the same."""
    page = looks.page()
    page.goto(f"{url}/")
    for slug in ("quickstart~rl", "many"):
        page.check(f'input[name=runs][value="{slug}"]')
    page.click("button[form=choose]")
    page.wait_for_url(re.compile("/curves/"))
    page.wait_for_selector("#curves .main-svg")
    usual = page.locator("input[name=metrics]:checked").evaluate_all("boxes => boxes.map(box => box.value)")
    for act, name in ((page.check, "entropy"), *((page.uncheck, name) for name in usual)):
        with page.expect_navigation():  # each choice is another page
            act(f'input[name=metrics][value="{name}"]')
    page.wait_for_function("() => document.querySelectorAll('#curves .js-plotly-plot').length === 1")
    page.wait_for_function("() => document.querySelector('#curves [data-chart=entropy]')?.data?.length === 2")
    drawn = {trace["name"]: trace for trace in traces(page, "#curves .js-plotly-plot")}
    assert drawn.keys() == {"quickstart/rl", "many"}
    for name, trace in drawn.items():
        assert same(trace, values(root / name, "entropy"))
    shot(page, "curves-two-runs")
    other = looks.page(color_scheme="dark")
    other.goto(page.url)
    other.wait_for_selector("#curves .main-svg")
    assert {trace["name"]: trace for trace in traces(other, "#curves .js-plotly-plot")} == drawn
