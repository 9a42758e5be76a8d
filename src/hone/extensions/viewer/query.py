"""Searches of completions: words and filters, given in a page's address.

    q=wait "let me check" /\\d+ \\* \\d+/     words, phrases, regular expressions: all must occur
    outcome=wrong&advantage=positive&reward_min=0.5&first=100&sort=-reward

Case is ignored. Regular expressions are RE2's, which always take time linear in the text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from hone.errors import UserError
from hone.types import Outcome

PAGE = 50
"""Completions on a page of results."""
SORTS = {
    "newest": ("newest first", "step DESC, row"),
    "oldest": ("oldest first", "step, row"),
    "reward": ("lowest reward", "reward NULLS LAST, step DESC, row"),
    "-reward": ("highest reward", "reward DESC NULLS LAST, step DESC, row"),
    "length": ("shortest", "length(text), step DESC, row"),
    "-length": ("longest", "length(text) DESC, step DESC, row"),
}
"""Maps a name in the address to (title, SQL)."""
CHOICES: dict[str, tuple[str, ...]] = {
    "outcome": tuple(str(outcome) for outcome in Outcome),
    "advantage": ("positive", "negative", "zero"),
    "stop": ("stop", "length"),
    "state": ("trained", "filtered", "failed", "surplus", "cut"),
    "sort": tuple(SORTS),
}
FILTERS = ("outcome", "advantage", "stop", "state")
"""Filters for the completions of a step."""
_CONDITIONS = {
    "example": "example_id = $example",
    "outcome": "outcome = $outcome",
    "advantage": "sign(advantage) = $advantage",
    "stop": "stop_reason = $stop",
    "state": "state = $state",
    "reward_min": "reward >= $reward_min",
    "reward_max": "reward <= $reward_max",
    "length_min": "length(text) >= $length_min",
    "length_max": "length(text) <= $length_max",
}
_SIGNS = {"positive": 1, "negative": -1, "zero": 0}
_LONGEST = 1000
_TERM = re.compile(r'(?<!\S)"([^"]+)"(?!\S)|(?<!\S)/((?:[^/\\]|\\.)+)/(?!\S)|(\S+)')
_SPECIAL = re.compile(r"([\\.+*?()|\[\]{}^$])")


@dataclass(frozen=True)
class Query:
    """A search's words and filters ("" or None: off). Lengths are in characters; `first` and `last` are steps."""

    q: str = ""
    example: str = ""
    outcome: str = ""
    reward_min: float | None = None
    reward_max: float | None = None
    length_min: int | None = None
    length_max: int | None = None
    advantage: str = ""
    stop: str = ""
    state: str = ""
    first: int | None = None
    last: int | None = None
    sort: str = "newest"
    page: int = 1

    @classmethod
    def from_address(cls, values: Mapping[str, str]) -> Query:
        """Parse the parameters of an address. Raises UserError for a bad value; ignores unknown names."""
        given = {field: values.get(field.name, "").strip() for field in fields(cls)}
        query = cls(**{f.name: _value(f.name, text, f.default) for f, text in given.items() if text})
        if len(query.q) > _LONGEST:
            raise UserError(f"the search has {len(query.q):,} characters: at most {_LONGEST:,} are allowed")
        if query.page < 1:
            raise UserError(f"there is no page {query.page}: pages start at 1")
        return query

    @property
    def filtered(self) -> bool:
        return replace(self, q="", sort="newest", page=1) != Query()

    def patterns(self) -> list[str]:
        return [found[2] or escape(found[1] or found[3]) for found in _TERM.finditer(clean(self.q))]

    def where(self) -> tuple[str, dict[str, Any]]:
        """Return the condition in SQL, and its parameters. It does not contain steps, because steps select files."""
        patterns = {f"word{i}": pattern for i, pattern in enumerate(self.patterns())}
        values = {name: value for name in _CONDITIONS if (value := getattr(self, name)) not in ("", None)}
        parts = [f"regexp_matches(text, ${name}, 'i')" for name in patterns] + [_CONDITIONS[name] for name in values]
        if self.advantage:
            values["advantage"] = _SIGNS[self.advantage]
        return " AND ".join(parts) or "true", patterns | values

    def passes(self, row: Mapping[str, Any]) -> bool:
        kinds = kinds_of(row)
        return all(getattr(self, name) in ("", kinds[name]) for name in FILTERS)


def kinds_of(row: Mapping[str, Any]) -> dict[str, str]:
    advantage = row["advantage"] or 0
    sign = "zero" if not advantage else "positive" if advantage > 0 else "negative"
    return {"outcome": row["outcome"], "advantage": sign, "stop": row["stop_reason"], "state": row["state"]}


def escape(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", clean(text))


def clean(text: str) -> str:
    """Replace lone surrogates, which an address may have and UTF-8 can't encode."""
    return text.encode("utf-8", "replace").decode()


def _value(name: str, text: str, default: Any) -> Any:
    if name in CHOICES and text not in CHOICES[name]:
        raise UserError(f"{name} cannot be {text[:50]!r}: give one of {', '.join(CHOICES[name])}")
    if isinstance(default, str):
        return clean(text)
    whole = not name.startswith("reward")
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        raise UserError(f"{name} is {text[:50]!r}, which is not a {'whole ' if whole else ''}number") from None
    if not math.isfinite(value) or abs(value) > 2**53:
        raise UserError(f"{name} is {text[:50]!r}: give a smaller number")
    return value
