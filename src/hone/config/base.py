"""The base of every config; keys of a config class, found by path or by a similar name; trees of settings."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, ClassVar, NamedTuple, Self, Union, get_args, get_origin

import pydantic_config
from pydantic import AliasChoices, BaseModel, ConfigDict, model_validator
from pydantic.fields import FieldInfo

Path = tuple[str, ...]

SYNONYMS = {
    "beta": "kl_coef",
    "checkpoint": "ckpt",
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
CLOSE = 0.8
"""Names that are less alike than this are not suggested for each other."""


class BaseConfig(pydantic_config.BaseConfig):
    """A typed section. Unknown keys are errors; the string `"None"` is null, which TOML cannot write.

    The docstring under a field is its description, and so its line in `--help`.
    """

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    positional: ClassVar[str | tuple[str, ...] | None] = None
    """Field that the first bare word of the command line sets (`hone eval ENV`), or fields, one for each."""
    bare: ClassVar[str | None] = None
    """Field of a section that a bare value of it sets: with `id`, `--env countdown` is `--env.id countdown`."""
    section: ClassVar[str | None] = None
    """Section that files without one are read as, and flags that the top does not know."""
    shared: ClassVar[tuple[str, ...]] = ()
    """Keys of the top that are accepted in this section too."""
    common: ClassVar[dict[str, str]] = {}
    """Keys that most people set, by heading: `--help` shows these. Without any, it shows all."""

    @classmethod
    def chosen(cls, argv: list[str]) -> type[Self]:
        """Return the class that this command line is parsed as, where that depends on what the line says."""
        return cls

    @classmethod
    def words(cls) -> tuple[str, ...]:
        """Return the fields that bare words set, in order."""
        return (cls.positional,) if isinstance(cls.positional, str) else cls.positional or ()

    @classmethod
    def compose(cls, settings: Settings) -> dict[str, Any]:
        """Make the tree that is validated."""
        return settings.tree()

    @model_validator(mode="before")
    @classmethod
    def _coerce_dict_str_values(cls, data: Any) -> Any:
        """Keep the types of free-form dicts, but for `"None"`: the library would turn `{answer = "5"}` into a number.

        Flags are typed when they are read, see `hone.config.parse`.
        """
        if not isinstance(data, dict):
            return data
        free = [name for name, field in cls.model_fields.items() if is_dict(unwrap(field.annotation)[0])]
        return {name: _with_nulls(value) if name in free else value for name, value in data.items()}


def _with_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_nulls(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_nulls(item) for item in value]
    return None if value == "None" else value


class Setting(NamedTuple):
    """A value as it was given by `source`: a file, a flag, or "" for a program."""

    value: Any
    source: str = ""
    is_flag: bool = False


class Settings(dict[Path, Setting]):
    """What a command line says, leaf by leaf; later settings win."""

    section_files: tuple[str, ...] = ()
    """Sections that were given as `--SECTION @ FILE`."""

    def put(self, path: Path, setting: Setting) -> None:
        """Set a leaf. It replaces what lies below or above it; an empty section only switches on what is off."""
        below = [known for known in self if known[: len(path)] == path]
        if setting.value == {} and any(self[known].value not in (None, "None") for known in below):
            return
        for known in [*below, *(path[:length] for length in range(len(path)))]:
            self.pop(known, None)
        self[path] = setting

    def put_tree(self, tree: Any, path: Path = ()) -> Settings:
        """Set all leaves of a tree, in which a config object stands for what was set in it."""
        tree = tree.model_dump(exclude_unset=True) if isinstance(tree, BaseModel) else tree
        if isinstance(tree, dict) and (tree or not path):
            for name, value in tree.items():
                self.put_tree(value, (*path, name))
        else:
            self.put(path, Setting(tree))
        return self

    def tree(self) -> dict[str, Any]:
        """Return the settings as the nested dicts that pydantic reads."""
        result: dict[str, Any] = {}
        for path, setting in self.items():
            holder = result
            for part in path[:-1]:
                holder = holder.setdefault(part, {})
            holder[path[-1]] = setting.value
        return result

    def origin(self, path: Path) -> str:
        """Return ` (file or flag)` to put behind a key in a message: its own source, else its section's, else ""."""
        at = [known for known in self if path[: len(known)] == known or known[: len(path)] == path]
        source = self[max(at, key=len)].source if at else ""
        return f" ({source})" if source else ""


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


