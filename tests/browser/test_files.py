"""`hone view --static`: the same pages, opened as files, with no server at all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from looking import NARROW, Looks, overflow, shot
from test_curves import chart, click_at, same, traces, values

from hone.cli import call
from hone.runs import Run

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def site(root: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of the export, which ends with a slash."""
    out = tmp_path_factory.mktemp("files") / "site"
    assert call("view", [str(root), "--static", str(out), "--static-steps", "3"], "hone view") == 0
    return f"{out.as_uri()}/"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_files_are_the_pages(looks: Looks, site: str, root: Path, scheme: str) -> None:
    page = looks.page(color_scheme=scheme)
    page.goto(f"{site}index.html")
    page.click("text=quickstart/rl")
    page.wait_for_url(re.compile("run/quickstart~rl/index.html$"))
    run = root / "quickstart" / "rl"
    traces(page, chart("reward"))
    page.fill("#smooth", "1")
    reward = traces(page, chart("reward"))
    assert any(same(trace, values(run, "reward/mean")) for trace in reward)
    shot(page, f"files-overview-{scheme}")
    click_at(page, chart("reward"), 39)
    page.wait_for_url(re.compile("step/39/index.html"))
    page.locator("li.item a.open").first.click()
    page.wait_for_url(re.compile(r"sample/39/0/index\.html"))
    text = Run(run).rollouts(39, ["text"])["text"].to_pylist()[0]
    assert text in page.locator("#completion").inner_text()
    page.click('#colours [data-color="entropy"]')
    assert page.locator("pre.tokens.by-entropy").count() == 1
    page.goto(page.url)
    assert page.locator("pre.tokens.by-entropy").count() == 1, "the address holds the colour"
    page.keyboard.press("g")
    page.wait_for_url(f"{site}index.html")
    assert looks.hosts == {"file"}


def test_steps_that_were_left_out_have_no_link(looks: Looks, site: str) -> None:
    page = looks.page()
    page.goto(f"{site}run/quickstart~rl/step/0/index.html")
    page.keyboard.press("]")
    page.wait_for_url(re.compile(r"step/20/index\.html"))
    page.keyboard.press("]")
    page.wait_for_url(re.compile(r"step/39/index\.html"))
    assert page.locator("a[rel=next][href]").count() == 0


def test_curves_of_files_follow_their_form(looks: Looks, site: str, root: Path) -> None:
    page = looks.page(viewport=NARROW)
    page.goto(f"{site}curves/index.html?runs=quickstart~rl&metrics=entropy")
    drawn = traces(page, "#curves .js-plotly-plot")
    assert [trace["name"] for trace in drawn] == ["quickstart/rl"]
    assert same(drawn[0], values(root / "quickstart" / "rl", "entropy"))
    page.check('input[name=runs][value="many"]')
    page.wait_for_function("() => document.querySelector('#curves .js-plotly-plot').data.length === 2")
    assert overflow(page) <= 0
    page.goto(f"{site}curves/index.html?runs=quickstart~sft")
    page.wait_for_selector('[data-chart="loss"]')
    checked = page.eval_on_selector_all("input[name=metrics]:checked", "all => all.map(one => one.value)")
    assert "loss" in checked and not any(name.startswith(("reward", "eval/")) for name in checked)


def test_the_card_as_a_file_fits_a_telephone(looks: Looks, root: Path, tmp_path: Path) -> None:
    assert call("report", [str(root / "quickstart" / "rl"), "--output", str(tmp_path)], "hone report") == 0
    page = looks.page(viewport=NARROW)
    page.goto((tmp_path / "report.html").as_uri())
    assert overflow(page) <= 0 and page.locator("svg.lines:visible").count() == 1
    shot(page, "report-390")
    assert looks.hosts == {"file"}
