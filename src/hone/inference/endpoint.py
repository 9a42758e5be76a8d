"""A server behind a URL, the key to it, and the patience that its clients have with it.

What may pass is tried again: a lost connection, a timeout, and the statuses 408, 409, 425, 429 and 5xx; after 1, 2, 4,
… seconds, at most `LONGEST_WAIT`, times a factor in [0.5, 1] that keeps the requests apart; later if the server asks
for it (Retry-After, at most `LONGEST_RETRY_AFTER`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from hone import rng
from hone.errors import UserError
from hone.redaction import add_key_variable, redact
from hone.terminal import printable

HONE = "hone"
"""Owner of the models that hone's own server lists."""
CONNECT = 10.0
"""Seconds that a connection may take."""
LONGEST_WAIT = 60.0
"""Most seconds between two tries, where the server asks for nothing."""
LONGEST_RETRY_AFTER = 300.0
"""Most seconds that a server's Retry-After is obeyed for."""
_LONGEST_REASON = 300


@dataclass(frozen=True)
class Endpoint:
    """A server's URL, up to and with `/v1`, and how to treat it. `timeout` is the seconds that it may take to answer.

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
    def connect(self) -> float:
        """Seconds that a connection may take."""
        return min(self.timeout, CONNECT)

    @property
    def longest(self) -> float:
        """Seconds that a try may take in all: clients count `timeout` anew with each part of an answer."""
        return self.connect + self.timeout


def delay(attempt: int, asked: float | None, sample_id: str) -> float:
    """Return the seconds to wait after try `attempt` (from 0) has failed; `asked`: the server's Retry-After."""
    factor = 0.5 + 0.5 * rng.key(0, "backoff", sample_id, attempt) / 2**64
    own = min(LONGEST_WAIT, 2.0**attempt) * factor
    return own if asked is None else max(own, min(asked, LONGEST_RETRY_AFTER))


def one_line(text: str) -> str:
    """Return a server's words, fit for a message: one line, without control characters and keys, not too long."""
    text = printable(" ".join(redact(text).split()))
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
    add_key_variable(variable)
    return key
