"""What pages share: everything that is filled in is escaped."""

from __future__ import annotations

import jinja2
import pytest

from hone.pages import environment


def test_what_is_filled_in_is_escaped() -> None:
    text = environment().from_string("<b>{{ text }}</b> {{ a|num }} {{ a|num(1) }} {{ b|num }}")
    assert text.render(text="<i>&\"'", a=0.126, b=None) == "<b>&lt;i&gt;&amp;&#34;&#39;</b> 0.126 0.1 –"
    with pytest.raises(jinja2.UndefinedError):
        environment().from_string("{{ missing }}").render()
