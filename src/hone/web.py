"""Rules for all HTTP clients of hone: no proxy for this machine, no redirects, answers of bounded size.

httpx.AsyncClient(**client_options(url, MIB), timeout=10)
"""

from __future__ import annotations

import ipaddress
import math
import re
import socket
import time
from collections.abc import AsyncIterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

MIB = 2**20
_RETRIED = (408, 409, 425, 429)


class TooLarge(Exception):
    """An answer is larger than the client allows, or is compressed, so that its size is unknown."""


def is_local(url: str) -> bool:
    """Return True if the URL's server is on this machine, which a proxy could not reach."""
    host = (urlsplit(url).hostname or "").rstrip(".")
    if host == "localhost" or host.endswith(".localhost") or host == socket.gethostname().lower():
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        try:
            address = ipaddress.IPv4Address(socket.inet_aton(host))  # 127.1
        except (OSError, UnicodeError):
            return False
    address = getattr(address, "ipv4_mapped", None) or address
    if address.is_loopback or address.is_unspecified:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as one:
            one.bind((str(address), 0))  # only an address of this machine can be bound
    except OSError:
        return False
    return True


def shown_url(url: str) -> str:
    """Return a URL without its password and query values, safe to show or store."""
    place, mark, _ = url.partition("#")[0].partition("?")
    return re.sub(r"^(\w+://)?[^/]*@", r"\1", place) + (mark and "?…")


def may_pass(status: int) -> bool:
    """Return True if a retry may succeed after this HTTP status."""
    return status in _RETRIED or (status >= 500 and status != 501)


def retry_after(headers: Any) -> float | None:
    """Return the seconds that Retry-After (number or date) or retry-after-ms asks to wait; None without the header."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        text = headers.get(name)
        if text is None:
            continue
        try:
            seconds = float(text) * unit
        except ValueError:
            try:
                seconds = parsedate_to_datetime(text).timestamp() - time.time()
            except ValueError:
                continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    return None


def client_options(url: str, largest: int) -> dict[str, Any]:
    """Return arguments of an httpx client for `url`. Reading an answer of more than `largest` bytes raises TooLarge."""

    async def bound(response: Any) -> None:
        if response.headers.get("content-encoding", "identity") != "identity":
            raise TooLarge("the answer is compressed, though the request forbids it")
        response.stream = _bounded(response.stream, largest)

    return {
        "trust_env": not is_local(url),
        "follow_redirects": False,
        "headers": {"Accept-Encoding": "identity"},
        "event_hooks": {"response": [bound]},
    }


def _bounded(stream: Any, largest: int) -> Any:
    import httpx

    class Bounded(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            count = 0
            async for part in stream:
                count += len(part)
                if count > largest:
                    raise TooLarge(f"the answer has more than {largest // MIB} MiB")
                yield part

        async def aclose(self) -> None:
            await stream.aclose()

    return Bounded()


def without_local_proxy(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make a program with this environment reach this machine without a proxy."""
    known = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    hosts = ",".join(dict.fromkeys([*filter(None, known.split(",")), "127.0.0.1", "localhost", "::1"]))
    return {"no_proxy": hosts, "NO_PROXY": hosts}
