"""Shared parts of pages: templates and their filters, links, the tabs of a run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlencode

from markupsafe import Markup, escape
from starlette.datastructures import QueryParams

from hone import __version__
from hone.extensions.viewer.catalog import Catalog, Entry, NotFound
from hone.pages import environment, visible
from hone.runs.progress import percent, thousands
from hone.runs.summary import local_time

if TYPE_CHECKING:
    from jinja2 import Environment

ASSETS = Path(str(resources.files("hone.extensions.viewer"))) / "assets"
_TABS = {"": "overview", "step": "samples", "sample": "samples"}
_TABS |= {"eval": "held-out samples", "change": "before and after", "card": "run card"}
"""Tab that a run's page belongs to, by the first word of its path."""


@dataclass(frozen=True)
class Links:
    """Relative links from the page `here`, for any proxy. `here` ends with "/", or is "" for the list of runs."""

    here: str = ""

    def to(self, *path: object, **query: Any) -> str:
        """Return the link to the page with these parts of the path (None: left out)."""
        parts = "".join(f"{quote(str(part), safe='~')}/" for part in path if part is not None)
        given = {name: value for name, value in query.items() if value not in (None, "")}
        return (self._up + parts or "./") + (f"?{urlencode(given, errors='replace')}" if given else "")

    def asset(self, name: str) -> str:
        return f"{self._up}assets/{name}"

    @property
    def _up(self) -> str:
        return "../" * self.here.count("/")


class Site:
    def __init__(self, catalog: Catalog):
        self.catalog = catalog

    def page(self, template: str, here: str, title: str, **values: Any) -> str:
        """Render a page at the path `here` (as in `Links`). Its template gets `links`, `title` and `values`."""
        text = self._templates.get_template(template).render(
            links=Links(here), title=title, root=str(self.catalog.root), **values
        )
        return text.encode("utf-8", "backslashreplace").decode()  # JSON can contain lone surrogates

    def run_page(
        self, template: str, entry: Entry, path: str, title: str, step: int | None = None, **values: Any
    ) -> str:
        run = entry.state.files
        frame = {"entry": entry, "slug": entry.slug, "steps": run.rollout_steps(), "evals": run.evals(), "at": step}
        frame["current"] = _TABS.get(word := path.split("/")[0], word)
        return self.page(template, f"run/{entry.slug}/{path}", title, **frame, **values)

    def error(self, here: str, title: str, sentence: str) -> str:
        """Render an error at the path `here`, with a link to the run if the run can be shown."""
        parts = unquote(here).split("/")
        found = [entry for entry in self.catalog.entries() if parts[0] == "run" and parts[1:2] == [entry.slug]]
        run = found[0] if found and not found[0].damage and "".join(parts[2:]) else None
        return self.page("error.html", here, title, sentence=sentence, run=run)

    @cached_property
    def _templates(self) -> Environment:
        from jinja2 import FileSystemLoader

        made = environment(FileSystemLoader(ASSETS.with_name("templates")))
        made.globals |= {"version": __version__, "again": again}
        made.filters |= {"local_time": local_time, "json_block": json_block, "with_code": with_code}
        made.filters |= {"percent": percent, "thousands": thousands}
        made.filters["compact"] = lambda value: "–" if value is None else f"{value:.6g}"
        return made


def with_code(text: str) -> Markup:
    """Return HTML of a sentence, with text in backticks as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(visible(text)))))


def json_block(value: Any) -> Markup:
    """Return JSON for `<script type="application/json">`, escaped so that no text in it ends the element."""
    return Markup(json.dumps(value, allow_nan=False).replace("<", "\\u003c"))


def again(query: QueryParams, **changes: Any) -> str:
    """Return the page's query with changed parameters. A parameter with None or "" is removed."""
    unchanged = [(name, value) for name, value in query.multi_items() if name not in changes]
    given = [(name, str(value)) for name, value in changes.items() if value not in (None, "")]
    return f"?{urlencode(unchanged + given, errors='replace')}"


def names_in(query: QueryParams, key: str, known: Iterable[str] = ()) -> list[str]:
    """Return the values of a key, which may be repeated or have values with commas."""
    there = set(known)
    names = (name for value in query.getlist(key) for name in ([value] if value in there else value.split(",")))
    return list(dict.fromkeys(filter(None, names)))


def whole(name: str, text: str) -> int:
    """Parse a number in an address. Raises NotFound for other text."""
    if not text.isdecimal() or len(text) > 9:
        raise NotFound(f"{name} is {text if len(text) <= 20 else f'{text[:20]}…'!r}, which is not a number")
    return int(text)
