"""HTTP itself: bodies, streams of events, clients that leave, and errors in the form that OpenAI's clients expect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from hone.inference.server.protocol import ApiError, as_api_error

MAX_BODY = 32 * 2**20
"""Bytes of a request."""
LEFT = 499
"""Status noted for a client that left."""

T = TypeVar("T")


class EventStream(StreamingResponse):
    """Server-sent events; calls `close` when all is sent, or the client has left, or sending failed."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[str], close: Callable[[], None]) -> None:
        super().__init__(events, headers={"Cache-Control": "no-cache"})
        self._close = close

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


async def read_body(request: Request) -> bytes:
    """The body, if it is declared as JSON. A web page cannot send that to another site without being let."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(400, "the body must be JSON: send the header `Content-Type: application/json`")
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY:
            raise ApiError(413, f"the request is larger than {MAX_BODY // 2**20} MiB")
        parts.append(part)
    return b"".join(parts)


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T | Response:
    """The work's result, unless the client leaves first: then the work is cancelled."""
    task, left = asyncio.ensure_future(work), asyncio.ensure_future(_disconnect(request))
    try:
        await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else Response(status_code=LEFT)
    finally:
        task.cancel()
        left.cancel()


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def on_error(_: Request, error: Exception) -> Response:
    told = as_api_error(error)
    return JSONResponse(told.body(), told.status)


async def on_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse(ApiError(error.status_code, str(error.detail)).body(), error.status_code)


async def on_leaving(_: Request, __: Exception) -> Response:
    return Response(status_code=LEFT)


def event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n"
