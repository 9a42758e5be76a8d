"""The OpenAI-compatible endpoint for the programs of a batch of rollouts, on the driver's event loop.

A client in this process needs no socket; a command reaches the endpoint on 127.0.0.1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from hone.environments.driver import Driver
from hone.errors import UserError
from hone.extensions.agents.calls import AgentRequest, ModelCalls, Reply
from hone.extensions.server import http
from hone.extensions.server.protocol import ApiError, ChatRequest, parse
from hone.serving import serving_here


def host_of(driver: Driver, calls: ModelCalls) -> Host:
    host = driver.endpoint = driver.endpoint or Host(driver)
    host.by_key[calls.api_key] = calls
    return host


class Host:
    """Receives the calls of programs. The API key of a call names its rollout."""

    def __init__(self, driver: Driver) -> None:
        self.by_key: dict[str, ModelCalls] = {}
        self._stack, self._starting, self._url = driver.stack, asyncio.Lock(), ""
        handlers = {"POST /v1/chat/completions": self._chat, "GET /v1/models": self._models}
        self.app = http.application(handlers, self._calls)

    async def url(self) -> str:
        """Return the URL of the endpoint; the first call starts it."""
        async with self._starting:
            if not self._url:
                self._url = await self._stack.enter_async_context(serving_here(self.app)) + "/v1"
        return self._url

    def client(self, api_key: str) -> Any:
        """Return an `openai.AsyncOpenAI` client that needs no socket."""
        import httpx
        import openai

        # newer openai has a fork of httpx with the same names
        client: Any = httpx.AsyncClient(transport=httpx.ASGITransport(app=self.app))
        url = "http://127.0.0.1/v1"
        return openai.AsyncOpenAI(api_key=api_key, base_url=url, http_client=client, max_retries=0, timeout=None)

    async def _models(self, _: HttpRequest) -> Response:
        card = {"id": "policy", "object": "model", "created": 0, "owned_by": "hone"}
        return JSONResponse({"object": "list", "data": [card]})

    async def _chat(self, request: HttpRequest) -> Response:
        rollout, again = self._calls(request), request.headers.get("x-stainless-retry-count", "0") != "0"
        try:
            raw = await http.read_body(request, rollout.largest_body, rollout.too_large)
            async with rollout.entering:
                if not again:
                    rollout.check_open()
                body = await http.apart(None, len(raw), lambda: parse(AgentRequest, raw))
                answer = await rollout.begin(body, request.headers.get("x-session-id", ""), again)
            return await http.while_connected(request, _response(body, answer))
        except (ApiError, UserError) as error:
            rollout.refused += http.as_api_error(error).status < 500
            raise

    def _calls(self, request: HttpRequest) -> ModelCalls:
        rollout = self.by_key.get(http.api_key_of(request))
        if rollout is None:
            raise ApiError(401, "the API key names no rollout of this step", None, "invalid_api_key")
        return rollout


async def _response(body: ChatRequest, answer: Coroutine[Any, Any, Reply]) -> Response:
    name, reply, reason, used = await answer
    head = {"id": f"chatcmpl-{name}", "created": 0, "model": body.model or "policy"}
    return http.chat_answer(body, head, reply, reason, used)
