"""Keys that hone has no more, for configs that still name them: config.toml of a run holds all defaults of its time."""

from __future__ import annotations

from typing import Any, NamedTuple

from hone.errors import UserError


class Retired(NamedTuple):
    """In a file the `harmless` values are dropped; any other value, a flag and a keyword get the sentence `instead`."""

    harmless: tuple[Any, ...]
    instead: str


RETIRED: dict[str, Retired] = {}
"""By dotted key."""


def check_retired(path: tuple[str, ...], source: str) -> None:
    """Raise UserError if a key that `source` sets is retired."""
    if old := RETIRED.get(name := ".".join(path).replace("-", "_")):
        raise UserError(f"{source or name}: {old.instead}")


def is_dropped(path: tuple[str, ...], value: Any, file: str) -> bool:
    """Return True if a key of a file is retired, with a value that changes nothing; UserError for another value."""
    old = RETIRED.get(name := ".".join(path))
    if old is not None and value not in old.harmless:
        raise UserError(f"{name} is {value!r} in {file}: {old.instead}")
    return old is not None
