"""Completions from any server that speaks OpenAI's chat protocol, with patience for servers that fail now and then.

    async with ChatClient(Endpoint("http://localhost:8000/v1")) as client:
        reply = await client.complete(model, messages, {"max_tokens": 100}, sample_id)

What may pass is tried again, as `hone.inference.endpoint` says. What is refused otherwise, or once too often, is a
`Failure`. A key that is wrong, or a model that is not there, ends all (UserError) as long as nothing has succeeded. A
server that has gone for good is not waited for again with each request.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from hone.errors import UserError
from hone.inference.endpoint import Endpoint, delay, one_line
from hone.types import Message, Rollout, Usage
from hone.web import MIB, TooLarge, client_options, may_pass, retry_after

if TYPE_CHECKING:
    from openai import AsyncOpenAI

LARGEST_ANSWER = 64 * MIB
LISTING = 10.0
"""Seconds that a server has to list its models."""


@dataclass(frozen=True)
class Failure:
    """A request that came to nothing, and why."""

    reason: str


class ChatClient:
    """Sends requests to one server, inside one event loop; `async with` closes it.

    `retries` counts the tries after a first one; `succeeded` the requests that were answered.
    """

    def __init__(self, endpoint: Endpoint, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient, Timeout

        self.endpoint = endpoint
        self.retries = self.succeeded = 0
        self._sleep = sleep
        self._gone = ""
        timeout = Timeout(endpoint.timeout, connect=endpoint.connect)
        http = DefaultAsyncHttpxClient(timeout=timeout, **client_options(endpoint.url, LARGEST_ANSWER))
        key = endpoint.api_key or "none"  # the library wants one; servers without keys ignore it
        self._openai: AsyncOpenAI = AsyncOpenAI(
            base_url=endpoint.url, api_key=key, max_retries=0, timeout=timeout, http_client=http
        )

    async def __aenter__(self) -> ChatClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._openai.close()

    async def served(self, model: str | None) -> dict[str, str]:
        """Return the owners of the models that the server lists, by their ids; empty if it has no list.

        Raises UserError if none answers or it wants a key.
        """
        from openai import APIConnectionError, APIStatusError, APITimeoutError, OpenAIError

        try:
            page = await self._list()
            return {entry.id: entry.owned_by or "" for entry in page.data}
        except APIConnectionError as error:
            if _refused(error) or not isinstance(error, APITimeoutError):
                port = urlsplit(self.endpoint.url).port
                words = f"inference --model.name {model or 'MODEL'}{f' --port {port}' if port and port != 8000 else ''}"
                raise UserError(
                    f"nothing answers at {self.endpoint.url} ({_cause(error)}): start a server with `{words}` in "
                    "another terminal, or give the URL of one that runs with -b"
                ) from None
        except APIStatusError as error:
            if error.status_code in (401, 403):
                raise UserError(self._wants_key(error)) from None
        except (OpenAIError, TooLarge, TimeoutError, ValueError, TypeError, AttributeError):
            pass  # answers, but has no list of models that could be read: the requests will show what it can do
        return {}

    async def complete(
        self, model: str, messages: list[Message], body: dict[str, Any], sample_id: str
    ) -> Rollout | Failure:
        """Return the completion, after as many tries as it takes. UserError: see the top of this module.

        `body` holds everything but model and messages: `max_tokens`, `temperature`, …
        """
        from openai import APIConnectionError, APIStatusError, APITimeoutError, OpenAIError

        before, reason, timeout = self.succeeded, "", self.endpoint.timeout
        for attempt in range(self.endpoint.max_retries + 1):
            if self._gone:
                return Failure(self._gone)
            wait = None
            try:
                async with asyncio.timeout(self.endpoint.longest):
                    reply = await self._once(model, messages, body, sample_id)
            except TimeoutError:
                reason = f"no answer within {timeout:g} s"
            except TooLarge as error:
                return Failure(str(error))
            except APIConnectionError as error:
                if isinstance(error.__cause__, TooLarge):  # as older versions of openai have it
                    return Failure(str(error.__cause__))
                reason = f"the connection was lost ({_cause(error)})"
                if _refused(error):
                    reason = f"nothing answers ({_cause(error)})"
                elif isinstance(error, APITimeoutError):
                    reason = f"no answer within {timeout:g} s"
            except APIStatusError as error:
                reason = f"status {error.status_code}: {_reason(error)}"
                if error.code == "insufficient_quota" or not may_pass(error.status_code):
                    if not self.succeeded:
                        await self._refuse_hopeless(model, error)
                    return Failure(reason)
                wait = retry_after(error.response.headers)
            except (OpenAIError, ValueError, TypeError) as error:
                return Failure(f"the answer is no chat completion ({one_line(str(error))})")
            else:
                self.succeeded += isinstance(reply, Rollout)
                return reply
            if attempt < self.endpoint.max_retries:
                self.retries += 1
                await self._sleep(delay(attempt, wait, sample_id))
        if self.succeeded == before and not await self._answers():
            self._gone = f"the server no longer answers ({reason})"
        return Failure(f"{reason}; gave up after {self.endpoint.max_retries + 1} tries")

    async def _once(self, model: str, messages: Any, body: dict[str, Any], sample_id: str) -> Rollout | Failure:
        began = time.perf_counter()
        answer = await self._openai.chat.completions.create(model=model, messages=messages, extra_body=body)
        seconds = time.perf_counter() - began
        choices = getattr(answer, "choices", None)
        if not choices or choices[0].message is None:
            return Failure(f"the answer is no chat completion ({one_line(str(answer))}): does the URL end in /v1?")
        message, reason, usage = choices[0].message, choices[0].finish_reason, answer.usage
        if reason == "content_filter":
            return Failure("the server's content filter withheld the completion")
        turn: Message = {"role": "assistant", "content": message.content or ""}
        if message.tool_calls:
            turn["tool_calls"] = [_call(call.model_dump(warnings=False)) for call in message.tool_calls]
        extra = message.model_extra or {}
        turn |= {name: extra[name] for name in ("reasoning_content", "reasoning") if extra.get(name)}
        counts = (usage.prompt_tokens, usage.completion_tokens) if usage else (None, None)
        ended = "length" if reason == "length" else "stop"
        return Rollout(sample_id, [*messages, turn], ended, usage=Usage(*counts, seconds=seconds))

    async def _refuse_hopeless(self, model: str, error: Any) -> None:
        """Raise UserError if all requests will be refused like this first one."""
        url, reason = self.endpoint.url, _reason(error)
        if error.status_code in (401, 403):
            raise UserError(self._wants_key(error))
        if error.code == "insufficient_quota":
            raise UserError(f"{url} refuses the account: {reason}")
        if error.status_code != 404:
            return
        names = list(await self.served(model))
        if names and model not in names:
            raise UserError(f"{url} has no model {model!r}: say -m with one of {', '.join(names[:20])}")
        raise UserError(
            f"{url} answers 404 ({reason}): check that -b ends where `/chat/completions` is to follow (mostly in /v1), "
            "and the name after -m"
        )

    def _wants_key(self, error: Any) -> str:
        given = "does not accept the key" if self.endpoint.api_key else "wants an API key"
        return (
            f"{self.endpoint.url} {given} ({_reason(error)}): name the environment variable that holds it with -k, as "
            "in `-k OPENAI_API_KEY`"
        )

    async def _list(self) -> Any:
        async with asyncio.timeout(LISTING):
            return await self._openai.models.list(timeout=LISTING)

    async def _answers(self) -> bool:
        """Return False if the server is not there: no connection, or a gateway that says so."""
        from openai import APIConnectionError, APIStatusError

        try:
            await self._list()
        except (APIConnectionError, TimeoutError):
            return False
        except Exception as error:
            return not isinstance(error, APIStatusError) or error.status_code < 500
        return True


def _call(call: dict[str, Any]) -> dict[str, Any]:
    """Return a tool call as OpenAI has it; some servers give the arguments as an object, or leave them out."""
    function = call.get("function") or {}
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    named = {"name": function.get("name") or "", "arguments": text}
    return {"id": call.get("id"), "type": "function", "function": named}


def _refused(error: Any) -> bool:
    return type(error.__cause__).__name__ in ("ConnectError", "ConnectTimeout")


def _cause(error: Any) -> str:
    cause = error.__cause__ or error
    return one_line(str(cause)) or type(cause).__name__


def _reason(error: Any) -> str:
    """Return why the server refuses, in its words, in one line."""
    body = error.body
    if isinstance(body, dict):
        body = body.get("message") or body.get("detail") or body
    text = body if isinstance(body, str) else json.dumps(body, default=str) if body else ""
    return one_line(text) or "without a reason"
