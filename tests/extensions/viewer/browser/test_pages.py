"""Every page of `hone view`, as a visitor sees it: wide and narrow, light and dark."""

from __future__ import annotations

import re
from typing import Any

import pytest
from looking import NARROW, Looks, overflow, shot

pytestmark = pytest.mark.browser

RL = "run/quickstart~rl"
CUT_OFF = """[...document.querySelectorAll("table.numbers")]
    .filter((one) => one.getBoundingClientRect().right > innerWidth)
    .map((one) => one.outerHTML.slice(0, 80))"""
"""Numbers before and after that do not fit into a narrow window."""
PAGES = {
    "runs": "",
    "overview": f"{RL}/",
    "overview-sft": "run/quickstart~sft/",
    "overview-evaluation": "run/evaluation/",
    "curves": "curves/?runs=quickstart~rl&runs=many",
    "step": "run/many/step/150/",
    "sample": "run/many/sample/150/3/",
    "search": "run/many/search/?q=remainder&outcome=wrong",
    "held-out": f"{RL}/eval/40/",
    "change": f"{RL}/change/0/40/",
    "evaluation": "run/evaluation/eval/",
    "card": f"{RL}/card/",
    "not-found": "run/none/",
}
"""Paths of pages by name."""


@pytest.mark.parametrize("name", PAGES)
def test_pages_fit_and_load_without_a_complaint(looks: Looks, url: str, name: str) -> None:
    for scheme, size in (("light", None), ("dark", None), ("light", NARROW)):
        page = looks.page(color_scheme=scheme, **({"viewport": size} if size else {}))
        page.goto(f"{url}/{PAGES[name]}")
        drawn(page)
        assert overflow(page) <= 0, f"{name} is wider than the window by {overflow(page)} pixels"
        if size:
            assert page.evaluate(CUT_OFF) == [], f"{name} hides what matters most beyond its right edge"
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", background))) > 382) == (scheme == "light")
        shot(page, f"{name}-{'390' if size else '1280'}-{scheme}")
    assert looks.hosts == {"127.0.0.1"}
    if name == "not-found":
        looks.troubles = [trouble for trouble in looks.troubles if "404" not in trouble]


def drawn(page: Any) -> None:
    """Waits until nothing is loaded any more, and the first chart is drawn."""
    page.wait_for_load_state("networkidle")
    for chart in page.locator("[data-chart]").all()[:1]:
        chart.scroll_into_view_if_needed()
        chart.locator(".main-svg").first.wait_for()
