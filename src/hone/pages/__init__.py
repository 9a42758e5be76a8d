"""Pages in one HTML file: nothing is loaded from elsewhere, no script runs, and what a model wrote is only shown.

    body = fill("<h2>{{ title }}</h2>{{ picture }}", title=title, picture=picture)
    write_file(path, page("hone report", body))

Templates are Jinja with everything escaped; `Markup` is what `fill` and `page` made.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from hone import __version__

if TYPE_CHECKING:
    from jinja2 import Environment, Template

COLORS = {
    "blue": "#2563c9",
    "green": "#12876a",
    "purple": "#8b45c4",
    "brown": "#b3591d",
    "red": "#d9480f",
    "grey": "#8a94a6",
}

STYLE = """
:root { color-scheme: light; }
body { margin: 2rem auto; max-width: 62rem; padding: 0 1rem; font: 15px/1.5 system-ui, sans-serif; color: #1d2430; }
h1 { font-size: 1.5rem; margin-bottom: 0.2rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
p.sub, footer, td.sub { color: #5a6475; } footer { margin-top: 3rem; font-size: 0.85rem; }
.box { border: 1px solid #e4e8ee; border-left: 5px solid #8a94a6; border-radius: 4px; margin: 1rem 0; }
.box { padding: 0.6rem 1rem; }
.fail { border-left-color: #c92a2a; } .warn { border-left-color: #e8a100; } .pass { border-left-color: #12876a; }
.note { border-left-color: #2563c9; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 0.25rem 0.7rem 0.25rem 0; border-bottom: 1px solid #e4e8ee; vertical-align: top; }
th { font-weight: 600; color: #5a6475; } th.n, td.n { text-align: right; } tr.mark td { background: #fff4e0; }
pre, code { font: 13px/1.45 ui-monospace, monospace; } pre { white-space: pre-wrap; overflow-wrap: anywhere; }
p, li { overflow-wrap: anywhere; }
pre { background: #f5f7fa; border-radius: 4px; padding: 0.6rem; margin: 0.3rem 0; max-height: 24rem; overflow-y: auto; }
figure { margin: 1rem 0; } figure svg { width: 100%; height: auto; }
.columns { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem; }
"""

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


def page(title: str, body: Markup, style: str = STYLE, made: str = "Made") -> str:
    """A whole page around what `fill` made. A content policy forbids scripts, and loading anything.

    `style` is CSS; `made` begins the last line, `Made by hone 0.1.0.`
    """
    return str(fill(_PAGE, title=title, body=body, style=Markup(style), made=made, version=__version__))


def fill(template: str, **values: Any) -> Markup:
    """A Jinja template with its values, all escaped but for Markup. An undefined name is an error.

    The filters `num` (0.123, an en dash for None) and `percent` are there.
    """
    return Markup(_compiled(template).render(**values))


def visible(text: str, limit: int | None = None) -> str:
    """Text of a model as it can be shown anywhere: control characters, but for line ends and tabs, as escapes.

    A longer one than `limit` loses its middle.
    """
    if limit is not None and len(text) > limit:
        head = (limit + 1) // 2
        text = f"{text[:head]} […{len(text) - limit:,} characters…] {text[len(text) - (limit - head) :]}"
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


@lru_cache(maxsize=32)
def _compiled(template: str) -> Template:
    return _environment().from_string(template)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, StrictUndefined

    made = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters["num"] = lambda value, digits=3: "–" if value is None else f"{value:.{digits}f}"
    made.filters["percent"] = lambda value: "–" if value is None else f"{value:.0%}"
    made.filters["visible"] = visible
    return made
