"""Every page of `hone view`, as a visitor sees it: wide and narrow, light and dark, with scripts and without."""

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
COVERED = """() => { const bar = document.querySelector("[data-chart] .modebar").getBoundingClientRect();
    return [...document.querySelectorAll("[data-chart] :is(.infolayer .bg, .nsewdrag, .xtick, .ytick, .xtitle), h3")]
        .map((one) => [one.getAttribute("class"), one.getBoundingClientRect()])
        .filter(([_, box]) => box.width && box.left < bar.right && box.right > bar.left
            && box.top < bar.bottom && box.bottom > bar.top).map(([name]) => name); }"""
"""What of the page lies under the buttons of its first chart."""
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


def test_a_form_works_without_scripts(looks: Looks, url: str) -> None:
    page = looks.page(java_script_enabled=False)
    page.goto(f"{url}/run/many/search/")
    page.fill("input[name=q]", "remainder")
    page.click("button:text-is('Search')")
    page.wait_for_url(re.compile("q=remainder"))
    assert page.locator("li.item mark").count() >= 1
    page.goto(f"{url}/")
    page.check('input[name=runs][value="many"]')
    page.click("button[form=choose]")
    page.wait_for_url(re.compile(r"/curves/\?.*runs=many"))
    assert page.locator("table td", has_text="many").count() == 1


def test_all_charts_of_a_run(page: Any, url: str) -> None:
    """All charts are drawn without scrolling, so that a picture or a print of the whole page shows them."""
    page.goto(f"{url}/{RL}/")
    charts = page.locator("[data-chart]")
    assert charts.count() >= 12
    for chart in charts.all():
        chart.locator(".main-svg").first.wait_for()
    assert page.evaluate("scrollY") == 0
    shot(page, "overview-whole", whole=True)


def test_all_columns_of_the_list_can_be_reached_on_a_phone(looks: Looks, url: str) -> None:
    page = looks.page(viewport=NARROW)
    page.goto(f"{url}/?settings=seed")
    heads = page.locator("#tables > .scroll th")
    assert {"seed", "reproducible", "started"} <= set(heads.all_inner_texts())
    for head in heads.all():
        head.scroll_into_view_if_needed()
        box = head.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= NARROW["width"], head.inner_text()
    assert overflow(page) <= 0 and page.evaluate("scrollX") == 0, "the heads scroll, not the page"
    for cell in page.locator("#tables > .scroll tr.item").first.locator("td[data-head]").all():
        box = cell.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= NARROW["width"], cell.inner_text()
    assert page.locator("td.held_out").first.get_attribute("data-head") == "held out, before → after"


@pytest.mark.parametrize("size", [{}, {"viewport": NARROW}], ids=["wide", "narrow"])
def test_the_buttons_of_a_chart_cover_nothing(looks: Looks, url: str, size: dict[str, Any]) -> None:
    page = looks.page(**size)
    for path in (f"{RL}/", "curves/?runs=quickstart~rl&runs=many&metrics=reward/mean"):
        page.goto(f"{url}/{path}")
        drawn(page)
        page.locator("[data-chart]").first.hover()
        page.wait_for_selector(".modebar-btn[data-title='Reset axes']")
        assert page.locator("[data-chart] .modebar").first.bounding_box()["height"] > 50
        assert page.evaluate(COVERED) == []


def drawn(page: Any) -> None:
    """Waits until nothing is loaded any more, and the first chart is drawn."""
    page.wait_for_load_state("networkidle")
    for chart in page.locator("[data-chart]").all()[:1]:
        chart.scroll_into_view_if_needed()
        chart.locator(".main-svg").first.wait_for()
