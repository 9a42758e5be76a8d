"""The routes of `hone view`: each hands what the URL says to its page's function. Nothing asked changes a file."""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware

from hone.errors import UserError
from hone.runs.evaluations import plain
from hone.viewer import pages_card, pages_eval, pages_predictions, pages_runs, pages_samples, pages_search
from hone.viewer.catalog import NotFound
from hone.viewer.site import ASSETS, CSP, Site

PLOTLY = "plotly.min.js"
PAGES: dict[str, Callable[..., str]] = {
    path: make
    for pages in (pages_runs, pages_samples, pages_search, pages_eval, pages_card, pages_predictions)
    for path, make in pages.PAGES.items()
}
"""The function of each page, by the path of its URL."""
DATA: dict[str, Callable[..., Any]] = pages_runs.DATA | pages_samples.DATA
"""The same for JSON."""


class _Data(JSONResponse):
    """JSON in which null stands for numbers that JSON lacks; a failed grader may have left some."""

    def render(self, content: Any) -> bytes:
        try:
            return json.dumps(content, allow_nan=False).encode()
        except ValueError:
            return json.dumps(plain(content), allow_nan=False).encode()


def create_app(site: Site) -> FastAPI:
    """The application that serves the pages of `site`."""
    app = FastAPI(title="hone view", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(GZipMiddleware, minimum_size=2000, compresslevel=4)
    app.middleware("http")(_secure)
    app.add_exception_handler(UserError, lambda request, error: _told(site, request, error))
    app.add_exception_handler(HTTPException, lambda request, error: _told(site, request, error))

    def page(path: str, make: Callable[..., str]) -> None:
        """A page at a path; `make(site, request's query, the parts of the path)` returns its HTML."""

        def respond(request: Request) -> HTMLResponse:
            return HTMLResponse(make(site, request.query_params, **request.path_params))

        app.add_api_route(path, respond, methods=["GET"], response_class=HTMLResponse)

    def data(path: str, make: Callable[..., Any]) -> None:
        def respond(request: Request) -> JSONResponse:
            return _Data(make(site, request.query_params, **request.path_params))

        app.add_api_route(path, respond, methods=["GET"])

    for path, make in PAGES.items():
        page(path, make)
    for path, make in DATA.items():
        data(path, make)

    @app.get("/assets/{name}")
    def asset(name: str, request: Request) -> Response:
        file = asset_file(name)
        if file is None:
            raise NotFound(f"there is no file {name}")
        forever = name == PLOTLY and "v" in request.query_params
        return FileResponse(
            file, headers={"Cache-Control": "public, max-age=31536000, immutable" if forever else "no-cache"}
        )

    return app


def asset_file(name: str) -> Path | None:
    """A script or style sheet by its name: hone's own, or Plotly's from its package; None for any other name."""
    if name == PLOTLY:
        return _plotly()
    return next((file for file in ASSETS.iterdir() if file.name == name), None)


def _plotly() -> Path:
    from importlib.util import find_spec

    spec = find_spec("plotly")  # not imported: it takes a second, and only its script is needed
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "package_data" / PLOTLY


async def _secure(request: Request, call_next: Callable[[Request], Any]) -> Response:
    response = await call_next(request)
    response.headers["Content-Security-Policy"] = f"{CSP}; frame-ancestors 'none'"
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Referrer-Policy"] = "no-referrer"
    response.headers.setdefault("Cache-Control", "no-cache")
    return response


def _told(site: Site, request: Request, error: Exception) -> Response:
    """What a user can mend as a page with that sentence: 404 for what is not there, else 400."""
    status = error.status_code if isinstance(error, HTTPException) else 404 if isinstance(error, NotFound) else 400
    sentence = "there is no such page" if isinstance(error, HTTPException) and status == 404 else _sentence(error)
    if request.url.path.startswith("/data/"):
        return JSONResponse({"error": sentence}, status)
    here = request.url.path.lstrip("/")
    title = "Not found" if status == 404 else "This cannot be shown"
    return HTMLResponse(site.error(here, title, sentence), status)


def _sentence(error: Exception) -> str:
    return html.unescape(str(error.detail)) if isinstance(error, HTTPException) else str(error)
