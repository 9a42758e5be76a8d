"""Shared parts of HTML pages: templates that escape all values, and texts made safe to show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hone.terminal import printable

if TYPE_CHECKING:
    from jinja2 import BaseLoader, Environment


def environment(loader: BaseLoader | None = None) -> Environment:
    """Make a Jinja environment that escapes all values except Markup; an undefined name is an error."""
    from jinja2 import Environment, StrictUndefined

    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters["num"] = lambda value, digits=3: "–" if value is None else f"{value:.{digits}f}"
    made.filters["visible"] = visible
    return made


def visible(text: str, limit: int | None = None) -> str:
    """Escape control characters except line ends and tabs, and cut the middle out of a text longer than `limit`."""
    if limit is not None and len(text) > limit:
        head = (limit + 1) // 2
        text = f"{text[:head]} […{len(text) - limit:,} characters…] {text[len(text) - (limit - head) :]}"
    return printable(text)
