"""Reading a command line: `@ file.toml` references and dotted flags become two trees, and each key's source is kept.

This stands beside `pydantic_config.cli` because hoisting has to know which keys were flags, and errors have to name the
file; and because that function (0.4.3) reads `--trainer @ a @ b` as a root file b, lets a second `--trainer @ b`, or
a second value of a list, replace the first, cannot take `--ckpt.interval=2` or a tuple, and suggests no nested keys.

    @ a.toml @ b.toml               merged at the top, later files win
    --trainer @ a.toml @ b.toml     merged into the section; an `@` belongs to the flag before it
    --trainer.optim.lr 1e-6         or `=1e-6`; dashes and underscores alike
    --ckpt, --no-ckpt               an optional section on with its defaults, off
    --env countdown                 a section that is known by one of its keys: `--env.id countdown`
    --tags a --tags b               both: a list's values add up (and replace those of the files)
    --save, --no-save               booleans; `--save false` too
    --env-args '{"n": 3}'           free-form dicts as JSON, or key by key: `--env-args.n 3`

Flags win over files, and a section's own files over what root files say about it, wherever they stand.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import operator
import pathlib
import tomllib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, get_args, get_origin

from hone.config.base import BaseConfig
from hone.config.schema import Key, Path, dotted, flag, lookup, nearest
from hone.errors import UserError

CONFIG_OF = "# The resolved config of a run of hone "
"""How the config.toml of a run begins."""


@dataclass
class Sources:
    """What a command line says: files merged, flags, and for each leaf the file or flag that set it last."""

    files: dict[str, Any] = field(default_factory=dict)
    flags: dict[str, Any] = field(default_factory=dict)
    origins: dict[Path, str] = field(default_factory=dict)
    section_files: list[str] = field(default_factory=list)

    def origin(self, path: Path) -> str:
        """` (file or flag)` to put behind a key in a message: its own source, else its section's; else empty."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.origins:
                return f" ({self.origins[path[:length]]})"
        below = [source for known, source in self.origins.items() if known[: len(path)] == path]
        return f" ({below[0]})" if below else ""


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Both trees; where they meet, `over` wins."""
    result = copy.deepcopy(base)
    for key, value in over.items():
        both = isinstance(result.get(key), dict) and isinstance(value, dict)
        result[key] = merge(result[key], value) if both else copy.deepcopy(value)
    return result


def nest(path: Path, value: Any) -> dict[str, Any]:
    for part in reversed(path):
        value = {part: value}
    return value


def read_sources(cls: type[BaseConfig], argv: list[str]) -> Sources:
    """Read `argv` against the schema of `cls`. Raises UserError for an unknown key, a bad file, a missing value."""
    return _Reader(cls, argv).read()


def add_settings(cls: type[BaseConfig], sources: Sources, settings: Mapping[str, Any]) -> Sources:
    """`sources` with keys that a Python program sets, by name or dotted name. UserError for an unknown key."""
    reader, found = _Reader(cls, []), sources
    for name, value in settings.items():
        key = lookup(cls, tuple(name.split(".")))
        if key is None:
            close = nearest(cls, tuple(name.split(".")))
            command = cls.__name__.removesuffix("Config").lower()
            hint = f": did you mean {dotted(close)}?" if close else f"; `hone {command} --help` lists all keys"
            raise UserError(f"there is no key {name!r}{hint}")
        if key.section and isinstance(value, bool):
            value = {} if value else None
        value = str(value) if isinstance(value, pathlib.PurePath) else value
        tree = reader.checked(nest(key.path, value), (), "a keyword", found.origins)
        found = replace(found, flags=merge(found.flags, tree))
        found.origins.setdefault(key.path, f"keyword {name}")
    return found


class _Reader:
    def __init__(self, cls: type[BaseConfig], argv: list[str]) -> None:
        self.cls = cls
        self.tokens = deque(argv)
        self.section: Path = ()
        self.trees: dict[str, dict[str, Any]] = {"root": {}, "section": {}, "flags": {}}
        self.origins: dict[str, dict[Path, str]] = {"root": {}, "section": {}, "flags": {}}
        self.section_files: list[str] = []

    def read(self) -> Sources:
        positional = deque(self.cls.words())
        while self.tokens:
            token = self.tokens.popleft()
            if token.startswith("@"):
                self._read_file(token[1:])
                continue
            self.section = ()
            if token.startswith("-") and len(token) > 1:
                self._read_flag(token)
            elif positional:
                name = positional.popleft()
                self._set((name,), token, name.upper())
            else:
                hint = (
                    f"a config file is given as `@ {token}`"
                    if token.endswith(".toml")
                    else "a key is set by `--key value`"
                )
                raise UserError(f"unexpected argument {token!r}: {hint}")
        files = merge(self.trees["root"], self.trees["section"])
        origins = {**self.origins["root"], **self.origins["section"], **self.origins["flags"]}
        return Sources(files, self.trees["flags"], origins, self.section_files)

    def _read_file(self, name: str) -> None:
        if not name and not self.tokens:
            raise UserError("`@` must be followed by the path of a .toml file")
        name = name or self.tokens.popleft()
        section = self.section
        if not section and self.cls.section and not config_of(pathlib.Path(name)):
            section = (self.cls.section,)
        layer = "section" if section else "root"
        tree = self.checked(load_toml(name), section, name, self.origins[layer])
        self.trees[layer] = merge(self.trees[layer], nest(section, tree))
        if self.section:
            self.section_files.append(dotted(self.section))

    def checked(self, tree: dict[str, Any], prefix: Path, file: str, origins: dict[Path, str]) -> dict[str, Any]:
        """`tree` in canonical names; refuses unknown keys, and true or false where a number belongs."""
        result: dict[str, Any] = {}
        for name, value in tree.items():
            key = lookup(self.cls, (*prefix, name))
            if key is not None and isinstance(value, dict) and not (key.section or key.is_dict or key.free):
                raise UserError(self._unknown_key((*prefix, name, *list(value)[:1]), file))  # a table for a value
            if key is None:
                raise UserError(self._unknown_key((*prefix, name), file))
            if isinstance(value, bool) and key.type in (int, float):
                raise UserError(f"{dotted(key.path)} is {str(value).lower()} ({file}), but should be a number")
            if key.bare is not None and isinstance(value, str) and value != "None":
                value = {key.bare: value}
            if key.section and isinstance(value, dict):
                value = self.checked(value, key.path, file, origins)
            result[key.path[-1]] = value
            if not (key.section and isinstance(value, dict) and value):
                origins[key.path] = file
        return result

    def _read_flag(self, token: str) -> None:
        """Set what one flag says, or remember the section that an `@ file` after it belongs to."""
        shown, equals, value = token.partition("=")
        name, short = shown.lstrip("-"), not shown.startswith("--")
        path = tuple(name.split("."))
        key = lookup(self.cls, path) if short == (len(name) == 1) else None
        if key is None and self.cls.section:
            key = lookup(self.cls, (self.cls.section, *path))
        if key is None and (negated := self._negated(path)) is not None:
            self._set(negated.path, None if negated.section else False, token)
            return
        if key is None:
            close = nearest(self.cls, path)
            hint = f": did you mean {flag(close)}?" if close else ", and none is like it; --help lists them all"
            raise UserError(f"unknown flag {shown}{hint}")
        if not equals and key.type is not bool and self.tokens and self.tokens[0].startswith("@"):
            if key.section is None:
                raise UserError(f"{shown} takes a value, not a file: only a section can be given as `@ file.toml`")
            self.section = key.path
            return
        found = self._value(key, shown, value if equals else None)
        if get_origin(key.type) is list and key.path in self.origins["flags"]:
            found = [*functools.reduce(operator.getitem, key.path, self.trees["flags"]), *found]
        self._set(key.path, found, shown)

    def _negated(self, path: Path) -> Key | None:
        """The boolean or optional section that `no-x.y` or `x.no-y` turns off."""
        parts = tuple(part.replace("_", "-") for part in path)
        for index in {0, len(parts) - 1}:
            if parts[index].startswith("no-"):
                positive = (*parts[:index], parts[index][3:], *parts[index + 1 :])
                key = lookup(self.cls, positive)
                if key is not None and (key.type is bool or (key.section and key.optional)):
                    return key
        return None

    def _value(self, key: Key, shown: str, value: str | None) -> Any:
        following = self.tokens[0] if self.tokens and not self.tokens[0].startswith(("--", "@")) else None
        if key.section:
            if value == "None" or (value is None and following == "None"):
                if value is None:
                    self.tokens.popleft()
                return None
            if key.bare is not None and (value is not None or following is not None):
                return {key.bare: self.tokens.popleft() if value is None else value}
            if value is not None or not key.optional:
                example = flag((*key.path, next(iter(key.section.model_fields))))
                raise UserError(
                    f"{shown} is a section: set its keys, such as {example}, or give a file: {shown} @ FILE"
                )
            return {}
        if key.type is bool and value is None:
            literal = following is not None and following.lower() in ("true", "false", "1", "0")
            return self.tokens.popleft() if literal else True
        if value is None and following is None:
            raise UserError(f"{shown} needs a value")
        first = value if value is not None else self.tokens.popleft()
        if key.is_dict:
            return _json_object(first, shown)
        if get_origin(key.type) in (tuple, list):
            return self._sequence(key, first, shown)
        return _literal(first) if key.free else first

    def _sequence(self, key: Key, first: str, shown: str) -> list[Any]:
        if first.startswith("["):
            try:
                return json.loads(first)
            except json.JSONDecodeError:
                raise UserError(f"{shown} takes a list such as '[0.9, 0.95]', not {first!r}") from None
        args = get_args(key.type)
        limit = len(args) if get_origin(key.type) is tuple and Ellipsis not in args else None
        values = [first]
        while self.tokens and not self.tokens[0].startswith(("--", "@")) and len(values) != limit:
            values.append(self.tokens.popleft())
        return values

    def _set(self, path: Path, value: Any, shown: str) -> None:
        # Free-form keys are Python keyword names, so a dash in a flag stands for an underscore there as well.
        path = tuple(part.replace("-", "_") for part in path)
        self.trees["flags"] = merge(self.trees["flags"], nest(path, value))
        self.origins["flags"][path] = shown

    def _unknown_key(self, path: Path, file: str) -> str:
        close = nearest(self.cls, path)
        hint = f": did you mean {dotted(close)}?" if close else ", and no key is like it; --help lists them all"
        if self.section and lookup(self.cls, path[len(self.section) :]) is not None:
            section = flag(self.section)
            hint = f": a file after {section} is read as that section; for the top, put `@ {file}` before {section}"
        other = config_of(pathlib.Path(file))
        if other and self.cls.__name__.lower() != f"{other}config":
            hint = f": it is the config of a run of `hone {other}`"
        return f"unknown key {dotted(path)} in {file}{hint}"


def config_of(file: pathlib.Path) -> str:
    """Which command a run's config.toml is for: its first line says it; "" for other files."""
    with contextlib.suppress(OSError, UnicodeDecodeError), open(file, encoding="utf-8") as text:
        first = text.readline().rstrip("\n")
        return first.removeprefix(CONFIG_OF) if first.startswith(CONFIG_OF) else ""
    return ""


def load_toml(name: str) -> dict[str, Any]:
    """The tree of a TOML file. Raises UserError naming the file, and the line of a syntax error."""
    if not name.endswith(".toml"):
        raise UserError(f"config file {name} must be a .toml file")
    try:
        with open(name, "rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise UserError(f"config file {name} does not exist") from None
    except IsADirectoryError:
        raise UserError(f"config file {name} is a folder") from None
    except PermissionError:
        raise UserError(f"config file {name} may not be read by this user") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"config file {name} is not valid TOML: {error}") from None


def _json_object(text: str, shown: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise UserError(f"""{shown} takes a JSON object such as '{{"n": 3}}', not {text!r}""")
    return value


def _literal(text: str) -> Any:
    """A value without a schema: JSON where it reads as such (`3`, `true`, `[1, 2]`), else the text itself."""
    if text in ("True", "False", "None"):
        return {"True": True, "False": False, "None": None}[text]
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
