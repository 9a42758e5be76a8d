"""Pages in one HTML file: nothing is loaded from elsewhere, no script runs, and what a model wrote is only shown.

    body = fill("<h2>{{ title }}</h2>{{ picture }}", title=title, picture=picture)
    write_file(path, page("hone report", body))

Templates are Jinja with everything escaped; `Markup` is what `fill` and `page` made.
"""

from __future__ import annotations

from functools import cache, lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from hone import __version__

if TYPE_CHECKING:
    from jinja2 import BaseLoader, Environment, Template

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="referrer" content="no-referrer">
<title>{{ title }} · hone</title>
<link rel="icon" href="data:,">
<style>{{ style }}</style>
</head>
<body>
<main>
<h1>{{ title }}</h1>
{{ body }}
</main>
<footer>{{ made }} by hone {{ version }}.</footer>
</body>
</html>
"""


def page(title: str, body: Markup, made: str = "Made") -> str:
    """Return a whole page around what `fill` made. A content policy forbids scripts, and loading anything.

    Its style is that of `hone view`; `made` begins the last line, `Made by hone 0.2.0.`
    """
    return str(fill(_PAGE, title=title, body=body, style=Markup(_style()), made=made, version=__version__))


def fill(template: str, **values: Any) -> Markup:
    """Return a Jinja template with its values, all escaped but for Markup. An undefined name is an error."""
    return Markup(_compiled(template).render(**values))


def visible(text: str, limit: int | None = None) -> str:
    """Return text of a model as it can be shown anywhere: control characters, but for line ends and tabs, as escapes.

    A longer one than `limit` loses its middle.
    """
    if limit is not None and len(text) > limit:
        head = (limit + 1) // 2
        text = f"{text[:head]} […{len(text) - limit:,} characters…] {text[len(text) - (limit - head) :]}"
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def environment(loader: BaseLoader | None = None) -> Environment:
    """Make a Jinja environment that escapes all values; filters are `num` (0.123, a dash for None) and `visible`."""
    from jinja2 import Environment, StrictUndefined

    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters["num"] = lambda value, digits=3: "–" if value is None else f"{value:.{digits}f}"
    made.filters["visible"] = visible
    return made


@lru_cache(maxsize=32)
def _compiled(template: str) -> Template:
    return _environment().from_string(template)


@cache
def _environment() -> Environment:
    return environment()


@cache
def _style() -> str:
    """Return hone.css, light or dark as the reader's system is."""
    text = (resources.files("hone.viewer") / "assets" / "hone.css").read_text(encoding="utf-8")
    light, _, rest = text.partition(':root[data-theme="dark"] {')
    dark, _, rest = rest.partition("}")
    return f"{light}@media (prefers-color-scheme: dark) {{ :root {{{dark}}} }}{rest}"
