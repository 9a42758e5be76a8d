"""HTTP itself: bodies, streams of events, clients that leave, and errors in the form that OpenAI's clients expect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from hone.inference.server.protocol import ApiError, as_api_error

MAX_BODY = 32 * 2**20
"""Bytes of a request."""
SMALL_BODY = 2**16
"""Bytes that are read, and parsed, in no time."""
ALL_BODIES = 4 * MAX_BODY
"""Bytes of all larger bodies that are read or parsed at once."""
BODY_SECONDS = 60.0
"""Seconds that a client has to send a body."""
MAX_STRINGS, MAX_FIELDS, MAX_PARTS, MAX_VALUES = 2**17, 2**15, 2**17, 2**21
"""Of one request's JSON: strings; fields of objects; lists and objects; commas, so about token ids."""
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


async def only_json(request: Request) -> None:
    """Refuses a POST whose body is not JSON: a web page can send other kinds to any server without being let."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    has_body = "transfer-encoding" in request.headers or request.headers.get("content-length", "0") != "0"
    if request.method == "POST" and kind != "application/json" and (kind or has_body):
        raise ApiError(400, "the body must be JSON: send the header `Content-Type: application/json`")


class Bodies:
    """Reads the bodies of requests: each within `seconds`, and all together in `room` bytes at most.

    A body counts, at its declared length, from before it is read until it is parsed; one that finds no room waits for
    it. Small ones don't count: the protocol has read them already.
    """

    def __init__(self, seconds: float = BODY_SECONDS, room: int = ALL_BODIES) -> None:
        self.seconds, self.room = seconds, room
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytearray]:
        """The body, for as long as the block lasts. ApiError 413 if it is too large, 408 or 503 if it takes long."""
        # Digits: h11 has seen to it. Chunks without a length may become as much as there may be.
        size = int(request.headers.get("content-length", MAX_BODY if "transfer-encoding" in request.headers else 0))
        if size > MAX_BODY:
            raise _too_large()
        taken, body = 0, bytearray()
        try:
            try:
                async with asyncio.timeout(self.seconds):
                    while SMALL_BODY < size > self.room:
                        self._freed.clear()
                        await self._freed.wait()
                    taken = size if size > SMALL_BODY else 0
                    self.room -= taken
                    async for part in request.stream():
                        body += part
                        if len(body) > MAX_BODY:
                            raise _too_large()
            except TimeoutError:
                if size > SMALL_BODY and not taken:
                    raise ApiError(503, "too many large requests at once: send this one again later") from None
                raise ApiError(408, f"the request was not sent within {self.seconds:g} s: send it faster") from None
            yield body
        finally:
            self.room += taken
            self._freed.set()


def _too_large() -> ApiError:
    return ApiError(413, f"the request is larger than {MAX_BODY // 2**20} MiB")


def check_size_of_json(body: bytearray) -> None:
    """Raise ApiError 413 for JSON of too many parts: parsing is one call of C, which holds up all other requests.

    The content of strings does not count.
    """
    if len(body) <= SMALL_BODY:
        return
    rest = body.replace(rb"\\", b"").replace(rb"\"", b"")
    counts = {"strings": (rest.count(b'"') // 2, MAX_STRINGS)}
    if counts["strings"][0] <= MAX_STRINGS:
        rest = b"".join(rest.split(b'"')[::2])
        counts["lists and objects"] = (rest.count(b"[") + rest.count(b"{"), MAX_PARTS)
        counts["fields"] = (rest.count(b":"), MAX_FIELDS)
        counts["values"] = (rest.count(b","), MAX_VALUES)
    for what, (count, most) in counts.items():
        if count > most:
            raise ApiError(413, f"the request has {count} {what}, more than {most}: send it in parts")


def characters(value: Any) -> int:
    """Count the characters of all texts in a JSON value, and one for each other value."""
    total, left = 0, [value]
    while left:
        item = left.pop()
        if isinstance(item, dict):
            left += (*item.keys(), *item.values())
        elif isinstance(item, list):
            left += item
        else:
            total += len(item) if isinstance(item, str) else 1
    return total


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
    return JSONResponse(told.body(), told.status, {"Retry-After": "1"} if told.status == 503 else None)


async def on_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse(ApiError(error.status_code, str(error.detail)).body(), error.status_code)


async def on_leaving(_: Request, __: Exception) -> Response:
    return Response(status_code=LEFT)


def json_answer(answer: dict[str, Any]) -> Response:
    """Write the answer as JSON, one choice at a time, so that other threads may run in between."""
    choices = ",".join(map(_dump, answer["choices"]))
    rest = _dump({name: value for name, value in answer.items() if name != "choices"})
    return Response(f'{rest[:-1]},"choices":[{choices}]}}', media_type="application/json")


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def event(value: dict[str, Any]) -> str:
    return f"data: {_dump(value)}\n\n"
