"""`hone view --static OUT`: the pages as files, which a browser opens without a server, and any web server serves.

The export is a walk: it begins with the list of runs, makes each page by the function that also serves it, and follows
its links, as far as `Limits` goes. A link to a page that was left out loses its target. Nothing in the files asks a
server for anything; what scripts need lies in the page.
"""

from __future__ import annotations

import json
import math
import os
import posixpath
import re
import shutil
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from markupsafe import escape
from starlette.routing import compile_path

from hone import __version__
from hone.errors import UserError
from hone.runs import Run
from hone.runs.files import TMP_PREFIX, read_json
from hone.runs.outputs import run_info
from hone.runs.rollouts import rollouts_path
from hone.viewer.app import PAGES, PLOTLY, asset_file
from hone.viewer.catalog import Catalog
from hone.viewer.site import ASSETS, Site

MARK, FORMAT = "hone-static.json", "hone-static-1"
"""The file that tells an export from any other folder."""
Progress = Callable[[int, int, float], None]
"""Gets how many pages there are, the runs of which all are, and the share of the work that is done, from 0 to 1."""
_FIXED = 10
"""Pages that a run has about, beside those of its steps and samples."""
_KIND = re.compile(r"run/(?P<slug>[^/]+)/(?P<kind>step|sample|change)/(?P<rest>.*)")
_ANCHOR = re.compile(r'(<a\b[^>]*?) href="([^"]*)"')
VARIANTS = ("page",)
"""Query keys for each value of which there is a file of its own. Others are left to scripts."""


@dataclass(frozen=True)
class Limits:
    """How much of each run is written: `steps` of its steps, chosen evenly, and so many pages of these kinds."""

    steps: int = 10
    samples: int = 2000
    changes: int = 50


