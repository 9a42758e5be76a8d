"""Pages from templates: what every page shares, its frame, links and filters."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib import resources
from importlib.metadata import version as version_of
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from markupsafe import Markup, escape

from hone import __version__
from hone.pages import visible
from hone.runs.progress import duration, percent, short_seconds, thousands
from hone.runs.summary import local_time
from hone.viewer.catalog import Catalog
from hone.viewer.links import Links
from hone.viewer.series import SeriesStore

if TYPE_CHECKING:
    from jinja2 import Environment

ASSETS = Path(str(resources.files("hone.viewer"))) / "assets"
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'self'"
)
"""Scripts are hone's files and nothing else; nothing is loaded from elsewhere."""


class Site:
    """All pages of the runs of a catalog; with `files` for a folder of files, where no server answers, and which holds
    only these `steps` of a run, by its slug.
    """

    def __init__(self, catalog: Catalog, files: bool = False, steps: Mapping[str, Sequence[int]] | None = None):
        self.catalog = catalog
        self.files = files
        self._steps = steps or {}
        self.series = SeriesStore()

    def links(self, here: str) -> Links:
        """Links from the page at this path."""
        return Links(here, self.files)

    def kept(self, slug: str, steps: Sequence[int]) -> list[int]:
        """Those of a run's steps that have a page: all, but in a folder of files maybe fewer."""
        shown = self._steps.get(slug)
        return list(steps) if shown is None else [step for step in steps if step in shown]

    def page(self, template: str, here: str, title: str, **values: Any) -> str:
        """A page at the path `here` (as in `Links`). Templates get `links`, `title`, `files` and these values."""
        text = self._templates.get_template(template).render(
            links=self.links(here), title=title, files=self.files, root=str(self.catalog.root), **values
        )
        return text.encode("utf-8", "backslashreplace").decode()  # JSON can bring halves of characters

    def error(self, here: str, title: str, sentence: str) -> str:
        """The page that says why there is none at the path `here`; it leads back to the run, if that can be shown."""
        parts = unquote(here).split("/")
        found = [entry for entry in self.catalog.entries() if parts[0] == "run" and parts[1:2] == [entry.slug]]
        run = found[0] if found and not found[0].damage and "".join(parts[2:]) else None
        return self.page("error.html", here, title, sentence=sentence, run=run)

    @cached_property
    def _templates(self) -> Environment:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined

        made = Environment(
            loader=FileSystemLoader(ASSETS.with_name("templates")),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        made.globals |= {"version": __version__, "csp": CSP, "plotly": version_of("plotly")}
        made.filters |= {
            "num": lambda value, digits=3: "–" if value is None else f"{value:.{digits}f}",
            "percent": lambda value: "–" if value is None else percent(value),
            "thousands": lambda value: "–" if value is None else thousands(value),
            "duration": lambda value: "–" if value is None else duration(value),
            "seconds": lambda value: "–" if value is None else short_seconds(value),
            "local_time": local_time,
            "visible": visible,
            "json_block": json_block,
            "with_code": with_code,
        }
        return made


def with_code(text: str) -> Markup:
    """A sentence in which what stands between backticks is code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(visible(text)))))


def json_block(value: Any) -> Markup:
    """JSON that stands inside `<script type="application/json">`: no text in it can end the element."""
    return Markup(json.dumps(value, allow_nan=False).replace("<", "\\u003c"))
