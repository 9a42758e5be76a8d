"""A client of an inference server that speaks in tokens: hone's own, or vLLM as hone starts it.

async with ServerClient(Endpoint("http://localhost:8000/v1")) as client:
    (served,) = await client.models()
    answer = await client.post("/v1/completions", {"model": served.id, "prompt": [1, 2, 3], ...})
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from types import TracebackType
from typing import Any

from hone.errors import Halt
from hone.inference.endpoint import Endpoint, delay, one_line
from hone.web import MIB, TooLarge, client_options, may_pass, retry_after

LARGEST_ANSWER = 1024 * MIB
"""Bytes of an answer: a group of 64 completions of 32k tokens, with 20 candidates each, has about 400 MiB."""


class Refused(Halt):
    """The server's answer is that it won't: its status, and its reason."""

    def __init__(self, url: str, status: int, reason: str) -> None:
        super().__init__(f"{url} answers {status}: {reason}")
        self.status, self.reason = status, reason


class Gone(Halt):
    """The server is not there, or fails: `status` is that of its last answer, if it gave one."""

    def __init__(self, text: str, status: int | None) -> None:
        super().__init__(text)
        self.status = status


class Late(Halt):
    """An answer takes longer than the server may take."""


@dataclass(frozen=True)
class Served:
    """A model that a server lists: `owner` is who made the server, `policy_path` the folder of the last update,
    `parameters` how many numbers the weights are. `instance` is another one for each process that serves.

    None: the server does not say; there was no update.
    """

    id: str
    owner: str
    max_model_len: int | None
    policy_version: int | None
    policy_path: str | None
    parameters: int | None
    instance: str | None = None


class ServerClient:
    """Sends requests to one server, inside one event loop; `async with` closes it."""

    def __init__(self, endpoint: Endpoint, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        import httpx

        self.endpoint = endpoint
        self._sleep, self._requests = sleep, 0
        self._log = f"; its log is {endpoint.log}" if endpoint.log else ""
        self._root = endpoint.url.rstrip("/").removesuffix("/v1")
        options = client_options(self._root, LARGEST_ANSWER)
        if endpoint.api_key:
            options["headers"] |= {"Authorization": f"Bearer {endpoint.api_key}"}
        # What waits for a connection is not late: the requests before it are at work.
        self._places = asyncio.Semaphore(endpoint.concurrency)
        self._http = httpx.AsyncClient(
            **options,
            timeout=httpx.Timeout(endpoint.timeout, connect=endpoint.connect, pool=None),
            limits=httpx.Limits(max_connections=endpoint.concurrency),
            verify=self._root.startswith("https"),  # certificates cost their time to load
        )

    async def __aenter__(self) -> ServerClient:
        return self

    async def __aexit__(self, _kind: type | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        await self._http.aclose()

    async def models(self) -> list[Served]:
        """Return what the server lists; raises as `post` does."""
        page = await self._send("GET", "/v1/models", None)
        try:
            return [
                Served(entry["id"], entry["owned_by"], *(entry.get(field.name) for field in fields(Served)[2:]))
                for entry in page["data"]
            ]
        except (KeyError, TypeError, AttributeError):
            raise Halt(
                f"{self.endpoint.url} lists no models that could be read ({one_line(str(page))}): does the URL end in "
                "/v1, and is it that of an inference server?"
            ) from None

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """Return the server's answer to `body`, after as many tries as it takes.

        Refused for what another try can't mend; Gone if the server is not there, or fails once too often; Late for an
        answer that takes longer than `endpoint.timeout`: it would take as long again; Halt for one that can't be read.
        """
        return await self._send("POST", path, body)

    async def _send(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        import httpx

        reason, status = "", None
        self._requests += 1
        name = f"{path} {self._requests}"
        for attempt in range(self.endpoint.max_retries + 1):
            wait = status = None
            try:
                async with self._places, asyncio.timeout(self.endpoint.longest):
                    response = await self._http.request(method, self._root + path, json=body)
            except TooLarge as error:
                raise Halt(f"{self.endpoint.url} gives no answer that could be read: {error}") from None
            except (httpx.ReadTimeout, TimeoutError):
                raise Late(
                    f"{self.endpoint.url} did not answer within {self.endpoint.timeout:g} s: raise "
                    f"{self.endpoint.section}.timeout{self._log}"
                ) from None
            except httpx.TimeoutException as error:
                reason = f"no answer within {self.endpoint.timeout:g} s ({type(error).__name__})"
            except httpx.TransportError as error:
                reason = one_line(str(error)) or type(error).__name__
            else:
                if response.is_success:
                    return _parsed(response, self.endpoint.url)
                refusal = reason_in(response.text)
                status = response.status_code
                if not may_pass(status):
                    raise Refused(self._root + path, status, refusal)
                reason, wait = f"status {status}: {refusal}", retry_after(response.headers)
            if attempt < self.endpoint.max_retries:
                await self._sleep(delay(attempt, wait, name))
        tries = "1 try" if self.endpoint.max_retries == 0 else f"{self.endpoint.max_retries + 1} tries"
        who = "teacher" if self.endpoint.section == "teacher" else "inference server"
        text = f"the {who} at {self.endpoint.url} is gone, or fails ({reason}; {tries}{self._log})"
        raise Gone(text, status)


def _parsed(response: Any, url: str) -> Any:
    try:
        return response.json()
    except ValueError:
        raise Halt(
            f"{url} does not answer in JSON ({one_line(response.text)}): does the URL end in /v1, and is it that of an "
            "inference server?"
        ) from None


def reason_in(text: str) -> str:
    """Return the reason that a server gives in the body of a refusal, in one line."""
    try:
        body = json.loads(text)
        body = body.get("error", body)
        text = body["message"] if isinstance(body, dict) else str(body)
    except (ValueError, KeyError, AttributeError):
        pass
    return one_line(text) or "without a reason"