def dotted(path: Path) -> str:
    return ".".join(path)


def flag(path: Path) -> str:
    return "--" + dotted(path).replace("_", "-")


def is_dict(annotation: Any) -> bool:
    """Return True for `dict` and `dict[str, Any]`: keys without a schema."""
    return annotation is dict or get_origin(annotation) is dict


def unwrap(annotation: Any) -> tuple[Any, bool]:
    """`int | None` → (int, True); anything else → (itself, False)."""
    if get_origin(annotation) in (Union, types.UnionType):
        inner = [arg for arg in get_args(annotation) if arg is not type(None)]
        if len(inner) == 1:
            return inner[0], True
    return annotation, False


def names_of(name: str, field: FieldInfo) -> list[str]:
    """Return a field's name and its aliases; those of one letter are short flags."""
    alias = field.validation_alias
    choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
    return [name, *(choice for choice in choices if isinstance(choice, str) and choice != name)]


def lookup(cls: type[BaseModel], parts: Path) -> Key | None:
    """Return the key at `parts` (dashes and aliases allowed), its path in canonical names; None if there is none."""
    path: Path = ()
    section: type[BaseModel] | None = cls
    key = None
    for index, part in enumerate(parts):
        if section is None:
            assert key is not None
            return Key(key.path + parts[index:], Any, True, free=True) if is_dict(key.type) else None
        name = part.replace("-", "_")
        holder = cls if name in getattr(section, "shared", ()) else section
        found = next((n for n, field in holder.model_fields.items() if name in names_of(n, field)), None)
        if found is None:
            return None
        path += (found,)
        key = Key(path, *unwrap(holder.model_fields[found].annotation))
        section = key.section
    return key


def walk(cls: type[BaseModel], prefix: Path = ()) -> Iterator[Key]:
    """Yield every key, sections before what they hold."""
    for name, field in cls.model_fields.items():
        key = Key((*prefix, name), *unwrap(field.annotation))
        yield key
        if key.section:
            yield from walk(key.section, key.path)


def nearest(cls: type[BaseModel], unknown: Path) -> Path | None:
    """Return the key of `cls` that is most like `unknown`, or None if none is much like it.

    Names are compared first, then the sections they stand in, so that a key in the wrong section is found as well.
    """
    unknown = tuple(part.replace("-", "_").lower() for part in unknown)
    scored = [(_likeness(unknown, key.path), key.path) for key in walk(cls)]
    best, path = max(scored, key=lambda pair: pair[0])
    return path if best > 0 else None


def _likeness(unknown: Path, known: Path) -> float:
    if "_".join(unknown) == "_".join(known):
        return 2.0  # --wandb-project
    name, place = _alike(unknown[-1], known[-1]), 1.0
    if len(unknown) > 1 and len(known) > 1:
        place = max(_alike(one, other) for one in unknown[:-1] for other in known[:-1])
    elif len(known) > 1:
        place = 0.7
    return name + 0.2 * place if name >= CLOSE and place >= 0.6 else 0.0


def _alike(unknown: str, known: str) -> float:
    """Return 1 for the same name or another trainer's word for it, less for an abbreviation, a part, a misspelling."""
    words, known_words = unknown.split("_"), known.split("_")
    if unknown == known or SYNONYMS.get(unknown) == known:
        return 1.0
    if len(known) > 1 and known == "".join(word[:1] for word in words):
        return 0.9  # learning_rate, lr
    if set(words) < set(known_words) or set(known_words) < set(words):
        return 0.9  # steps, max_steps
    if unknown.startswith(known) and len(known) > 3:
        return 0.9  # optimizer, optim
    return SequenceMatcher(None, unknown, known).ratio()
