"""The base of every config; finds keys of a config class by path or by a similar name."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import cache, reduce
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeVar, Union, get_args, get_origin

import pydantic_config
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, create_model, model_validator
from pydantic.fields import FieldInfo

from hone.errors import UserError
from hone.extension import Fields, gathered, load

Path = tuple[str, ...]
Model = TypeVar("Model", bound=BaseModel)

SYNONYMS = {
    "checkpoint": "ckpt",
    "environment": "env",
    "epochs": "max_steps",
    "evaluation": "eval",
    "group_size": "rollouts_per_example",
    "max_length": "seq_len",
    "max_new_tokens": "max_tokens",
    "optim": "optim",  # a section here, the optimiser's name in TRL
    "optimiser": "optim",
    "optimizer": "optim",
    "steps": "max_steps",
}
"""Other trainers' names → hone's keys, for hints."""
CLOSE = 0.8
"""Least similarity of an unknown name to a suggested key."""


@dataclass(frozen=True)
class Meta:
    """Properties of a field besides type, default and docstring: `seed: Annotated[int, Meta("run")] = 0`.

    A key without Meta is not common, decides the bytes of a run, and can't change at a resume.
    """

    common: str | None = ""
    """Kinds of this key, which choose its headings (`BaseConfig.headings`). "": the key is not common. None: no key of
    this section is common."""
    place: int = 0
    """Place under the heading: -1 is first, 1 is last. Keys with 0 take their section's place."""
    decides: Literal["bytes", "digest", "rounding", "nothing", "start"] = "bytes"
    """Part of a run that the key or its section decides. A resume may change all kinds but `bytes` and `digest`.

    `bytes`: the results. `digest`: the results, and a resume compares the digest of the named file. `rounding`: only
    the rounding of numbers. `nothing`: no number. `start`: the start of a process; config.toml omits the key.
    """
    from_machine: bool = False
    """True if the machine decides the value when it is None."""
    shared: int = 0
    """Place among the top-level keys that every role's section also takes; 0: the sections don't take this key."""
    agreed: Literal["", "always", "tiny"] = ""
    """Orchestrator and trainer need the same value: `always`, or with `tiny` only if the model is `hone/tiny`."""
    listed: bool = True
    """True if lists of a run's changed settings name this key."""

    @property
    def is_free(self) -> bool:
        """True if a resume may change the key, and a comparison of runs ignores it."""
        return self.decides not in ("bytes", "digest")

    def within(self, section: Meta) -> Meta:
        """Complete a field's Meta. The section's `decides` (but "bytes") and `common` None win; `place` fills a 0."""
        common = None if section.common is None else self.common
        decides = section.decides if section.decides != "bytes" else self.decides
        return replace(self, common=common, place=self.place or section.place, decides=decides)


_KINDS = {"bool": bool, "int": int, "float": float, "str": str, "list[str]": list[str]}
"""Types of an extension's keys, by name; a key of another type is a section."""
PLACES = {"run": "", "rl": "", "eval": "", "engine": "inference."}
"""Configs that extensions add keys to (`run`: `hone sft` and `hone rl`), and the prefix of the keys' paths."""
ADDED: dict[str, Any] = {}
"""Defaults of the keys that extensions add, by path."""


def with_keys(place: str) -> Callable[[type[Model]], type[Model]]:
    """Decorate a config's class: add the extensions' keys and choices for this place."""

    def extended(cls: type[Model]) -> type[Model]:
        fields: dict[str, Any] = {}
        parents: list[Any] = [cls]
        for name, key in gathered("KEYS", {}).items():
            where, _, key_name = name.rpartition(".")
            if where not in PLACES:
                raise UserError(f"{key.module} adds the key {name}: begin it with one of {', '.join(PLACES)}")
            if where != place:
                continue
            if isinstance(key, Fields):
                added = load(key.module, f"config.{key.fields_class}")
                _refuse_taken(key, added, parents)
                parents.insert(0, added)
                ADDED.update({PLACES[place] + one: field.get_default() for one, field in added.model_fields.items()})
                continue
            if any(key_name in parent.model_fields for parent in parents):
                raise UserError(f"{key.module} adds the key {name}, which exists already: choose another name")
            kind: Any = _KINDS.get(key.kind) or load(key.module, f"config.{key.kind}")
            ADDED[PLACES[place] + key_name] = default = kind() if key.default == {} else key.default
            kind = kind | None if default is None else kind
            fields[key_name] = (Annotated[kind, Meta(**key.meta)], Field(default=default, description=key.docstring))
        choices: dict[str, dict[str, str]] = {}
        for name, words in gathered("CHOICES", {}).items():
            where, _, rest = name.partition(".")
            key_name, _, value = rest.partition(".")
            if where not in PLACES or not value or (where == place and key_name not in cls.model_fields):
                raise UserError(f"an extension adds {name} to CHOICES: write PLACE.KEY.VALUE, with a key of hone")
            if where == place:
                choices.setdefault(key_name, {})[value] = words
        fields |= {key_name: _with_choices(cls.model_fields[key_name], values) for key_name, values in choices.items()}
        about = {"__module__": cls.__module__, "__doc__": cls.__doc__}
        return create_model(cls.__name__, __base__=tuple(parents), **about, **fields)

    return extended


