"""Keys that hone has no more, for configs that still name them: config.toml of a run holds all defaults of its time."""

from __future__ import annotations

from typing import Any, NamedTuple

from hone.errors import UserError


class Retired(NamedTuple):
    """In a file the `harmless` values are dropped; any other value, a flag and a keyword get the sentence `instead`."""

    harmless: tuple[Any, ...]
    instead: str


RETIRED: dict[str, Retired] = {
    "orchestrator.refill.cut": Retired(
        (0.0,), "a refill waits for all its rollouts: leave this key out, or use the version of hone that began the run"
    ),
    "orchestrator.grading.overlap": Retired(
        (None, "None", False, True),
        "each rollout is graded when it ends, and scores are the same either way: leave this key out",
    ),
}
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


def without_retired(table: dict[str, Any], path: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the table of a config.toml without the retired keys whose values change nothing."""
    return {
        name: without_retired(value, (*path, name)) if isinstance(value, dict) else value
        for name, value in table.items()
        if not ((old := RETIRED.get(".".join((*path, name)))) and value in old.harmless)
    }
