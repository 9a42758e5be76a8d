"""Completions from any server that speaks OpenAI's chat protocol, with patience for servers that fail now and then.

    async with ChatClient(Endpoint("http://localhost:8000/v1")) as client:
        reply = await client.complete(model, ChatRequest(messages, {"max_tokens": 100}, sample_id))

What may pass is tried again, as `hone.inference.endpoint` says. What is refused otherwise, or once too often, is a
`Failure`. A key that is wrong, or a model that is not there, ends all (UserError) as long as nothing has succeeded. A
server that has gone for good is not waited for again with each request.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from hone.errors import UserError
from hone.inference.endpoint import Endpoint, delay, may_pass, one_line, retry_after
from hone.types import Message, Reply

if TYPE_CHECKING:
    from openai import AsyncOpenAI

T = TypeVar("T")
_HOPELESS = (401, 403, 404)


@dataclass(frozen=True)
class ChatRequest:
    """One completion to ask for. `body` holds everything but model and messages: `max_tokens`, `temperature`, …"""

    messages: list[Message]
    body: dict[str, Any]
    sample_id: str


@dataclass(frozen=True)
class Failure:
    """A request that came to nothing, and why."""

    reason: str


@dataclass(frozen=True)
class Served:
    """A model that the server lists."""

    id: str
    owner: str


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
        timeout = Timeout(endpoint.timeout, connect=min(endpoint.timeout, 10.0))
        # A proxy of the environment's cannot reach a server on this machine.
        http = DefaultAsyncHttpxClient(timeout=timeout, trust_env=not endpoint.local)
        key = endpoint.api_key or "none"  # the library wants one; servers without keys ignore it
        self._openai: AsyncOpenAI = AsyncOpenAI(
            base_url=endpoint.url, api_key=key, max_retries=0, timeout=timeout, http_client=http
        )

    async def __aenter__(self) -> ChatClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._openai.close()

    async def served(self, model: str | None) -> list[Served] | None:
        """List the models of the server; None if it has no list. Raises UserError if none answers or it wants a key."""
        from openai import APIConnectionError, APIStatusError, APITimeoutError, OpenAIError

        try:
            page = await self._openai.models.list(timeout=10.0)
            return [Served(entry.id, entry.owned_by or "") for entry in page.data] or None
        except APIConnectionError as error:
            if _refused(error) or not isinstance(error, APITimeoutError):
                raise UserError(self._nothing_answers(model, error)) from None
        except APIStatusError as error:
            if error.status_code in (401, 403):
                raise UserError(self._wants_key(error)) from None
        except (OpenAIError, ValueError, TypeError, AttributeError):
            pass  # answers, but has no list of models that could be read: the requests will show what it can do
        return None

    async def complete(self, model: str, request: ChatRequest) -> Reply | Failure:
        """Return the completion, after as many tries as it takes. UserError: see the top of this module."""
        from openai import APIConnectionError, APIStatusError, OpenAIError

        before, reason = self.succeeded, ""
        for attempt in range(self.endpoint.max_retries + 1):
            if self._gone:
                return Failure(self._gone)
            try:
                reply = await self._once(model, request)
            except APIConnectionError as error:
                reason, wait = _lost(error, self.endpoint.timeout), None
            except APIStatusError as error:
                if error.code == "insufficient_quota" or not may_pass(error.status_code):
                    return await self._refusal(model, error)
                reason, wait = f"status {error.status_code}: {_reason(error)}", retry_after(error.response.headers)
            except (OpenAIError, ValueError, TypeError) as error:
                return Failure(f"the answer is no chat completion ({one_line(str(error))})")
            else:
                self.succeeded += isinstance(reply, Reply)
                return reply
            if attempt < self.endpoint.max_retries:
                self.retries += 1
                await self._sleep(delay(attempt, wait, request.sample_id))
        if self.succeeded == before and not await self._answers():
            self._gone = f"the server no longer answers ({reason})"
        return Failure(f"{reason}; gave up after {self.endpoint.max_retries + 1} tries")

    async def _once(self, model: str, request: ChatRequest) -> Reply | Failure:
        messages: Any = request.messages
        began = time.perf_counter()
        answer = await self._openai.chat.completions.create(model=model, messages=messages, extra_body=request.body)
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
        return Reply(
            messages=[*request.messages, turn],
            stop_reason="length" if reason == "length" else "stop",
            sample_id=request.sample_id,
            prompt_tokens=usage.prompt_tokens if usage else None,
            completion_tokens=usage.completion_tokens if usage else None,
            seconds=seconds,
        )

    async def _refusal(self, model: str, error: Any) -> Failure:
        """Return the failure of this one request; UserError if all are hopeless."""
        hopeless = error.status_code in _HOPELESS or error.code == "insufficient_quota"
        if not hopeless or self.succeeded:
            return Failure(f"status {error.status_code}: {_reason(error)}")
        if error.status_code in (401, 403):
            raise UserError(self._wants_key(error))
        if error.status_code != 404:
            raise UserError(f"{self.endpoint.url} refuses the account: {_reason(error)}")
        names = [entry.id for entry in await self.served(model) or []]
        if names and model not in names:
            raise UserError(f"{self.endpoint.url} has no model {model!r}: say -m with one of {', '.join(names[:20])}")
        raise UserError(
            f"{self.endpoint.url} answers 404 ({_reason(error)}): check that -b ends where `/chat/completions` is to "
            "follow (mostly in /v1), and the name after -m"
        )

    def _nothing_answers(self, model: str | None, error: Any) -> str:
        port = urlsplit(self.endpoint.url).port
        words = f"inference --model.name {model or 'MODEL'}{f' --port {port}' if port and port != 8000 else ''}"
        return (
            f"nothing answers at {self.endpoint.url} ({_cause(error)}): start a server with `{words}` in another "
            "terminal, or give the URL of one that runs with -b"
        )

    def _wants_key(self, error: Any) -> str:
        given = "does not accept the key" if self.endpoint.api_key else "wants an API key"
        return (
            f"{self.endpoint.url} {given} ({_reason(error)}): name the environment variable that holds it with -k, as "
            "in `-k OPENAI_API_KEY`"
        )

    async def _answers(self) -> bool:
        """Return False if the server is not there: no connection, or a gateway that says so."""
        from openai import APIConnectionError, APIStatusError

        try:
            await self._openai.models.list(timeout=10.0)
        except APIConnectionError:
            return False
        except Exception as error:
            return not isinstance(error, APIStatusError) or error.status_code < 500
        return True


async def gather(concurrency: int, jobs: Sequence[Callable[[], Awaitable[T]]], note: Callable[[int, T], None]) -> None:
    """Call `note(index, what the job gives)` after each job, `concurrency` at a time; they begin in their order.

    An exception ends all.
    """
    waiting = iter(enumerate(jobs))

    async def work() -> None:
        for index, job in waiting:
            note(index, await job())

    workers = [asyncio.ensure_future(work()) for _ in range(min(concurrency, len(jobs)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


def _call(call: dict[str, Any]) -> dict[str, Any]:
    """Return a tool call as OpenAI has it; some servers give the arguments as an object, or leave them out."""
    function = call.get("function") or {}
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    return {
        "id": call.get("id"),
        "type": "function",
        "function": {"name": function.get("name") or "", "arguments": text},
    }


def _refused(error: Any) -> bool:
    return type(error.__cause__).__name__ in ("ConnectError", "ConnectTimeout")


def _lost(error: Any, timeout: float) -> str:
    from openai import APITimeoutError

    if _refused(error):
        return f"nothing answers ({_cause(error)})"
    if isinstance(error, APITimeoutError):
        return f"no answer within {timeout:g} s"
    return f"the connection was lost ({_cause(error)})"


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
