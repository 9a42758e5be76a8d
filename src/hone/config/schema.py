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

SYNONYMS = {
    "beta": "kl_coef",
    "environment": "env",
    "epochs": "max_steps",
    "group_size": "rollouts_per_example",
    "max_completion_length": "max_tokens",
    "max_length": "seq_len",
    "max_new_tokens": "max_tokens",
    "num_generations": "rollouts_per_example",
    "num_train_epochs": "max_steps",
}
"""Other trainers' words for keys of ours."""


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
    def bare(self) -> str | None:
        """The field that a bare value for this section sets, if it has one."""
        return getattr(self.section, "bare", None)

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


def shown_name(name: str, field: FieldInfo) -> str:
    """How users write a field whose name Python or pydantic has taken: `json` for `as_json`, `from` for `from_`."""
    return next((other for other in names_of(name, field) if name in (f"as_{other}", f"{other}_")), name)


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
    """Every key, sections before what they hold; of keys that a section shares with the top, just themselves."""
    for name, field in cls.model_fields.items():
        key = Key((*prefix, name), *unwrap(field.annotation))
        yield key
        if key.section and name not in getattr(cls, "shared", ()):
            yield from walk(key.section, key.path)


def nearest(cls: type[BaseModel], unknown: Path) -> Path | None:
    """The key of `cls` that is most like `unknown`, or None if none is much like it.

    Names are compared first, then the sections they stand in, so that a key in the wrong section is found as well.
    """
    unknown = tuple(part.replace("-", "_").lower() for part in unknown)
    scored = [(_likeness(unknown, key.path), key.path) for key in walk(cls)]
    best, path = max(scored, key=lambda pair: pair[0])
    return path if best > 0 else None


def _likeness(unknown: Path, known: Path) -> float:
    if "_".join(unknown) == "_".join(known):
        return 2.0  # --wandb-project
    name = _name_likeness(unknown[-1], known[-1])
    sections, known_sections = unknown[:-1], known[:-1]
    if not sections:
        place = 0.7 if known_sections else 1.0
    else:
        place = SequenceMatcher(None, dotted(sections), dotted(known_sections)).ratio()
        if known_sections:
            place = max(place, 0.9 * SequenceMatcher(None, sections[-1], known_sections[-1]).ratio())
    return name + 0.2 * place if name >= 0.6 else 0.0


def _name_likeness(unknown: str, known: str) -> float:
    """1 for the same name or another trainer's word for it, less for an abbreviation, a part, a misspelling."""
    words, known_words = unknown.split("_"), known.split("_")
    if unknown == known or SYNONYMS.get(unknown) == known:
        return 1.0
    if len(known) > 1 and known == "".join(word[:1] for word in words):
        return 0.9  # learning_rate, lr
    if set(words) < set(known_words) or set(known_words) < set(words):
        return 0.9  # steps, max_steps
    return SequenceMatcher(None, unknown, known).ratio()
