"""`hone view [DIR]`: runs in a browser, on this machine only. Writes nothing into a run.

hone view                       # the runs under outputs/
hone view outputs/tiny-rl       # one run
hone view --static site         # the same pages as files
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from pathlib import Path
from shlex import quote

from hone.commands.serving import listen, serve
from hone.config.view import ViewConfig
from hone.errors import UserError
from hone.runs.progress import duration
from hone.viewer.app import create_app
from hone.viewer.catalog import Catalog
from hone.viewer.duck import warm
from hone.viewer.site import Site

HOST = "127.0.0.1"
GRACE = 1
"""Seconds that a page under way has when the server is stopped."""
WARM = 1.0
"""Seconds after which the libraries for pages of samples are loaded: the first page goes first."""
EVERY = 2.0
"""Seconds between two lines about how far an export is."""
LEFT_OUT = {"sample": "samples", "change": "pairs of evaluations"}
"""What an export may leave out, in words."""


def run(config: ViewConfig) -> int:
    """Serves until Ctrl-C; returns 0 then. UserError if there is no such folder, or the port is taken."""
    catalog = Catalog(config.root)
    if config.static is not None:
        return _write(catalog, config.static, config.static_steps)
    warming = threading.Timer(WARM, warm)
    warming.daemon = True
    warming.start()
    with listen(HOST, config.port) as listener:
        serve(create_app(Site(catalog)), listener, _intro(config, catalog), GRACE)
    print("Stopped.")
    return 0


def _write(catalog: Catalog, out: Path, steps: int) -> int:
    """Writes the pages as files, and says where they are and what was left out. UserError if there is no run."""
    from hone.viewer.static import Limits, check_target, export

    check_target(out)
    runs = len(catalog.entries())
    if not runs:
        raise UserError(_nothing(catalog))
    began = shown = time.monotonic()

    def progress(pages: int, done: int, share: float) -> None:
        nonlocal shown
        if time.monotonic() - shown > EVERY:
            shown = time.monotonic()
            left = f", about {duration((shown - began) * (1 - share) / share)} left" if share > 0 else ""
            print(f"{pages:,} pages, {done} of {runs} run{'' if runs == 1 else 's'}{left}", flush=True)

    # an exception, at which `export` removes what it made
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        exported = export(catalog, out, Limits(steps=steps), progress)
    finally:
        signal.signal(signal.SIGTERM, before)
    pages, size = sum(exported.pages.values()), exported.bytes / 1e6
    print(f"Wrote {pages:,} pages ({size:.1f} MB) of {runs} run{'' if runs == 1 else 's'}: {out / 'index.html'}")
    for slug, (chosen, there) in exported.steps.items():
        if len(chosen) < there:
            print(f"{slug}: the samples of {len(chosen)} of its {there:,} steps (--static-steps {there} writes all).")
    for kind, words in LEFT_OUT.items():
        if exported.left_out[kind]:
            print(f"{exported.left_out[kind]:,} {words} were left out; `hone view` shows all.")
    return 0


def _nothing(catalog: Catalog) -> str:
    """Where runs would be, for a folder without any."""
    if around := catalog.around:
        return f"{catalog.root} lies in the run {around}: `hone view {quote(str(around))}` shows it"
    return f"there is no run under {catalog.root}: name a run, or the folder that holds your runs"


def _intro(config: ViewConfig, catalog: Catalog) -> str:
    url = f"http://{HOST}:{config.port}/"
    entries = catalog.entries()
    if len(entries) == 1 and entries[0].path == config.root and not entries[0].damage:
        url += f"run/{entries[0].slug}/"
    found = f"{len(entries)} run{'' if len(entries) == 1 else 's'} under {config.root}"
    return "\n".join(
        [
            f"Showing {found} at {url}",
            *([] if entries else [f"Warning: {_nothing(catalog)}"]),
            f"from another machine   ssh -L {config.port}:{HOST}:{config.port} THIS-MACHINE, then the same address",
            "stop                   Ctrl-C",
        ]
    )
