"""Completions from any server that speaks OpenAI's chat protocol.

    async with ChatClient(Endpoint("http://localhost:8000/v1")) as client:
        reply = await client.complete(model, messages, {"max_tokens": 100}, sample_id)

Temporary errors are retried, as `hone.client` says; other errors become a `Failure`. A wrong key or a missing model
raises UserError, unless an earlier request succeeded. Once a server stops answering, later requests fail at once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from hone.client import Client, Endpoint, RequestRejected, ResponseTimeout, ServerUnavailable, one_line
from hone.errors import Halt, UserError
from hone.types import Message, Rollout, Usage
from hone.web import MIB, TooLarge

LARGEST_ANSWER = 64 * MIB
LISTING = 10.0
"""Maximum seconds for a server to list its models."""


class Failure(Exception):
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ChatClient(Client):
    """A client of a server that speaks OpenAI's chat protocol; `succeeded` counts the answered requests."""

    def __init__(self, endpoint: Endpoint, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        super().__init__(endpoint, LARGEST_ANSWER, sleep)
        self.succeeded = 0
        self._root = endpoint.url.rstrip("/")

    async def served(self, model: str | None) -> dict[str, str]:
        """Return {model id: owner}; empty if the server has no list. UserError if it doesn't answer or needs a key."""
        try:
            return {entry["id"]: entry.get("owned_by") or "" for entry in (await self._list()).json()["data"]}
        except RequestRejected as error:
            if error.status in (401, 403):
                raise UserError(self._wants_key(error)) from None
        except ServerUnavailable as error:
            if error.status is None:
                port = urlsplit(self.endpoint.url).port
                words = f"inference --model.name {model or 'MODEL'}{f' --port {port}' if port and port != 8000 else ''}"
                raise UserError(
                    f"nothing answers at {self.endpoint.url} ({_cause(error)}): start a server with `{words}` in "
                    "another terminal, or give a running server's URL with -b"
                ) from None
        except (ResponseTimeout, TooLarge, ValueError, TypeError, AttributeError, KeyError):
            pass  # answers, but has no list of models that could be read: the requests will show what it can do
        return {}

    async def complete(
        self, model: str, messages: list[Message], body: dict[str, Any], sample_id: str
    ) -> Rollout | Failure:
        """Return the completion, after retries. `body`: the request without model and messages."""
        before, whole = self.succeeded, {"messages": messages, "model": model, **body}
        try:
            answer = await self.request("POST", f"{self._root}/chat/completions", whole, sample_id)
        except TooLarge as error:
            return Failure(str(error))
        except RequestRejected as error:
            if not self.succeeded:
                await self._refuse_hopeless(model, error)
            return Failure(f"status {error.status}: {error.reason}")
        except (ServerUnavailable, ResponseTimeout) as error:
            if error is self.over:
                return Failure(str(error))
            if isinstance(error, ResponseTimeout):
                reason = f"no answer within {self.endpoint.timeout:g} s"
            elif error.status is not None:
                reason = f"status {error.status}: {error.reason}"
            else:
                refused = type(error.cause).__name__ in ("ConnectError", "ConnectTimeout")
                reason = f"{'nothing answers' if refused else 'the connection was lost'} ({_cause(error)})"
            if self.succeeded == before and not await self._answers():
                self.over = ServerUnavailable(f"the server no longer answers ({reason})", None)
            return Failure(f"{reason}; gave up after {self.endpoint.max_retries + 1} tries")
        except ValueError as error:
            return Failure(f"the request cannot be sent ({one_line(str(error))})")
        reply = self._read(answer, messages, sample_id)
        self.succeeded += isinstance(reply, Rollout)
        return reply

    def _read(self, answer: Any, messages: list[Message], sample_id: str) -> Rollout | Failure:
        try:
            body = answer.json()
            choice, usage = body["choices"][0], body.get("usage") or {}
            counts = usage.get("prompt_tokens"), usage.get("completion_tokens")
            message, reason = choice["message"], choice.get("finish_reason")
            turn: Message = {"role": "assistant", "content": message.get("content") or ""}
            if message.get("tool_calls"):
                turn["tool_calls"] = [_call(call) for call in message["tool_calls"]]
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return Failure(f"the answer is no chat completion ({one_line(answer.text)}): does the URL end in /v1?")
        if reason == "content_filter":
            return Failure("the server's content filter withheld the completion")
        turn |= {name: message[name] for name in ("reasoning_content", "reasoning") if message.get(name)}
        ended, seconds = "length" if reason == "length" else "stop", answer.elapsed.total_seconds()
        return Rollout(sample_id, [*messages, turn], ended, usage=Usage(*counts, seconds=seconds))

    async def _refuse_hopeless(self, model: str, error: RequestRejected) -> None:
        """Raise UserError if all requests will be refused for the same reason."""
        url, reason = self.endpoint.url, error.reason
        if error.status in (401, 403):
            raise UserError(self._wants_key(error))
        if error.code == "insufficient_quota":
            raise UserError(f"{url} refuses the account: {reason}")
        if error.status != 404:
            return
        names = list(await self.served(model))
        if names and model not in names:
            raise UserError(f"{url} has no model {model!r}: give -m one of {', '.join(names[:20])}")
        raise UserError(
            f"{url} answers 404 ({reason}): check -b (it mostly ends in /v1; hone appends `/chat/completions`) and the "
            "name after -m"
        )

    def _wants_key(self, error: RequestRejected) -> str:
        given = "does not accept the key" if self.endpoint.api_key else "wants an API key"
        return (
            f"{self.endpoint.url} {given} ({error.reason}): put the key into an environment variable and name the "
            "variable, as in `-k OPENAI_API_KEY`"
        )

    async def _list(self) -> Any:
        endpoint = replace(self.endpoint, timeout=LISTING, patience=LISTING, max_retries=0)
        async with Client(endpoint, LARGEST_ANSWER) as client:
            return await client.request("GET", f"{self._root}/models")

    async def _answers(self) -> bool:
        """Return False if there is no connection to the server, or a gateway reports that it is down."""
        try:
            await self._list()
        except (RequestRejected, ServerUnavailable) as error:
            return error.status is not None and error.status < 500
        except (Halt, TooLarge) as error:
            return isinstance(error, TooLarge)
        return True


def _call(call: dict[str, Any]) -> dict[str, Any]:
    """Return a tool call in OpenAI's form. Some servers give the arguments as an object, or leave them out."""
    function = call.get("function") or {}
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    named = {"name": function.get("name") or "", "arguments": text}
    return {"id": call.get("id"), "type": "function", "function": named}


def _cause(error: ServerUnavailable) -> str:
    return one_line(str(error.cause)) or type(error.cause).__name__
