"""A page in Chromium, of which everything is noted that should not happen."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hone.runs.view import read_lines

FLAGS = [
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
]
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
SHOTS = Path(__file__).resolve().parents[4] / "outputs" / "browser"
"""Where screenshots are put."""
STEPS = 40
"""Of the run `quickstart/rl`."""
PATIENCE = 300_000
"""Milliseconds that something may take to appear."""


class Looks:
    """Contexts of one browser, each a visitor of its own; `troubles` holds what went wrong in any of them."""

    def __init__(self, browser: Any):
        self.browser = browser
        self.troubles: list[str] = []
        self.hosts: set[str] = set()
        self._contexts: list[Any] = []

    def page(self, **options: Any) -> Any:
        """A new visitor's page; `options` as of Playwright's `new_context`, e.g. color_scheme="dark"."""
        context = self.browser.new_context(**({"viewport": WIDE} | options))
        context.set_default_timeout(PATIENCE)
        self._contexts.append(context)
        page = context.new_page()
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.troubles.append(f"{page.url}: {error}"))
        page.on(
            "dialog", lambda dialog: (self.troubles.append(f"{page.url}: dialog {dialog.message}"), dialog.dismiss())
        )
        page.on("request", self._asked)
        page.on("response", lambda r: r.status >= 400 and self.troubles.append(f"{r.url} was answered {r.status}"))
        return page

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.troubles.append(f"console: {message.text}")

    def _asked(self, request: Any) -> None:
        parts = urlsplit(request.url)
        if parts.scheme in ("data", "blob"):
            return
        self.hosts.add(parts.hostname or parts.scheme)
        if parts.scheme != "file" and parts.hostname != "127.0.0.1":
            self.troubles.append(f"asked {request.url}")

    def close(self) -> None:
        for context in self._contexts:
            context.close()


@contextmanager
def serving(root: Path) -> Iterator[str]:
    """The address of a `hone view` of that folder, a process of its own."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    argv = [sys.executable, "-m", "hone.cli", "view", str(root), "--port", str(port)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("Showing "), line + process.stdout.read()
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(300)


def overflow(page: Any) -> int:
    """Pixels by which the page is wider than its window."""
    return page.evaluate("document.documentElement.scrollWidth - window.innerWidth")


def shot(page: Any, name: str, whole: bool = False) -> Path:
    """A screenshot, kept to be looked at."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / f"{name}.png", full_page=whole)
    return SHOTS / f"{name}.png"


def metrics_of(run: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, which may be written meanwhile."""
    return read_lines(run / "metrics.jsonl")
