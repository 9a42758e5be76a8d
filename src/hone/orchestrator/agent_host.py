"""The OpenAI-compatible endpoint that the programs of a batch of rollouts call, on the driver's loop.

A client in this process needs no socket; a command reaches it on 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from hone.environments.driver import Driver
from hone.errors import UserError
from hone.inference.server.app import MAX_BODY, on_leaving, while_connected
from hone.inference.server.protocol import ApiError, ChatRequest, as_api_error, parse
from hone.orchestrator.agents import AgentRequest, ModelCalls, Reply, apart
from hone.types import Message


def host_of(driver: Driver, calls: ModelCalls) -> Host:
    """Return the endpoint of a batch, which answers these calls from now on."""
    host = driver.endpoint = driver.endpoint or Host(driver)
    host.by_key[calls.api_key] = calls
    return host


class Host:
    """Takes the calls of programs, each under the key of its rollout."""

    def __init__(self, driver: Driver) -> None:
        self.by_key: dict[str, ModelCalls] = {}
        self._stack, self._starting, self._url = driver.stack, asyncio.Lock(), ""
        routes = [
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
            Route("/v1/models", self._models, methods=["GET"]),
        ]
        self.app = Starlette(routes=routes, exception_handlers={ClientDisconnect: on_leaving})

    async def url(self) -> str:
        """Return the URL of the endpoint, which listens from the first time on."""
        async with self._starting:
            if not self._url:
                await self._stack.enter_async_context(self._listening())
        return self._url

    def client(self, api_key: str) -> Any:
        """Return a client of `openai` that needs no socket."""
        import httpx
        import openai

        # later versions of openai have a fork of httpx, whose clients are called alike
        http: Any = httpx.AsyncClient(transport=httpx.ASGITransport(app=self.app))
        url = "http://127.0.0.1/v1"
        return openai.AsyncOpenAI(api_key=api_key, base_url=url, http_client=http, max_retries=0, timeout=None)

    @contextlib.asynccontextmanager
    async def _listening(self) -> AsyncIterator[None]:
        """Serve the endpoint on a free port of this machine."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            config = uvicorn.Config(
                self.app, http="h11", ws="none", lifespan="off", log_level="warning", use_colors=False, access_log=False
            )
            config.timeout_graceful_shutdown = 1
            # a client may send its next call just as the server closes the idle connection
            config.timeout_keep_alive = 3600
            server = uvicorn.Server(config)
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            self._url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
            try:
                yield
            finally:
                server.should_exit = True
                await serving

    async def _models(self, request: HttpRequest) -> Response:
        try:
            self._rollout(request)
        except ApiError as error:
            return JSONResponse(error.body(), error.status)
        return JSONResponse(
            {"object": "list", "data": [{"id": "policy", "object": "model", "created": 0, "owned_by": "hone"}]}
        )

    async def _chat(self, request: HttpRequest) -> Response:
        try:
            rollout = self._rollout(request)
        except ApiError as error:
            return as_error(error)
        try:
            raw = await _read(request, rollout)
            async with rollout.entering:
                again = request.headers.get("x-stainless-retry-count", "0") != "0"
                if not again:
                    rollout.check_open()
                body = await apart(len(raw), lambda: parse(AgentRequest, raw))
                answer = await rollout.begin(body, request.headers.get("x-session-id", ""), again)
        except (ApiError, UserError) as error:
            rollout.refused += 1
            return as_error(error)
        try:
            return await while_connected(request, _sent(body, answer))
        except (ApiError, UserError) as error:
            return as_error(error)

    def _rollout(self, request: HttpRequest) -> ModelCalls:
        key = request.headers.get("authorization", "").removeprefix("Bearer ")
        rollout = self.by_key.get(key)
        if rollout is None:
            raise ApiError(401, "the API key names no rollout of this step", None, "invalid_api_key")
        return rollout


async def _sent(body: ChatRequest, answer: Coroutine[Any, Any, Reply]) -> Response:
    name, reply, reason, usage = await answer
    head = {"id": f"chatcmpl-{name}", "created": 0, "model": body.model or "policy"}
    return chat_response(body, head, reply, reason, usage)


async def _read(request: HttpRequest, rollout: ModelCalls) -> bytes:
    """Return the body of a call. One that is too large is read, so that its client hears why, but not stored."""
    raw, size = bytearray(), 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY:
            break
        if size <= rollout.largest_body:
            raw += part
    if size > rollout.largest_body:
        raise rollout.too_large()
    return bytes(raw)


def as_error(error: ApiError | UserError) -> Response:
    """Return the answer to a call that can't be answered."""
    known = as_api_error(error)
    return JSONResponse(known.body(), known.status)


def chat_response(
    body: ChatRequest, head: dict[str, Any], reply: Message, reason: str, usage: dict[str, int]
) -> Response:
    """Return an answer in OpenAI's form: at once, or as the two chunks and the end of a stream."""
    calls = reply.get("tool_calls") or []
    message = reply | ({"content": None} if calls and not reply["content"] else {})
    if not body.stream:
        choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
        return JSONResponse({**head, "object": "chat.completion", "choices": [choice], "usage": usage})
    delta = message | ({"tool_calls": [{"index": i, **one} for i, one in enumerate(calls)]} if calls else {})
    chunks = [
        [{"index": 0, "delta": delta, "finish_reason": None}],
        [{"index": 0, "delta": {}, "finish_reason": reason}],
    ]
    bodies = [{**head, "object": "chat.completion.chunk", "choices": choices} for choices in chunks]
    if body.stream_options and body.stream_options.include_usage:
        bodies.append({**head, "object": "chat.completion.chunk", "choices": [], "usage": usage})
    events = [f"data: {json.dumps(one, ensure_ascii=False)}\n\n" for one in bodies] + ["data: [DONE]\n\n"]
    return StreamingResponse(iter(events), media_type="text/event-stream")