def _refuse_taken(key: Fields, added: type[BaseModel], parents: Sequence[type[BaseModel]]) -> None:
    checks = {name for name in vars(added) if name.startswith("_")} - set(dir(BaseConfig))
    for name in sorted(added.model_fields.keys() | checks):
        if any(name in parent.model_fields or hasattr(parent, name) for parent in parents):
            raise UserError(f"{key.module}: {key.fields_class}.{name} exists already: choose another name")


def _with_choices(field: FieldInfo, values: Mapping[str, str]) -> tuple[Any, Any]:
    core, optional = unwrap(field.annotation)
    kind: Any = Literal[*get_args(core), *values]
    words = " ".join([field.description or "", *(f"`{value}`: {text}" for value, text in values.items())])
    return Annotated[kind | None if optional else kind, meta_of(field)], Field(default=field.default, description=words)


PLAIN = Meta()


class BaseConfig(pydantic_config.BaseConfig):
    """A typed section. Unknown keys are errors; the string `"None"` is null, which TOML cannot write.

    The docstring under a field is its text in `--help`.
    """

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    positional: ClassVar[str] = ""
    """Fields that words without a flag set, in order: with "env", `hone eval gsm8k` means `--env gsm8k`."""
    bare: ClassVar[str] = ""
    """Field that a value for the whole section sets: with "id", `--env countdown` means `--env.id countdown`."""
    section: ClassVar[str] = ""
    """Section for keys in files and flags that the top level does not have."""
    is_role: ClassVar[bool] = False
    """True for a section that also takes the shared top-level keys."""
    headings: ClassVar[str] = ""
    """Headings of `--help`, each with the kinds of common keys below it: `Run: run below; Training` (the only kind of
    `Training` is `training`). Without headings, `--help` shows all keys."""
    choices: ClassVar[dict[str, dict[str, str]]] = {}
    """Meaning of each value of a key, for `--help KEY`."""
    partial: ClassVar[bool] = False
    """True if config.toml has only the keys that were set, because another section has the defaults."""

    @classmethod
    def kinds(cls) -> dict[str, set[str]]:
        split = (one.partition(":") for one in cls.headings.split(";") if one)
        return {heading.strip(): {*(kinds or heading).lower().split()} for heading, _, kinds in split}

    @classmethod
    def chosen(cls, argv: list[str]) -> type[Self]:
        return cls

    @classmethod
    def of_run(cls, kind: str, table: dict[str, Any]) -> dict[str, Any]:
        """Return the part of `hone KIND`'s config.toml that this command uses; by default, all of it."""
        return table

    @classmethod
    def compose(cls, settings: Settings) -> dict[str, Any]:
        return settings.tree()

    @model_validator(mode="before")
    @classmethod
    def _coerce_dict_str_values(cls, data: Any) -> Any:
        """Replace `"None"` by null; the overridden method would also make the text in `{answer = "5"}` a number."""
        return _with_nulls(data)


def _with_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_nulls(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_nulls(item) for item in value]
    return None if value == "None" else value


class Setting(NamedTuple):
    """A value and its `source`: a file, a flag, or "" if a program gave it."""

    value: Any
    source: str = ""
    is_flag: bool = False

    @property
    def is_off(self) -> bool:
        return self.value in (None, "None")


class Settings(dict[Path, Setting]):
    """The leaves of a config; later settings win."""

    section_files: tuple[str, ...] = ()
    """Sections that were given as `--SECTION @ FILE`."""

    def put(self, path: Path, setting: Setting) -> None:
        """Set a leaf, and drop the leaves above or below its path. The value {} only turns on a section that is off."""
        below = [known for known in self if known[: len(path)] == path]
        if setting.value == {} and any(not self[known].is_off for known in below):
            return
        for known in [*below, *(path[:length] for length in range(len(path)))]:
            self.pop(known, None)
        self[path] = setting

    def put_tree(self, tree: Any, path: Path = (), source: str = "", is_flag: bool = False) -> Settings:
        """Set all leaves of a tree. A config object gives only the keys that were set explicitly."""
        tree = tree.model_dump(exclude_unset=True) if isinstance(tree, BaseModel) else tree
        if isinstance(tree, dict) and (tree or not path):
            for name, value in tree.items():
                self.put_tree(value, (*path, name), source, is_flag)
        else:
            self.put(path, Setting(tree, source, is_flag))
        return self

    def tree(self) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for path, setting in self.items():
            holder = result
            for part in path[:-1]:
                holder = holder.setdefault(part, {})
            holder[path[-1]] = setting.value
        return result

    def origin(self, path: Path) -> str:
        """Return ` (SOURCE)` for a message: the source of the key or its section; "" if unknown."""
        at = [known for known in self if path[: len(known)] == known or known[: len(path)] == path]
        source = self[max(at, key=len)].source if at else ""
        return f" ({source})" if source else ""


