"""HTTP in OpenAI's form: request bodies, answers, streamed answers, and errors.

Used by hone's server and by the endpoint of a run's programs (`hone.extensions.agents.host`).
"""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from hone.errors import UserError
from hone.extensions.server.protocol import FAILED, ApiError, ChatRequest, GenerationRequest, TokensRequest
from hone.types import Message

SHORT = 4096
"""Number of characters that take about a millisecond to parse and tokenise."""
MAX_BODY = 32 * 2**20
BODY_SECONDS = 60.0
"""Seconds that a client may take to send a body."""
LEFT = 499
"""Status of an answer to a client that has disconnected."""

T = TypeVar("T")


def application(handlers: Mapping[str, Callable], check: Callable[[Request], Any], lifespan: Any = None) -> Starlette:
    """Return an application with `handlers` by "METHOD /path". `check` runs first, and raises ApiError to refuse."""

    def route(place: str) -> Route:
        async def answer(request: Request) -> Response:
            check(request)
            return await handlers[place](request)

        method, path = place.split()
        return Route(path, answer, methods=[method])

    kinds = (ApiError, UserError, HTTPException, ClientDisconnect, Exception)  # the last is logged with its traceback
    errors = dict.fromkeys(kinds, _on_error)
    return Starlette(routes=[*map(route, handlers)], lifespan=lifespan, exception_handlers=errors)


def api_key_of(request: Request) -> str:
    return request.headers.get("authorization", "").removeprefix("Bearer ")


def too_large() -> ApiError:
    return ApiError(413, f"the request is larger than {MAX_BODY // 2**20} MiB")


async def read_body(request: Request, limit: int = MAX_BODY, refusal: Callable[[], ApiError] = too_large) -> bytes:
    """Return the body of a request. Raises `refusal()` if it is over `limit` bytes, ApiError 408 if it is too slow.

    If the body is over `limit`, the rest is read (up to MAX_BODY) and dropped, because a client that is still sending
    would not see the error.
    """
    body, size = bytearray(), 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size > MAX_BODY:
                    break
                if size <= limit:
                    body += part
    except TimeoutError:
        raise ApiError(408, f"the request was not sent within {BODY_SECONDS:g} s: send it faster") from None
    if size > limit:
        raise refusal()
    return bytes(body)


async def apart(threads: Executor | None, size: int, work: Callable[[], T]) -> T:
    """Return the result of `work()`. If `size` is over SHORT characters, run `work` in another thread."""
    return work() if size <= SHORT else await asyncio.get_running_loop().run_in_executor(threads, work)


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T | Response:
    """Return the result of `work`, or cancel it if the client disconnects."""

    async def leaving() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, left = asyncio.ensure_future(work), asyncio.ensure_future(leaving())
    try:
        await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else Response(status_code=LEFT)
    finally:
        task.cancel()
        left.cancel()


def answer(head: dict[str, Any], choices: Sequence[dict[str, Any]], used: dict[str, int]) -> Response:
    """Write an answer as JSON, one choice at a time, so that other threads can run in between."""
    written = ",".join(map(_dump, choices))
    return Response(f'{_dump(head | {"usage": used})[:-1]},"choices":[{written}]}}', media_type="application/json")


class EventStream(StreamingResponse):
    """Sends choices as server-sent events, then usage if requested. An error ends the stream. Always calls `close`."""

    media_type = "text/event-stream"

    def __init__(
        self,
        body: GenerationRequest | TokensRequest,
        head: dict[str, Any],
        choices: AsyncIterator[dict[str, Any]],
        used: Callable[[], dict[str, int]],
        close: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(self._events(), headers={"Cache-Control": "no-cache"})
        self._with_usage = body.stream_options is not None and body.stream_options.include_usage
        self._head, self._choices, self._used, self._close = head, choices, used, close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()

    async def _events(self) -> AsyncIterator[str]:
        try:
            async for choice in self._choices:
                yield _event(self._head | {"choices": [choice]})
        except Exception as error:
            if (known := as_api_error(error)).status == 500:
                traceback.print_exception(error)
            yield _event(known.body())
        else:
            if self._with_usage:
                yield _event(self._head | {"choices": [], "usage": self._used()})
            yield "data: [DONE]\n\n"


def chat_choice(
    index: int, text: str, calls: Sequence[dict[str, Any]], reason: str | None, whole: bool
) -> dict[str, Any]:
    if whole:
        message: dict[str, Any] = {"role": "assistant", "content": None if calls and not text else text}
        message["refusal"] = None
    else:
        message = {"content": text} if text else {}
        calls = [{"index": i, **call} for i, call in enumerate(calls)]
    message |= {"tool_calls": calls} if calls else {}
    return {"index": index, "message" if whole else "delta": message, "logprobs": None, "finish_reason": reason}


def chat_opening(index: int) -> dict[str, Any]:
    return {"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}


def chat_answer(body: ChatRequest, head: dict[str, Any], reply: Message, reason: str, used: dict[str, int]) -> Response:
    calls = reply.get("tool_calls") or []
    choice = chat_choice(0, reply["content"], calls, "tool_calls" if calls else reason, whole=not body.stream)
    more = {name: value for name, value in reply.items() if name not in ("role", "content", "tool_calls")}
    choice["delta" if body.stream else "message"] |= more
    if not body.stream:
        return answer(head | {"object": "chat.completion"}, [choice], used)

    async def choices() -> AsyncIterator[dict[str, Any]]:
        yield chat_opening(0)
        yield choice

    return EventStream(body, head | {"object": "chat.completion.chunk"}, choices(), lambda: used)


def usage(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def as_api_error(error: Exception) -> ApiError:
    """Return the error to send: with the reason if the client caused it, else only that the server failed."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, UserError):
        return ApiError(400, str(error))
    if isinstance(error, HTTPException):
        return ApiError(error.status_code, str(error.detail))
    return ApiError(500, f"{FAILED}; its log says why")


async def _on_error(_: Request, error: Exception) -> Response:
    if isinstance(error, ClientDisconnect):  # nobody reads an answer
        return Response(status_code=LEFT)
    known = as_api_error(error)
    headers = {"Retry-After": "1"} if known.status == 503 else {}
    if known.status == 408:  # the rest of the body may never come
        headers["Connection"] = "close"
    return JSONResponse(known.body(), known.status, headers)


def _event(body: dict[str, Any]) -> str:
    return f"data: {_dump(body)}\n\n"


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
