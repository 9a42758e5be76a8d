"""The HTTP client for all servers.

    async with Client(Endpoint("http://localhost:8000/v1"), MIB) as client:
        answer = await client.request("GET", "http://localhost:8000/v1/models")

It retries after a lost connection, a timeout, and the statuses 408, 409, 425, 429 and 5xx except 501, unless the
account has no money. The wait is 1, 2, 4, … seconds (at most 60) times a factor in [0.5, 1], or Retry-After (at most
300) if that is longer.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from hone import rng
from hone.errors import Halt, UserError
from hone.redaction import add_key_variable, redact
from hone.terminal import printable
from hone.web import client_options, may_pass, retry_after

HONE = "hone"
"""Value of `owned_by` in the model list of hone's server."""
CONNECT = 10.0
"""Most seconds to open a connection."""
LONGEST_WAIT = 60.0
"""Most seconds between two tries, unless the server sends Retry-After."""
LONGEST_RETRY_AFTER = 300.0
"""Longest Retry-After, in seconds, that the client obeys."""
_LONGEST_REASON = 300


@dataclass(frozen=True)
class Endpoint:
    """A server's URL, including `/v1`, and how to use it.

    `timeout`: seconds for one answer; `patience`: seconds for all tries together. Error messages name the server's
    `log` file, the config's `section`, and `who` (the kind of server).
    """

    url: str
    api_key: str | None = field(default=None, repr=False)
    concurrency: int = 32
    timeout: float = 600.0
    max_retries: int = 6
    patience: float = math.inf
    log: Path | None = None
    section: str = "orchestrator.client"
    who: str = "inference server"


class RequestRejected(Halt):
    """The server refuses the request with a status, a reason, and perhaps an error code."""

    def __init__(self, url: str, status: int, reason: str, code: Any = None) -> None:
        super().__init__(f"{url} answers {status}: {reason}")
        self.status, self.reason, self.code = status, reason, code


class ServerUnavailable(Halt):
    """The server is unreachable or fails. `status` and `reason` are its last answer; if none came, `cause` says why."""

    def __init__(self, text: str, status: int | None, reason: str = "", cause: Exception | None = None) -> None:
        super().__init__(text)
        self.status, self.reason, self.cause = status, reason, cause


class ResponseTimeout(Halt):
    """An answer took longer than the timeout."""


class Client:
    """Sends requests to one server, inside one event loop; `async with` closes the client.

    An answer may have at most `largest` bytes. `asks_late_again`: retry after a timeout. `retries`: retries so far.
    If the error `over` is set, the client raises it instead of trying again.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        largest: int,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        asks_late_again: bool = True,
    ) -> None:
        import httpx

        self.endpoint, self.retries = endpoint, 0
        self.over: Halt | None = None
        self._sleep, self._asks_late_again = sleep, asks_late_again
        options = client_options(endpoint.url, largest)
        if endpoint.api_key:
            options["headers"] |= {"Authorization": f"Bearer {endpoint.api_key}"}
        # A request that waits for a connection is not late: the requests before it are at work.
        self._places = asyncio.Semaphore(endpoint.concurrency)
        connect = min(endpoint.timeout, CONNECT)
        self._longest = connect + endpoint.timeout  # of a try: httpx counts anew with each part of an answer
        self._http = httpx.AsyncClient(
            **options,
            timeout=httpx.Timeout(endpoint.timeout, connect=connect, pool=None),
            limits=httpx.Limits(max_connections=endpoint.concurrency),
            verify=endpoint.url.startswith("https"),  # certificates cost their time to load
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def request(self, method: str, url: str, body: Any = None, name: str = "") -> Any:
        """Return the server's answer (httpx.Response). `name` is the seed of the random waits between tries.

        Raises RequestRejected if another try can't help, ServerUnavailable after the last try, ResponseTimeout if an
        answer takes longer than `endpoint.timeout`, or TooLarge.
        """
        import httpx

        endpoint = self.endpoint
        log = f"; its log is {endpoint.log}" if endpoint.log else ""
        tries = "1 try" if endpoint.max_retries == 0 else f"{endpoint.max_retries + 1} tries"

        def gone(why: str, *more: Any) -> ServerUnavailable:
            return ServerUnavailable(
                f"the {endpoint.who} at {endpoint.url} is gone, or fails ({why}; {tries}{log})", *more
            )

        ends, attempt = time.monotonic() + endpoint.patience, 0
        while True:
            if self.over is not None:
                raise self.over
            asked = None
            try:
                async with self._places, asyncio.timeout(min(self._longest, ends - time.monotonic())):
                    answer = await self._http.request(method, url, json=body)
            except (httpx.ReadTimeout, TimeoutError):
                remedy = f"raise {endpoint.section}.timeout{log}"
                problem = ResponseTimeout(f"{endpoint.url} did not answer within {endpoint.timeout:g} s: {remedy}")
                if not self._asks_late_again:
                    raise problem from None
            except httpx.TransportError as error:
                reason = one_line(str(error)) or type(error).__name__
                if isinstance(error, httpx.TimeoutException):
                    reason = f"no answer within {endpoint.timeout:g} s ({type(error).__name__})"
                problem = gone(reason, None, reason, error)
            else:
                if answer.is_success:
                    return answer
                status, (reason, code) = answer.status_code, refusal_in(answer.text)
                if code == "insufficient_quota" or not may_pass(status):
                    raise RequestRejected(url, status, reason, code)
                problem = gone(f"status {status}: {reason}", status, reason)
                asked = retry_after(answer.headers)
            wait = delay(attempt, asked, name)
            if attempt == endpoint.max_retries or time.monotonic() + wait >= ends:
                raise problem
            attempt, self.retries = attempt + 1, self.retries + 1
            await self._sleep(wait)


def refusal_in(text: str) -> tuple[str, Any]:
    """Return (reason in one line, error code) from the body of a server's refusal."""
    try:
        body = json.loads(text)
        body = body.get("error", body)
        code = body.get("code") if isinstance(body, dict) else None
        text = str((body.get("message") or body.get("detail") or text) if isinstance(body, dict) else body)
    except (ValueError, AttributeError, RecursionError):
        code = None
    return one_line(text) or "without a reason", code


def delay(attempt: int, asked: float | None, name: str) -> float:
    """Return the seconds to wait after try `attempt` (from 0) has failed; `asked`: the server's Retry-After."""
    factor = 0.5 + 0.5 * rng.key(0, "backoff", name, attempt) / 2**64
    backoff = min(LONGEST_WAIT, 2.0**attempt) * factor
    return backoff if asked is None else max(backoff, min(asked, LONGEST_RETRY_AFTER))


def one_line(text: str) -> str:
    text = printable(" ".join(redact(text).split()))
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]} …"


def api_key(variable: str | None, flag: str) -> str | None:
    """Return the API key in an environment variable; None if `variable` is None. UserError (with `flag`) if unset."""
    if variable is None:
        return None
    if not variable.isidentifier():  # not shown: it may be the key
        raise UserError(f"{flag} takes the name of the environment variable that holds the API key, not the key itself")
    key = os.environ.get(variable, "").strip()
    if not key:
        raise UserError(f"the environment variable {variable} ({flag}) is not set: put the server's API key into it")
    if not (key.isascii() and key.isprintable()):
        raise UserError(f"the environment variable {variable} ({flag}) holds no API key: it must be ASCII")
    add_key_variable(variable)
    return key
