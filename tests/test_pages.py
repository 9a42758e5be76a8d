"""What pages share: everything that is filled in is escaped, and text of a model can be shown."""

from __future__ import annotations

import jinja2
import pytest

from hone.pages import environment, visible


def test_what_is_filled_in_is_escaped() -> None:
    text = environment().from_string("<b>{{ text }}</b> {{ a|num }} {{ a|num(1) }} {{ b|num }}")
    assert text.render(text="<i>&\"'", a=0.126, b=None) == "<b>&lt;i&gt;&amp;&#34;&#39;</b> 0.126 0.1 –"
    with pytest.raises(jinja2.UndefinedError):
        environment().from_string("{{ missing }}").render()


def test_control_characters_can_be_seen_and_long_texts_lose_their_middle() -> None:
    assert visible("a\x1b[2J\u202eb\ud800\n\tc é 数") == "a\\x1b[2J\\u202eb\\ud800\n\tc é 数"
    assert visible("a" * 50 + "b" * 50, 10) == "aaaaa […90 characters…] bbbbb"
    assert visible("abc", 3) == "abc"
