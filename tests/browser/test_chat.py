"""The box that talks to servers: two of hone's own side by side, and one whose text is hostile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_openai import FakeOpenAI, Raw
from looking import overflow, serving, shot
from real_server import Served, talking_model, until
from real_server import serving as serving_model

pytestmark = pytest.mark.browser

HOSTILE = "<img src=x onerror=alert(1)></pre><script>alert(2)</script>\x1b[2J"


def ask(page: Any, question: str, turns: int) -> list[list[str]]:
    """Asks, and returns the texts of each column's conversation once all have so many turns and none is answering."""
    page.wait_for_selector("#send:enabled")
    page.fill("textarea", question)
    page.press("textarea", "Enter")
    page.wait_for_function(
        "turns => !document.getElementById('send').disabled"
        " && [...document.querySelectorAll('.turns')].every(one => one.querySelectorAll('pre').length === turns)",
        arg=turns,
    )
    return [column.locator("pre").all_text_contents() for column in page.locator(".turns").all()]


def greedy(served: Served, *texts: str) -> str:
    roles: list[Any] = ["user", "assistant"]
    messages: list[Any] = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    messages = [{"role": "system", "content": "Be brief."}, *messages]
    made = served.client().chat.completions.create(model="hone/tiny", messages=messages, temperature=0, max_tokens=8)
    return made.choices[0].message.content or ""


def test_two_models_answer_side_by_side_and_each_keeps_its_own_conversation(page: Any, tmp_path: Path) -> None:
    from hone.pages import visible

    with serving_model(talking_model(0)) as first, serving_model(talking_model(1)) as second:
        servers = [first, second]
        with serving(tmp_path, "--chat", *(f"{served.url}/v1" for served in servers)) as url:
            page.goto(url)
            page.click("header >> text=chat")
            page.fill("[name=system]", "Be brief.")
            page.fill("[name=temperature]", "0")
            page.fill("[name=max_tokens]", "8")
            said = ask(page, "abc", 2)
            answers = [greedy(served, "abc") for served in servers]
            assert said == [["abc", visible(answer)] for answer in answers] and answers[0] != answers[1]
            said = ask(page, "and def?", 4)
            more = [greedy(served, "abc", answer, "and def?") for served, answer in zip(servers, answers, strict=True)]
            assert [column[3] for column in said] == list(map(visible, more))
            assert overflow(page) <= 0
            shot(page, "chat")
            page.click("#clear")
            assert ask(page, "abc", 2) == [["abc", visible(answer)] for answer in answers]


def test_stop_ends_the_answer_at_the_server(page: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving_model() as served, serving(tmp_path, "--chat", f"{served.url}/v1") as url:
        served.slow(monkeypatch, 0.05)
        page.goto(f"{url}/chat/")
        page.fill("[name=max_tokens]", "1500")
        page.fill("textarea", "abc")
        page.click("text=Send")
        page.wait_for_function("() => document.querySelector('.turn.policy pre')?.textContent.length > 3")
        assert served.service.engine.busy
        page.click("#stop")
        page.wait_for_selector(".turns >> text=stopped")
        until(lambda: not served.service.engine.busy, "the server has stopped")
        tokens = page.evaluate("document.querySelector('.turn.policy pre').textContent.length")
        assert tokens < 1500 * 3


def test_hostile_text_is_text(page: Any, tmp_path: Path) -> None:
    event = json.dumps({"choices": [{"delta": {"content": HOSTILE}}]})
    script = lambda body: Raw(f"data: {event}\n\ndata: [DONE]\n\n", "text/event-stream")  # noqa: E731
    with FakeOpenAI(script, models=("<b>toy</b>",)) as server, serving(tmp_path, "--chat", server.url) as url:
        page.goto(f"{url}/chat/")
        assert ask(page, "<i>hi</i>", 2) == [["<i>hi</i>", HOSTILE.replace("\x1b", "\\x1b")]]
        assert page.locator("select").inner_text() == "<b>toy</b>"
        assert page.locator("main img, main script, main i, main b").count() == 0
