"""`hone view [DIR]`: runs in a browser, on this machine only. Writes nothing into a run.

hone view                       # the runs under outputs/
hone view outputs/tiny-rl       # one run
"""

from __future__ import annotations

from hone.extensions.viewer.app import create_app
from hone.extensions.viewer.catalog import Catalog, counted
from hone.extensions.viewer.config import ViewConfig
from hone.extensions.viewer.site import Site
from hone.serving import listen, serve

HOST = "127.0.0.1"
GRACE = 1
"""Seconds to finish pages when the server stops."""


def run(config: ViewConfig) -> int:
    """Serve until Ctrl-C, then return 0. Raises UserError if the folder is missing, or the port is taken."""
    catalog, url = Catalog(config.root), f"http://{HOST}:{config.port}/"
    with listen(HOST, config.port) as listener:
        entries = catalog.entries()
        if len(entries) == 1 and entries[0].path == config.root and not entries[0].damage:
            url += f"run/{entries[0].slug}/"
        text = f"Showing {counted(entries)} under {config.root} at {url}\n"
        if not entries:
            text += f"Warning: there is no run under {config.root}: name a run, or a folder with runs\n"
        forward = f"ssh -L {config.port}:{HOST}:{config.port} THIS-MACHINE, then the same address"
        text += f"from another machine   {forward}\nstop                   Ctrl-C"
        serve(create_app(Site(catalog)), listener, text, GRACE)
    print("Stopped.")
    return 0