@dataclass(frozen=True)
class Key:
    """A key of a config class. `type`: its annotation without `| None`; `free`: the key lies in a free-form dict."""

    path: Path
    type: Any
    optional: bool
    free: bool = False
    meta: Meta = PLAIN

    @classmethod
    def of(cls, path: Path, field: FieldInfo, section: Meta) -> Key:
        return cls(path, *unwrap(field.annotation), meta=meta_of(field).within(section))

    @property
    def section(self) -> type[BaseModel] | None:
        return self.type if isinstance(self.type, type) and issubclass(self.type, BaseModel) else None

    @property
    def bare(self) -> str:
        return getattr(self.section, "bare", "")


def dotted(path: Path) -> str:
    return ".".join(path)


def flag(path: Path) -> str:
    return "--" + dotted(path).replace("_", "-")


def is_dict(annotation: Any) -> bool:
    return annotation is dict or get_origin(annotation) is dict


def unwrap(annotation: Any) -> tuple[Any, bool]:
    """Return (int, True) for `int | None`, else (the annotation, False)."""
    if get_origin(annotation) in (Union, types.UnionType):
        inner = [arg for arg in get_args(annotation) if arg is not type(None)]
        if len(inner) == 1:
            return inner[0], True
    return annotation, False


def names_of(name: str, field: FieldInfo) -> list[str]:
    """Return a field's name and aliases; an alias of one letter is a short flag."""
    alias = field.validation_alias
    choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
    return [name, *(choice for choice in choices if isinstance(choice, str) and choice != name)]


def value_of(config: Any, name: str) -> Any:
    return reduce(getattr, name.split("."), config)


def changed(config: Model, values: Mapping[str, Any]) -> Model:
    """Return the config with `values` ({dotted name: value}), which are not validated."""
    for name, value in values.items():
        section, dot, key = name.partition(".")
        config = config.model_copy(update={section: changed(getattr(config, section), {key: value}) if dot else value})
    return config


def meta_of(field: FieldInfo) -> Meta:
    return next((one for one in field.metadata if isinstance(one, Meta)), PLAIN)


@cache
def shared_keys(cls: type[BaseModel]) -> list[str]:
    places = {name: meta_of(field).shared for name, field in cls.model_fields.items()}
    return sorted(filter(places.get, places), key=places.__getitem__)


def lookup(cls: type[BaseModel], parts: Path) -> Key | None:
    """Return the key at `parts` (dashes and aliases allowed), with its canonical path; None if there is no such key."""
    path: Path = ()
    section: type[BaseModel] | None = cls
    key = None
    for index, part in enumerate(parts):
        if section is None:
            assert key is not None
            return Key(key.path + parts[index:], Any, True, True, key.meta) if is_dict(key.type) else None
        name = part.replace("-", "_")
        holder = cls if getattr(section, "is_role", False) and name in shared_keys(cls) else section
        canonical = next((n for n, field in holder.model_fields.items() if name in names_of(n, field)), None)
        if canonical is None:
            return None
        path += (canonical,)
        key = Key.of(path, holder.model_fields[canonical], key.meta if key else PLAIN)
        section = key.section
    return key


def walk(cls: type[BaseModel], prefix: Path = (), meta: Meta = PLAIN) -> Iterator[Key]:
    for name, field in cls.model_fields.items():
        key = Key.of((*prefix, name), field, meta)
        yield key
        if key.section:
            yield from walk(key.section, key.path, key.meta)


def nearest(cls: type[BaseModel], unknown: Path) -> Path | None:
    """Return the key most similar to `unknown`, by name and then by section; None if no key is similar (CLOSE)."""
    from hone.config.trl import TRL

    of_trl = {name: key.rpartition(".")[2] for name, (key, _) in TRL.items() if key}
    words = (part.replace("-", "_").lower() for part in unknown)
    unknown = tuple((of_trl | SYNONYMS).get(word, word) for word in words)

    def alike(one: str, other: str) -> float:
        return SequenceMatcher(None, one, other).ratio()

    def likeness(known: Path) -> tuple[float, float, int]:
        if "_".join(unknown) == "_".join(known):
            return 2.0, 0.0, 0  # --wandb-project
        pairs = [alike(one, other) for one in unknown[:-1] for other in known[:-1]]
        name, place = alike(unknown[-1], known[-1]), max(pairs, default=CLOSE)
        return (name, place, -len(known)) if min(name, place) >= CLOSE else (0.0, 0.0, 0)

    best = max((key.path for key in walk(cls)), key=likeness)
    return best if likeness(best)[0] else None
