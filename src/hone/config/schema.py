"""Finding keys in a config class: by path, by nearest name, and as a list."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, Union, get_args, get_origin

from pydantic import AliasChoices, BaseModel
from pydantic.fields import FieldInfo

Path = tuple[str, ...]


@dataclass(frozen=True)
class Key:
    """One key of a config class. `type` is its annotation without `| None`; `free` is True below a free-form dict."""

    path: Path
    type: Any
    optional: bool
    free: bool = False

    @property
    def section(self) -> type[BaseModel] | None:
        return self.type if isinstance(self.type, type) and issubclass(self.type, BaseModel) else None

    @property
    def is_dict(self) -> bool:
        return is_dict(self.type)


def dotted(path: Path) -> str:
    return ".".join(path)


def flag(path: Path) -> str:
    return "--" + dotted(path).replace("_", "-")


def is_dict(annotation: Any) -> bool:
    """True for `dict` and `dict[str, Any]`: keys without a schema."""
    return annotation is dict or get_origin(annotation) is dict


def unwrap(annotation: Any) -> tuple[Any, bool]:
    """`int | None` → (int, True); anything else → (itself, False)."""
    if get_origin(annotation) in (Union, types.UnionType):
        inner = [arg for arg in get_args(annotation) if arg is not type(None)]
        if len(inner) == 1:
            return inner[0], True
    return annotation, False


def names_of(name: str, field: FieldInfo) -> list[str]:
    """A field's name and its aliases; those of one letter are short flags."""
    alias = field.validation_alias
    choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
    return [name, *(choice for choice in choices if isinstance(choice, str) and choice != name)]


def lookup(cls: type[BaseModel], parts: Path) -> Key | None:
    """The key at `parts` (dashes and aliases allowed), its path in canonical names; None if there is no such key."""
    path: Path = ()
    section: type[BaseModel] | None = cls
    key = None
    for index, part in enumerate(parts):
        if section is None:
            assert key is not None
            return Key(key.path + parts[index:], Any, True, free=True) if key.is_dict else None
        name = part.replace("-", "_")
        found = next((n for n, field in section.model_fields.items() if name in names_of(n, field)), None)
        if found is None:
            return None
        path += (found,)
        key = Key(path, *unwrap(section.model_fields[found].annotation))
        section = key.section
    return key


def walk(cls: type[BaseModel], prefix: Path = ()) -> Iterator[Key]:
    """Every key, sections before what they hold."""
    for name, field in cls.model_fields.items():
        key = Key((*prefix, name), *unwrap(field.annotation))
        yield key
        if key.section:
            yield from walk(key.section, key.path)


def nearest(cls: type[BaseModel], unknown: Path) -> Path | None:
    """The key of `cls` that is most like `unknown`, or None if none is much like it."""
    unknown = tuple(part.replace("-", "_") for part in unknown)
    best = max(walk(cls), key=lambda key: _likeness(unknown, key.path))
    return best.path if _likeness(unknown, best.path) >= 0.75 else None


def _likeness(unknown: Path, known: Path) -> float:
    """How alike two keys are: mostly their last names, then their sections, so that a misplaced one is found."""
    return _name_likeness(unknown[-1], known[-1]) + 0.3 * SequenceMatcher(None, unknown[:-1], known[:-1]).ratio()


def _name_likeness(a: str, b: str) -> float:
    words_a, words_b = a.split("_"), b.split("_")
    if a == "".join(word[:1] for word in words_b) or b == "".join(word[:1] for word in words_a):
        return 0.9 if min(len(a), len(b)) > 1 else 0.0  # an abbreviation: learning_rate, lr
    if set(words_a) < set(words_b) or set(words_b) < set(words_a):
        return 0.8  # a part: steps, max_steps
    return SequenceMatcher(None, a, b).ratio()
