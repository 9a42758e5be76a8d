"""The routes of `hone view`. Each route calls a page's function with parts of the URL. No request changes a file."""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, Response
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.staticfiles import StaticFiles

from hone.errors import UserError
from hone.extensions.viewer import curves, evals, overview, runs, samples, search
from hone.extensions.viewer.catalog import NotFound
from hone.extensions.viewer.site import ASSETS, Site

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
"""Only hone's scripts run; pages load nothing from other hosts."""
PAGES: dict[str, Callable[..., str]] = {
    "/": runs.runs,
    "/curves/": curves.curves,
    "/run/{slug}/": overview.run,
    "/run/{slug}/card/": overview.card,
    "/run/{slug}/step/{step}/": samples.step,
    "/run/{slug}/sample/{step}/{row}/": samples.sample,
    "/run/{slug}/search/": search.search,
    "/run/{slug}/eval/": evals.evaluation,
    "/run/{slug}/eval/{version}/": evals.evaluation,
    "/run/{slug}/change/{before}/{after}/": evals.change,
}
"""URL path of each page, and the page's function: (site, query, parts of the path) → HTML."""


def create_app(site: Site) -> FastAPI:
    app = FastAPI(title="hone view", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(GZipMiddleware, minimum_size=2000, compresslevel=4)
    app.middleware("http")(_secure)
    for kind in (UserError, HTTPException):
        app.add_exception_handler(kind, lambda request, error: _error(site, request, error))

    def add(path: str, make: Callable[..., str]) -> None:
        def respond(request: Request) -> Response:
            return HTMLResponse(make(site, request.query_params, **request.path_params))

        app.add_api_route(path, respond, methods=["GET"])

    for path, make in PAGES.items():
        add(path, make)

    app.mount("/assets", StaticFiles(directory=ASSETS, packages=[("plotly", "package_data")]))
    return app


async def _secure(request: Request, call_next: Callable[[Request], Any]) -> Response:
    response = await call_next(request)
    response.headers["Content-Security-Policy"] = CSP
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Referrer-Policy"] = "no-referrer"
    response.headers.setdefault("Cache-Control", "no-cache")
    return response


def _error(site: Site, request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        status = error.status_code
        sentence = "there is no such page" if status == 404 else html.unescape(str(error.detail))
    else:
        status, sentence = 404 if isinstance(error, NotFound) else 400, str(error)
    title = "Not found" if status == 404 else "This cannot be shown"
    return HTMLResponse(site.error(request.url.path.lstrip("/"), title, sentence), status)
