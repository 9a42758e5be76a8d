"""Completions in the browser: opened, coloured; and text of a model that stays text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import hostile
import pytest
from looking import Looks, overflow, shot

from hone.runs import Run

pytestmark = pytest.mark.browser

RL = "run/quickstart~rl"


def texts(run: Path, step: int) -> list[str]:
    return Run(run).rollouts(step, ["text"])["text"].to_pylist()


def test_from_the_list_of_runs_to_a_completion(page: Any, url: str, root: Path) -> None:
    page.goto(f"{url}/")
    page.click("text=quickstart/rl")
    page.wait_for_url(re.compile(rf"/{RL}/$"))
    page.click("nav.tabs a:text-is('samples')")
    page.wait_for_url(re.compile(rf"/{RL}/step/39/$"))
    page.locator("li.item a.open").nth(5).click()
    page.wait_for_url(re.compile(rf"/{RL}/sample/39/5/$"))
    shown = page.locator("#completion").inner_text()
    assert texts(root / "quickstart" / "rl", 39)[5] in shown
    row = Run(root / "quickstart" / "rl").rollouts(39, ["reward", "detail", "outcome"]).to_pylist()[5]
    known = page.locator("main").inner_text()
    assert row["detail"] in known and f"{row['reward']:.4f}" in known and row["outcome"] in known
    for _ in range(3):
        page.go_back()
    assert page.url == f"{url}/"


def test_tokens_are_coloured(page: Any, url: str, root: Path) -> None:
    page.goto(f"{url}/run/many/sample/150/3/")
    for name in ("entropy", "gap", "advantage", "logprob"):
        page.click(f"#colours a:text-is('{name}')")
        page.wait_for_url(re.compile(f"color={name}"))
        assert page.locator("#completion").text_content().strip().startswith(texts(root / "many", 150)[3])
        tints = page.evaluate("""[...document.querySelectorAll("#completion :is([class^=l], [class^=m])")]
            .map((one) => getComputedStyle(one).backgroundColor)""")
        assert tints and "rgba(0, 0, 0, 0)" not in tints, f"levels of {name} have colours"
        shot(page, f"sample-by-{name}")


def test_what_a_model_wrote_is_only_text(looks: Looks, url: str, root: Path) -> None:
    """`looks` fails where a dialog was opened, a script refused by the policy, or anything fetched."""
    base = f"{url}/run/{quote(hostile.NAME, safe='')}"
    page = looks.page()
    page.goto(f"{url}/")
    assert page.locator("a.open", has_text=hostile.NAME).count() == 1
    page.goto(f"{base}/")
    assert hostile.SCRIPT in page.locator("main").text_content(), "in the command that began it"
    page.goto(f"{base}/step/1/")
    for row, name in zip(range(0, 80, 16), hostile.TEXTS, strict=True):
        page.goto(f"{base}/sample/1/{row}/")
        shown = page.evaluate("document.querySelector('#completion').textContent")
        if name == "script":
            assert hostile.TEXTS[name] in shown
            assert hostile.SCRIPT in page.locator(".why").inner_text()
        if name == "ends":
            assert hostile.TEXTS[name] in shown and "49" not in shown
        if name == "odd":
            assert "\x1b" not in shown and "\u202e" not in shown and "🙂 汉字 é" in shown
        assert page.evaluate("document.querySelectorAll('#completion img, #completion svg, #completion a').length") == 0
        assert overflow(page) <= 0
        shot(page, f"hostile-{name}")
    page.goto(f"{base}/search/?q={quote(hostile.SCRIPT, safe='')}")
    assert page.input_value("input[name=q]") == hostile.SCRIPT


def test_200_000_characters(page: Any, url: str) -> None:
    page.goto(f"{url}/run/{quote(hostile.NAME, safe='')}/sample/1/32/")
    assert "the end is here" in page.evaluate("document.querySelector('#completion').textContent")
    page.click("text=show all")
    page.wait_for_url(re.compile("all=1"))
    whole = page.evaluate("document.querySelector('#completion').textContent")
    assert hostile.TEXTS["long"] in whole
    assert overflow(page) <= 0
