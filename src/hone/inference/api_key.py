"""API keys come from the environment, so that no command line, config or run directory holds one."""

from __future__ import annotations

import os

from hone.errors import UserError


def api_key(variable: str | None, flag: str) -> str | None:
    """The key in this environment variable, named by `flag`; None without one. UserError if it holds none."""
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
