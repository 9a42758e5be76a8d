"""The run card as HTML: in a page of `hone view`, and as a file that needs nothing else (report.html)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

import hone.viewer
from hone import __version__
from hone.pages import environment
from hone.viewer.card.curve import curve
from hone.viewer.card.facts import Card
from hone.viewer.card.tables import measure_rows
from hone.viewer.conversation import turns

if TYPE_CHECKING:
    from jinja2 import Environment

LONGEST = 4_000
"""Characters of a text that the page shows."""
_VIEWER = Path(hone.viewer.__file__).parent


def body(card: Card) -> Markup:
    """Return the card, without a title, in the classes of hone.css."""
    rows = {"measured": measure_rows(card.measures), "lenient": measure_rows(card.lenient)}
    file = card.run.path / "config.toml"
    config = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    weights = card.run.info.get("reward_weights") or {}
    drawn = curve(card.run.kind, card.lines, card.env)
    template = _templates().get_template("run_card.html")
    values = {"weights": weights, "config": config, "turns": turns, "longest": LONGEST}
    return Markup(template.render(card=card, curve=drawn, **rows, **values))


def whole_page(card: Card) -> str:
    """Return report.html. A content policy forbids scripts, and loading anything; it is light or dark as the system."""
    css = (_VIEWER / "assets" / "hone.css").read_text(encoding="utf-8")
    light, _, rest = css.partition(':root[data-theme="dark"] {')
    dark, _, rest = rest.partition("}")
    style = Markup(f"{light}@media (prefers-color-scheme: dark) {{ :root {{{dark}}} }}{rest}")
    template = _templates().get_template("report.html")
    return template.render(title=card.title, body=body(card), style=style, version=__version__)


@cache
def _templates() -> Environment:
    from jinja2 import FileSystemLoader

    return environment(FileSystemLoader(_VIEWER / "templates"))
