"""What is looked for among completions: words and filters, as they stand in a page's address.

    q=wait "let me check" /\\d+ \\* \\d+/     words, phrases, regular expressions: all must occur
    outcome=wrong&advantage=positive&component=format&component_min=1&first=100&sort=-reward

Case does not matter. Regular expressions are RE2's, which take time linear in the text, whatever is written.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any
from urllib.parse import urlencode

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
    "advantage": ("lowest advantage", "advantage, step DESC, row"),
    "-advantage": ("highest advantage", "advantage DESC, step DESC, row"),
}
"""By name in the address: what a page calls it, and SQL."""
COLUMNS = ("text", "prompt", "detail", "answer")
"""Where words are looked for."""
CHOICES: dict[str, tuple[str, ...]] = {
    "outcome": tuple(str(outcome) for outcome in Outcome),
    "advantage": ("positive", "negative", "zero"),
    "stop": ("stop", "length"),
    "state": ("trained", "filtered", "failed"),
    "sort": tuple(SORTS),
    "column": COLUMNS,
}
_ADVANTAGE = {"positive": "advantage > 0", "negative": "advantage < 0", "zero": "advantage = 0"}
_LONGEST = 1000
_TERM = re.compile(r'(?<!\S)"([^"]+)"(?!\S)|(?<!\S)/((?:[^/\\]|\\.)+)/(?!\S)|(\S+)')
_SPECIAL = re.compile(r"([\\.+*?()|\[\]{}^$])")


@dataclass(frozen=True)
class Query:
    """Words and filters; an empty text or None is no filter. `length`s are in characters, `first` and `last` steps."""

    q: str = ""
    column: str = "text"
    outcome: str = ""
    component: str = ""
    component_min: float | None = None
    component_max: float | None = None
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
    def of(cls, said: Mapping[str, str]) -> Query:
        """From the parameters of an address. UserError for what cannot be one; names of others are left alone."""
        values = {
            field.name: _value(field.name, said[field.name].strip(), field.default)
            for field in fields(cls)
            if said.get(field.name, "").strip()
        }
        query = cls(**values)
        if len(query.q) > _LONGEST:
            raise UserError(f"that is {len(query.q):,} characters to look for: {_LONGEST:,} are the most")
        if query.page < 1:
            raise UserError(f"there is no page {query.page}: pages are counted from 1")
        if not query.component and (query.component_min is not None or query.component_max is not None):
            raise UserError("which component? Choose one beside its range")
        return query

    def address(self, **changes: Any) -> str:
        """The part of an address behind `?`, with changes; a change of anything but the page goes to the first."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if "page" not in changes:
            values["page"] = 1
        values |= changes
        said = {f.name: values[f.name] for f in fields(self) if values[f.name] not in (f.default, None, "")}
        return urlencode(
            {name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in said.items()},
            errors="replace",
        )

    @property
    def narrowed(self) -> bool:
        """Whether any word or filter is given."""
        return any(getattr(self, f.name) != f.default for f in fields(self) if f.name not in ("sort", "page", "column"))

    @property
    def filtered(self) -> bool:
        """Whether there is a filter beside the words."""
        return replace(self, q="").narrowed

    def patterns(self) -> list[str]:
        """The regular expressions that all must match, of the words, phrases and expressions in `q`."""
        return [found[2] or escape(found[1] or found[3]) for found in _TERM.finditer(clean(self.q))]

    @property
    def torn(self) -> bool:
        """Whether a quotation mark has no partner, so that it is looked for itself."""
        return any(found[3] and found[3].startswith('"') for found in _TERM.finditer(clean(self.q)))

    def where(self) -> tuple[str, dict[str, Any]]:
        """The condition in SQL, and its parameters. Steps are not in it: they choose files."""
        parts, values = [], {}
        for i, pattern in enumerate(self.patterns()):
            parts.append(f"regexp_matches({self.column}, $word{i}, 'i')")
            values[f"word{i}"] = pattern
        for column, name in (("outcome", "outcome"), ("stop_reason", "stop"), ("state", "state")):
            if getattr(self, name):
                parts.append(f"{column} = ${name}")
                values[name] = getattr(self, name)
        if self.advantage:
            parts.append(_ADVANTAGE[self.advantage])
        if self.component:
            values["component"] = clean(self.component)
            parts.append("components[$component] IS NOT NULL")
        for expression, name in (
            ("components[$component]", "component"),
            ("reward", "reward"),
            ("length(text)", "length"),
        ):
            for end, sign in (("min", ">="), ("max", "<=")):
                if (bound := getattr(self, f"{name}_{end}")) is not None:
                    parts.append(f"{expression} {sign} ${name}_{end}")
                    values[f"{name}_{end}"] = bound
        return " AND ".join(parts) or "true", values

    @property
    def order(self) -> str:
        """What follows ORDER BY."""
        return SORTS[self.sort][1]


def escape(text: str) -> str:
    """The regular expression that finds this text."""
    return _SPECIAL.sub(r"\\\1", clean(text))


def as_term(pattern: str) -> str:
    """What is typed to look for a regular expression: between slashes, those in it escaped."""
    parts = re.findall(r"\\.|/|[^\\/]+", pattern, re.DOTALL)
    return "/" + "".join("\\/" if part == "/" else part for part in parts) + "/"


def clean(text: str) -> str:
    """Text that UTF-8 can hold: an address can bring halves of characters."""
    return text.encode("utf-8", "replace").decode()


def _value(name: str, text: str, default: Any) -> Any:
    if name in CHOICES and text not in CHOICES[name]:
        raise UserError(f"{name} cannot be {text[:50]!r}: it is one of {', '.join(CHOICES[name])}")
    if isinstance(default, str):
        return text
    whole = name in ("first", "last", "page", "length_min", "length_max")
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        raise UserError(f"{name} is {text[:50]!r}, which is no {'whole ' if whole else ''}number") from None
    if not math.isfinite(value) or abs(value) > 2**53:
        raise UserError(f"{name} is {text[:50]!r}: give a number that is not as large")
    return value
