"""Pages: everything that is filled in is escaped, nothing is loaded, and the same content gives the same bytes."""

from __future__ import annotations

import re

import jinja2
import pytest

from hone.pages import fill, page, visible


def test_what_is_filled_in_is_escaped_and_what_was_made_here_is_not() -> None:
    inner = fill("<b>{{ text }}</b>", text="<i>&\"'")
    assert inner == "<b>&lt;i&gt;&amp;&#34;&#39;</b>"
    assert "<p><b>&lt;i&gt;" in page("a < b", fill("<p>{{ inner }}</p>", inner=inner))
    assert "<title>a &lt; b · hone</title>" in page("a < b", inner)
    with pytest.raises(jinja2.UndefinedError):
        fill("{{ missing }}")


def test_filters() -> None:
    assert fill("{{ a|num }} {{ a|num(1) }} {{ b|num }}", a=0.126, b=None) == "0.126 0.1 –"


def test_control_characters_can_be_seen_and_long_texts_lose_their_middle() -> None:
    assert visible("a\x1b[2J\u202eb\ud800\n\tc é 数") == "a\\x1b[2J\\u202eb\\ud800\n\tc é 数"
    assert visible("a" * 50 + "b" * 50, 10) == "aaaaa […90 characters…] bbbbb"
    assert visible("abc", 3) == "abc"


def test_a_page_loads_nothing_and_runs_no_script() -> None:
    html = page("curves", fill("<p>{{ label }}</p>", label="<reward>"))
    assert html == page("curves", fill("<p>{{ label }}</p>", label="<reward>")) and "&lt;reward&gt;" in html
    assert not re.findall(r'https?://[^"\s<]+', html)
    assert "<script" not in html and "default-src 'none'" in html