@dataclass
class Exported:
    """What was written: pages by kind, their bytes, and of each run the steps that are there and how many it has.

    `left_out` counts by kind what the other limits left out.
    """

    pages: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    bytes: int = 0
    steps: dict[str, tuple[list[int], int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Target:
    """A page: its path as in `Links`, and the part of the query that makes it a file of its own."""

    path: str
    query: tuple[tuple[str, str], ...] = ()

    @property
    def file(self) -> str:
        """Where it is written, below the export."""
        made = "".join(f"-{key}-{re.sub('[^A-Za-z0-9_]', '_', value)}" for key, value in self.query)
        return f"{self.path}index{made}.html"

    @property
    def run(self) -> str:
        """The run that it is of, by its slug; empty for a page about several."""
        parts = self.path.split("/")
        return parts[1] if parts[0] == "run" and len(parts) > 2 else ""

    @property
    def kind(self) -> tuple[str, str, list[str]]:
        """(kind, run, the rest of the path); a page that there is once per run, or once, is of the kind `page`."""
        found = _KIND.fullmatch(self.path)
        return (found["kind"], found["slug"], found["rest"].split("/")) if found else ("page", "", [])


def check_target(out: Path) -> None:
    """UserError if an export must not be written to `out`: only a new, empty or earlier one's folder will do."""
    for outer in (out.resolve(), *out.resolve().parents):
        if run_info(outer) is not None:
            raise UserError(f"{out} lies in the run {outer}, into which nothing is written: choose another --static")
    if not out.exists():
        return
    if not out.is_dir():
        raise UserError(f"--static {out} is a file: name a folder")
    if any(out.iterdir()) and not _is_export(out):
        raise UserError(f"{out} holds other files, which an export would replace: choose a new folder for --static")


def export(
    catalog: Catalog, out: Path, limits: Limits | None = None, progress: Progress = lambda pages, runs, share: None
) -> Exported:
    """Write the pages of all runs to `out`; it appears when it is complete, and replaces an earlier export.

    Runs are written one after the other. UserError as in `check_target`.
    """
    check_target(out)
    out = out.resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = out.with_name(f"{TMP_PREFIX}static-{out.name}")
    shutil.rmtree(folder, ignore_errors=True)
    try:
        exported = _Walk(catalog, folder, limits or Limits(), progress).run()
        if out.exists():
            shutil.rmtree(out)
        os.rename(folder, out)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return exported


class _Walk:
    """One export, into a folder that is not there yet."""

    def __init__(self, catalog: Catalog, folder: Path, limits: Limits, progress: Progress):
        self.folder, self.limits, self.progress = folder, limits, progress
        self.exported = Exported()
        self.steps = {entry.slug: _steps(entry.path, limits.steps) for entry in catalog.entries()}
        self.site = Site(catalog, files=True, steps={slug: chosen for slug, (chosen, _) in self.steps.items()})
        self.exported.steps = {slug: found for slug, found in self.steps.items() if found[1]}
        self.routes = [(*compile_path(path), make) for path, make in PAGES.items()]
        self.written: set[Target] = set()
        self.taken: Counter[tuple[str, str]] = Counter()
        self.expected = {entry.slug: self._expected(entry.path, entry.slug) for entry in catalog.entries()}

    def run(self) -> Exported:
        """Two passes: which links lead nowhere is known when all pages are written."""
        waiting = {"": deque([Target("")])}  # by run, each with those that its pages link
        seen = {Target("")}
        done: Counter[str] = Counter()
        finished: set[str] = set()
        while waiting:
            slug, queue = next(iter(waiting.items()))
            if not queue:
                del waiting[slug]
                finished.add(slug)
                continue
            target = queue.popleft()
            text = self._render(target)
            if text is None:
                continue
            self._write(target.file, text.encode())
            self.written.add(target)
            for link in _links(target.path, text):
                if link not in seen:
                    seen.add(link)
                    if self._wanted(link):
                        waiting.setdefault(link.run, deque()).append(link)
            done[slug] += 1
            self.progress(len(self.written), len(finished & self.expected.keys()), self._share(done, finished))
        for target in self.written:
            file = self.folder / target.file
            file.write_bytes(self._mended(target, file.read_text(encoding="utf-8")).encode())
            self.exported.pages[target.kind[0]] += 1
            self.exported.bytes += file.stat().st_size
        for asset in (*(file.name for file in ASSETS.iterdir() if file.is_file()), PLOTLY):
            source = asset_file(asset)
            assert source is not None, asset
            self._write(f"assets/{asset}", source.read_bytes())
        pages = len(self.written)
        self._write(MARK, json.dumps({"format": FORMAT, "hone": __version__, "pages": pages}).encode() + b"\n")
        return self.exported

    def _expected(self, path: Path, slug: str) -> int:
        """About how many pages a run gets: what its share of the work is measured by."""
        chosen = self.steps[slug][0]
        rows = [_rows(rollouts_path(path, step)) for step in chosen]
        return _FIXED + sum(1 + min(count, self.limits.samples // len(chosen)) for count in rows)

    def _share(self, done: Mapping[str, int], finished: set[str]) -> float:
        """The share of the work that is done."""
        made = sum(count if slug in finished else min(done[slug], count) for slug, count in self.expected.items())
        return made / max(1, sum(self.expected.values()))

    def _render(self, target: Target) -> str | None:
        """The page, or the one that says why it can't be shown; None for a path that is no page."""
        for pattern, _, convertors, make in self.routes:
            match = pattern.fullmatch("/" + target.path)
            if match is None:
                continue
            parts = {name: convertors[name].convert(value) for name, value in match.groupdict().items()}
            try:
                return make(self.site, dict(target.query), **parts)
            except UserError as error:
                return self.site.error(target.path, "This cannot be shown", str(error))
        return None

    def _wanted(self, target: Target) -> bool:
        """Whether a page that is linked is within the limits."""
        kind, slug, rest = target.kind
        chosen = self.steps.get(slug, ([], 0))[0]
        inside, place, most = True, (kind, slug), math.inf
        if kind in ("step", "sample"):
            inside = rest[0].isdigit() and int(rest[0]) in chosen
            if kind == "sample" and inside:  # as many of each step
                place, most = (kind, f"{slug}/{rest[0]}"), self.limits.samples // len(chosen)
        elif kind == "change":
            most = self.limits.changes
        if not inside or target.query:
            return inside
        self.taken[place] += 1
        self.exported.left_out[kind] += self.taken[place] > most
        return self.taken[place] <= most

    def _write(self, name: str, content: bytes) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def _mended(self, target: Target, text: str) -> str:
        """Links to files that are there keep their target, others lose it."""

        def mend(found: re.Match[str]) -> str:
            link = _target(target.path, unescape(found[2]))
            if link is None:
                return found[0]
            at = next((one for one in (link, Target(link.path)) if one in self.written), None)
            if at is None:
                return f'{found[1]} aria-disabled="true"'
            query, fragment = urlsplit(unescape(found[2]))[3:]
            rest = [pair for pair in parse_qsl(query) if pair not in at.query]
            up = "../" * target.path.count("/")
            href = up + quote(at.file, safe="/~") + (f"?{urlencode(rest)}" if rest else "")
            return f'{found[1]} href="{escape(href + (f"#{fragment}" if fragment else ""))}"'

        return _ANCHOR.sub(mend, text)


def _steps(path: Path, count: int) -> tuple[list[int], int]:
    """`count` of a run's steps that have rollouts, evenly, the first and the last among them; and how many it has."""
    try:
        steps = Run(path).rollout_steps()
    except UserError:
        return [], 0
    return evenly(steps, count), len(steps)


def _rows(rollouts: Path) -> int:
    """Completions in a file of rollouts; 0 if it can't be read."""
    from pyarrow import ArrowException
    from pyarrow.parquet import read_metadata

    try:
        return read_metadata(rollouts).num_rows
    except (OSError, ArrowException):
        return 0


def evenly(values: Sequence[int], count: int) -> list[int]:
    """At most `count` of them, the first and the last among them."""
    if len(values) <= count or count < 2:
        return list(values[:count] if count < 2 else values)
    return [values[round(index * (len(values) - 1) / (count - 1))] for index in range(count)]


def _links(here: str, text: str) -> Iterator[Target]:
    """The pages that a page links, in order."""
    for found in _ANCHOR.finditer(text):
        target = _target(here, unescape(found[2]))
        if target is not None:
            yield target


def _target(here: str, href: str) -> Target | None:
    """The page that a link leads to; None for one that leads elsewhere, or to a place in the page itself."""
    parts = urlsplit(href)
    if parts.scheme or parts.netloc or not (parts.path or parts.query):
        return None
    path = posixpath.normpath(posixpath.join("/", here, unquote(parts.path))).lstrip("/")
    path = path.removesuffix("index.html")
    path = f"{path}/" if path and not path.endswith("/") else path
    kept = {
        (name, value) for name, value in parse_qsl(parts.query) if name in VARIANTS and (name, value) != ("page", "1")
    }
    return Target(path, tuple(sorted(kept)))


def _is_export(folder: Path) -> bool:
    try:
        made: Mapping[str, Any] = read_json(folder / MARK)
    except (OSError, UserError):
        return False
    return made.get("format") == FORMAT
