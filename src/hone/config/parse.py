"""Parses a command line into a typed config; an error becomes one sentence.

hone doesn't use `pydantic_config.cli`, which reads b in `--trainer @ a @ b` as a root file. Besides, hoisting must know
which keys were flags, and errors must name the file.

    @ a.toml @ b.toml               merged at the top level, later files win
    --trainer @ a.toml @ b.toml     merged into the section: an `@` belongs to the flag before it
    --trainer.optim.lr 1e-6         or `=1e-6`; dashes mean underscores
    --ckpt, --no-ckpt               turn an optional section on with its defaults, or off
    --env countdown                 sets the main key of a section: `--env.id countdown`
    --tags a --tags b               the list [a, b], which replaces the files' list
    --save, --no-save               booleans; `--save false` also works
    --env-args '{"n": 3}'           free-form dicts as JSON, or key by key: `--env-args.n 3`

Flags win over files, and section files over root files, in any order.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import tomllib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, get_args, get_origin

from pydantic import ValidationError

from hone.config.base import BaseConfig, Key, Path, Setting, Settings, dotted, flag, is_dict, lookup, nearest
from hone.config.retired import check_retired, is_dropped, lacks
from hone.errors import KEYWORDS, UserError

Config = TypeVar("Config", bound=BaseConfig)

CONFIG_OF = "# The resolved config of a run of hone "
ROOT_FILE, SECTION_FILE, FLAG = range(3)
"""Kinds of sources; a later kind overrides an earlier kind."""


def parse(cls: type[Config], argv: list[str], prog: str) -> Config:
    """Return the config that `argv` (without the program's name) gives. Raises UserError if `argv` is wrong.

    `-h` or `--help` prints the keys and raises SystemExit(0); the word after it may be a section, a key or `all`.
    """
    cls = cls.chosen(argv)
    for index, word in enumerate(argv):
        if word in ("-h", "--help"):
            from hone.config.help import render

            print(render(cls, prog, "".join(argv[index + 1 : index + 2])))
            raise SystemExit(0)
    return _validated(cls, _Reader(cls, argv).read(), prog)


def from_settings(cls: type[Config], config: Config | str | pathlib.Path | None, settings: Mapping[str, Any]) -> Config:
    """Return `config`, or the config in this TOML file, changed by `settings` ({name or dotted name: value}).

    The value of a section is a dict, True for its defaults, the value of its main key, or False to turn it off.
    """
    if isinstance(config, BaseConfig) and not settings:
        return config
    reader = _Reader(cls, [] if config is None or isinstance(config, BaseConfig) else ["@", str(config)])
    merged = reader.read()
    if isinstance(config, BaseConfig):
        merged.put_tree(config)
    for name, value in settings.items():
        key = lookup(cls, path := tuple(name.split(".")))
        if key is None:
            check_retired(_command(cls), path, "")
            keyword = lambda path: KEYWORDS.get(dotted(path), dotted(path))  # noqa: E731
            hint = _meant(cls, path, f"; `hone {_command(cls)} --help all` lists all keys", keyword)
            raise UserError(f"there is no key {name!r}{hint}")
        if key.section and isinstance(value, bool):
            value = {} if value else None
        value = str(value) if isinstance(value, pathlib.PurePath) else value
        for leaf, item in reader.leaves({key.path[-1]: value}, key.path[:-1], "a keyword"):
            merged.put(leaf, Setting(item, f"keyword {name}", is_flag=True))
    return _validated(cls, merged, "hone")


def _command(cls: type[BaseConfig]) -> str:
    return cls.__name__.removesuffix("Config").lower()


def _meant(cls: type[BaseConfig], unknown: Path, other: str, show: Callable[[Path], str] = dotted) -> str:
    """Return a hint for an unknown key: the most similar key, or the note in `TRL`; `other` if no key is similar."""
    from hone.config.trl import KEYS, TRL

    if why := lacks(_command(cls), unknown):
        return f": {why}"
    name, note = TRL.get(unknown[0].replace("-", "_"), ("", "")) if len(unknown) == 1 else ("", "")
    name = KEYS.get(name, name)
    known = lookup(cls, tuple(name.split("."))) or lookup(cls, tuple(name.removeprefix("trainer.").split(".")))
    if known or (note and not name):
        asked = f"did you mean {show(known.path)}?" if known else ""
        return ": " + " ".join(filter(None, [asked, f"({note})" if name and note else note]))
    close = nearest(cls, unknown)
    return f": did you mean {show(close)}?" if close else other


def _validated(cls: type[Config], settings: Settings, prog: str) -> Config:
    """Return the config. For its first problem, raise a UserError that names key, value, source and expected value."""
    try:
        return cls.model_validate(cls.compose(settings))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    kind, value, where = first["type"], first["input"], settings.origin(tuple(str(part) for part in first["loc"]))
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    if kind == "value_error":  # raised by a validator of ours
        raise UserError(": ".join(filter(None, [name, str(first.get("ctx", {})["error"])])))
    if kind == "missing":
        words = cls.positional.split()
        usage = f": write `{prog} {' '.join(words).upper()}`" if name in words else ""
        usage = usage or ("" if "[" in name else f": set --{name.replace('_', '-')}")
        raise UserError(f"{name.upper() if name in words else name} is missing{where}{usage}")
    problem = f"{name} is {str(value).lower() if isinstance(value, bool) else repr(value)}{where}"
    expected = first["msg"].removeprefix("Input should be ").partition(", unable to parse")[0]
    if kind == "model_type":
        expected = "a section with keys"
    raise UserError(f"{problem}, but should be {expected}" if expected != first["msg"] else f"{problem}: {expected}")


class _Reader:
    """Reads a command line for the config `cls`. Raises UserError for an unknown key, a bad file or a missing value."""

    def __init__(self, cls: type[BaseConfig], argv: list[str]) -> None:
        self.cls = cls
        self.tokens = deque(argv)
        self.section: Path = ()
        self.given = [Settings(), Settings(), Settings()]
        self.section_files: list[str] = []

    def read(self) -> Settings:
        words = deque(self.cls.positional.split())
        while self.tokens:
            token = self.tokens.popleft()
            if token.startswith("@"):
                self._read_file(token[1:])
                continue
            self.section = ()
            if token.startswith("-") and len(token) > 1:
                self._read_flag(token)
            elif words:
                name = words.popleft()
                self.given[FLAG].put((name,), Setting(token, name.upper(), is_flag=True))
            else:
                hint = f"a config file is given as `@ {token}`" if ".toml" in token else "a key is set by `--key value`"
                raise UserError(f"unexpected argument {token!r}: {hint}")
        settings = Settings()
        for path, setting in (leaf for source in self.given for leaf in source.items()):
            settings.put(path, setting)
        settings.section_files = tuple(self.section_files)
        return settings

    def _read_file(self, name: str) -> None:
        if not name and not self.tokens:
            raise UserError("`@` must be followed by the path of a .toml file")
        name = name or self.tokens.popleft()
        section = self.section
        if not section and self.cls.section and not config_of(pathlib.Path(name)):
            section = (self.cls.section,)
        source, tree = self.given[SECTION_FILE if section else ROOT_FILE], load_toml(name)
        if kind := config_of(pathlib.Path(name)):
            tree = self.cls.of_run(kind, tree)
        for path, value in self.leaves(tree, section, name):
            source.put(path, Setting(value, name))
        if self.section:
            self.section_files.append(dotted(self.section))

    def leaves(self, tree: dict[str, Any], prefix: Path, file: str) -> Iterator[tuple[Path, Any]]:
        """Yield the leaves of `tree`. Raises UserError for an unknown key, or a boolean instead of a number."""
        for name, value in tree.items():
            key = lookup(self.cls, (*prefix, name))
            if key is None and is_dropped(_command(self.cls), (*prefix, name), value, file):
                continue
            if key is None:
                raise UserError(self._unknown_key((*prefix, name), file))
            if isinstance(value, dict) and not (key.section or is_dict(key.type) or key.free):
                raise UserError(self._unknown_key((*prefix, name, *list(value)[:1]), file))  # a table for a value
            if isinstance(value, bool) and key.type in (int, float):
                raise UserError(f"{dotted(key.path)} is {str(value).lower()} ({file}), but should be a number")
            if key.bare and isinstance(value, str) and value != "None":
                value = {key.bare: value}
            if isinstance(value, dict) and value:
                yield from self.leaves(value, key.path, file)
            else:
                yield key.path, value

    def _unknown_key(self, path: Path, file: str) -> str:
        unlike = ", and no key is similar; --help all lists all keys"
        if other := config_of(pathlib.Path(file)):
            unlike = ": it may belong to an extension that is not installed, or to another version of hone"
        hint = _meant(self.cls, path, unlike)
        if other and self.cls.__name__.lower() != f"{other}config":
            hint = f": the file is the config of a run of `hone {other}`"
        return f"unknown key {dotted(path)} in {file}{hint}"

    def _read_flag(self, token: str) -> None:
        word, equals, text = token.partition("=")
        name, short = word.lstrip("-"), not word.startswith("--")
        path = tuple(name.split("."))
        key = lookup(self.cls, path) if short == (len(name) == 1) else None
        if key is None and self.cls.section:
            key = lookup(self.cls, path := (self.cls.section, *path))
        on = name.removeprefix("no-").replace(".no-", ".")
        off = lookup(self.cls, tuple(on.split("."))) if key is None and on != name else None
        if off is not None and (off.type is bool or (off.section and off.optional)):
            self.given[FLAG].put(off.path, Setting(None if off.section else False, token, is_flag=True))
            return
        if key is None:
            check_retired(_command(self.cls), bare := tuple(on.split(".")), word)
            known = bare if lacks(_command(self.cls), bare) else path
            hint = _meant(self.cls, known, ", and no flag is similar; --help all lists all flags", flag)
            raise UserError(f"unknown flag {word}{hint}")
        if not equals and key.type is not bool and self.tokens and self.tokens[0].startswith("@"):
            if key.section is None:
                raise UserError(f"{word} takes a value, not a file: only sections take `@ file.toml`")
            self.section = key.path
            return
        value = self._section(key, word, text) if key.section else self._value(key, word, text if equals else None)
        if get_origin(key.type) is list and key.path in self.given[FLAG]:
            value = [*self.given[FLAG][key.path].value, *(value or [])]
        # Keys of dicts are Python arguments, so here, too, a dash in a flag means an underscore.
        path = tuple(part.replace("-", "_") for part in key.path)
        self.given[FLAG].put_tree(value, path, word, is_flag=True)

    def _following(self) -> str | None:
        return self.tokens[0] if self.tokens and not self.tokens[0].startswith(("--", "@")) else None

    def _section(self, key: Key, word: str, text: str) -> dict[str, Any] | None:
        """Return the value of a section's flag: {} turns the section on, None turns it off, a dict has the main key."""
        following = self._following()
        if not text and following is not None and (key.bare or following == "None"):
            text = self.tokens.popleft()
        if text == "None":
            return None
        if text and key.bare:
            return {key.bare: text}
        if text or not key.optional:
            assert key.section is not None
            example = flag((*key.path, next(iter(key.section.model_fields))))
            raise UserError(f"{word} is a section: set its keys, such as {example}, or give a file: {word} @ FILE")
        return {}

    def _value(self, key: Key, word: str, value: str | None) -> Any:
        if value is None:
            following = self._following()
            if key.type is bool and (following or "").lower() not in ("true", "false", "1", "0"):
                return True
            if following is None:
                raise UserError(f"{word} needs a value")
            value = self.tokens.popleft()
        many = get_origin(key.type) in (tuple, list)
        if many and not value.startswith("["):
            values, limit = [value], len(get_args(key.type)) if get_origin(key.type) is tuple else None
            while self._following() is not None and len(values) != limit:
                values.append(self.tokens.popleft())
            return values
        if not (key.free or is_dict(key.type) or many):
            return value
        found: Any = {"True": True, "False": False, "None": None}.get(value, value)
        with contextlib.suppress(json.JSONDecodeError):
            found = json.loads(value)
        if not key.free and not isinstance(found, list if many else dict):
            example = "a list such as '[0.9, 0.95]'" if many else """a JSON object such as '{"n": 3}'"""
            raise UserError(f"{word} takes {example}, not {value!r}")
        return found


def config_of(file: pathlib.Path) -> str:
    """Return the command that the first line of a run's config.toml names; "" for other files."""
    with contextlib.suppress(OSError, UnicodeDecodeError), open(file, encoding="utf-8") as text:
        first = text.readline().rstrip("\n")
        return first.removeprefix(CONFIG_OF) if first.startswith(CONFIG_OF) else ""
    return ""


def load_toml(name: str) -> dict[str, Any]:
    if not name.endswith(".toml"):
        raise UserError(f"config file {name} must be a .toml file")
    try:
        return tomllib.loads(pathlib.Path(name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"config file {name} does not exist") from None
    except OSError as error:
        raise UserError(f"config file {name} can't be read: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"config file {name} is not valid TOML: {error}") from None
