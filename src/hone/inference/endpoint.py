"""A server behind a URL, the key to it, and the patience that its clients have with it.

What may pass is tried again: a lost connection, a timeout, and the statuses 408, 409, 425, 429 and 5xx; after 1, 2, 4,
… seconds, at most `LONGEST_WAIT`, times a factor in [0.5, 1] that keeps the requests apart; later if the server asks
for it (Retry-After, at most `LONGEST_RETRY_AFTER`).
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hone import rng
from hone.errors import UserError
from hone.terminal import printable

HONE = "hone"
"""Owner of the models that hone's own server lists."""
LONGEST_WAIT = 60.0
"""Most seconds between two tries, where the server asks for nothing."""
LONGEST_RETRY_AFTER = 300.0
"""Most seconds that a server's Retry-After is obeyed for."""
_RETRIED = (408, 409, 425, 429)
_LONGEST_REASON = 300


@dataclass(frozen=True)
class Endpoint:
    """A server's URL, up to and with `/v1`, and how to treat it. `timeout` is the seconds that one try may take.

    `log` is where it says what it does, if that is known; `section` is that of the config which describes it.
    """

    url: str
    api_key: str | None = field(default=None, repr=False)
    concurrency: int = 32
    timeout: float = 600.0
    max_retries: int = 6
    log: Path | None = None
    section: str = "orchestrator.client"

    @property
    def local(self) -> bool:
        """Return True if the server is on this machine."""
        host = urlsplit(self.url).hostname or ""
        return host in ("localhost", "::1") or host.startswith("127.")


def may_pass(status: int) -> bool:
    """Return True if another try may succeed."""
    return status in _RETRIED or (status >= 500 and status != 501)


def delay(attempt: int, asked: float | None, sample_id: str) -> float:
    """Return the seconds to wait after try `attempt` (from 0) has failed; `asked`: the server's Retry-After."""
    factor = 0.5 + 0.5 * rng.key(0, "backoff", sample_id, attempt) / 2**64
    own = min(LONGEST_WAIT, 2.0**attempt) * factor
    return own if asked is None else max(own, min(asked, LONGEST_RETRY_AFTER))


def retry_after(headers: Any) -> float | None:
    """Return the seconds that Retry-After (a number or a date) or retry-after-ms ask for; None without them."""
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


def one_line(text: str) -> str:
    """Return a server's words, fit for a message: one line, without control characters, not too long."""
    text = printable(" ".join(text.split()))
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]} …"


def api_key(variable: str | None, flag: str) -> str | None:
    """Return the key in this environment variable, named by `flag`; None without. Raises UserError if it has no key.

    So no command line, config or run directory holds a key.
    """
    if variable is None:
        return None
    if not variable.isidentifier():  # not shown: it may be the key
        raise UserError(f"{flag} takes the name of the environment variable that holds the API key, not the key itself")
    key = os.environ.get(variable, "").strip()
    if not key:
        raise UserError(f"the environment variable {variable} ({flag}) is not set: put the server's API key into it")
    if not (key.isascii() and key.isprintable()):
        raise UserError(f"the environment variable {variable} ({flag}) holds no API key: it must be ASCII")
    return key
