"""`hone view [DIR]`: runs in a browser, on this machine only. Writes nothing into a run.

hone view                       # the runs under outputs/
hone view outputs/tiny-rl       # one run
"""

from __future__ import annotations

import threading
from shlex import quote

from hone.extensions.viewer.app import create_app
from hone.extensions.viewer.catalog import Catalog, counted
from hone.extensions.viewer.config import ViewConfig
from hone.extensions.viewer.site import Site
from hone.extensions.viewer.store import warm
from hone.serving import listen, serve

HOST = "127.0.0.1"
GRACE = 1
"""Seconds that a page under way has when the server is stopped."""
WARM = 1.0
"""Seconds after which the libraries for pages of samples are loaded: the first page goes first."""


def run(config: ViewConfig) -> int:
    """Serve until Ctrl-C; returns 0 then. Raises UserError if there is no such folder, or the port is taken."""
    catalog = Catalog(config.root)
    warming = threading.Timer(WARM, warm)
    warming.daemon = True
    warming.start()
    with listen(HOST, config.port) as listener:
        serve(create_app(Site(catalog)), listener, _intro(config, catalog), GRACE)
    print("Stopped.")
    return 0


def _intro(config: ViewConfig, catalog: Catalog) -> str:
    url, entries, around = f"http://{HOST}:{config.port}/", catalog.entries(), catalog.around
    if len(entries) == 1 and entries[0].path == config.root and not entries[0].damage:
        url += f"run/{entries[0].slug}/"
    text = f"Showing {counted(entries)} under {config.root} at {url}\n"
    if not entries:
        lies = f"{config.root} lies in the run {around}: `hone view {quote(str(around))}` shows it"
        none = f"there is no run under {config.root}: name a run, or the folder that holds your runs"
        text += f"Warning: {lies if around else none}\n"
    forward = f"ssh -L {config.port}:{HOST}:{config.port} THIS-MACHINE, then the same address"
    return f"{text}from another machine   {forward}\nstop                   Ctrl-C"
