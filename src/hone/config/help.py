"""`--help`: the keys of a config with their docstrings, types and defaults; first those that most people set."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from hone.config.base import BaseConfig, Path, dotted, flag, lookup, names_of, nearest, unwrap
from hone.errors import UserError

INDENT = 30


class Group(NamedTuple):
    """A section: its own line, and for each of its keys the flag and its text."""

    path: Path
    heading: str
    rows: dict[Path, tuple[str, str]]


def render(cls: type[BaseConfig], prog: str, topic: str = "") -> str:
    """Return the help page of a command, wrapped to the terminal; of `topic`: a section, or `all`.

    Without a topic it has the keys that most people set, where the config names them (`common`).
    """
    width = min(shutil.get_terminal_size().columns, 120)
    groups = list(_groups(cls))
    sections = [dotted(group.path) for group in groups if len(group.path) == 1]
    if topic not in ("", "all") and not topic.startswith(("-", "@")):
        groups = _section(cls, groups, topic)
    elif topic != "all" and cls.common:
        groups = _common(cls, groups)
    lines = _head(cls, prog, width, bool(sections))
    for _, heading, rows in groups:
        wrapped = textwrap.wrap(heading, width, subsequent_indent="    ", break_on_hyphens=False)
        lines += ["", *wrapped] if heading else []
        for left, text in rows.values():
            lines += _row(left, text, width)
    if cls.common and topic != "all":
        of_one = f"Of one section: `{prog} --help SECTION` ({', '.join(sections)})."
        lines += ["", *textwrap.wrap(f"All keys: `{prog} --help all`. {of_one}", width, break_on_hyphens=False)]
    return "\n".join(lines)


def _head(cls: type[BaseConfig], prog: str, width: int, sections: bool) -> list[str]:
    words = "".join(f" {name.upper()}" for name in cls.words())
    return [
        f"usage: {prog}{words} [@ FILE.toml ...]{' [--SECTION @ FILE.toml ...]' * sections} [--KEY VALUE ...]",
        "",
        *textwrap.wrap((cls.__doc__ or "").partition("\n\n")[0], width),
        "",
        f"Flags win over files,{' a section over the top,' * sections} and later files over earlier ones.",
        "In a file the same keys are written without the dashes: --a.b-c 1 is `b_c = 1` under `[a]`.",
        "",
        "  -h, --help",
    ]


def _section(cls: type[BaseConfig], groups: list[Group], topic: str) -> list[Group]:
    """Return a section and those below it. UserError if there is none of that name."""
    path = tuple(topic.split("."))
    key = lookup(cls, path)
    if key is None or key.section is None:
        close = nearest(cls, path)
        hint = f"did you mean {dotted(close)}?" if close else "--help all lists all keys"
        raise UserError(f"--help {topic}: there is no such section; {hint}")
    return [group for group in groups if group.path[: len(key.path)] == key.path]


def _common(cls: type[BaseConfig], groups: list[Group]) -> list[Group]:
    """Return the keys of `common`, under its headings. A section is one line."""
    rows = {path: row for group in groups for path, row in group.rows.items()}
    rows |= {group.path: (flag(group.path), group.heading.partition(": ")[2]) for group in groups if group.path}
    chosen = []
    for heading, keys in cls.common.items():
        paths = [tuple(key.split(".")) for key in keys.split()]
        chosen.append(Group((), f"{heading}:", {path: rows[path] for path in paths}))
    return chosen


def _groups(cls: type[BaseModel], path: Path = (), heading: str = "", default: Any = None) -> Iterator[Group]:
    """Yield the keys of a section, then the sections below it."""
    rows, below = {}, []
    for name, field in cls.model_fields.items():
        key = (*path, _shown_name(name, field))
        inner, optional = unwrap(field.annotation)
        value = getattr(default, name) if default is not None else field.default
        text = " ".join((field.description or "").split())
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            bare = f" [bare {flag(key)}: on with defaults]" if optional and value is None else ""
            if named := getattr(inner, "bare", None):
                bare += f" [{flag(key)} {named.upper()}: that {dotted((*key, named))}]"
            below.append(_groups(inner, key, f"{dotted(key)}: {text}{bare}", value))
        else:
            shorts = [f"-{alias}, " for alias in names_of(name, field) if len(alias) == 1]
            word = flag(key).replace("--", "--[no-]") if inner is bool else f"{flag(key)} {_type(inner)}"
            rows[key] = ("".join(shorts) + word, f"{text} [{_default(value)}]")
    shared = getattr(cls, "shared", ())
    yield Group(
        path, f"{heading} Takes these keys of the top as well: {', '.join(shared)}." if shared else heading, rows
    )
    for groups in below:
        yield from groups


def _shown_name(name: str, field: FieldInfo) -> str:
    """Return how users write a field whose name Python or pydantic has taken: `json` for `as_json`."""
    return next((other for other in names_of(name, field) if name in (f"as_{other}", f"{other}_")), name)


def _row(left: str, text: str, width: int) -> list[str]:
    wrapped = textwrap.wrap(text, max(width - INDENT - 4, 30), break_on_hyphens=False)
    head = f"  {left}".ljust(INDENT + 4)
    if len(left) > INDENT:
        return [f"  {left}", *(" " * (INDENT + 4) + line for line in wrapped)]
    return [head + wrapped[0], *(" " * (INDENT + 4) + line for line in wrapped[1:])]


def _type(annotation: Any) -> str:
    """Return how a value is written: INT, {a,b}, JSON."""
    origin = get_origin(annotation)
    if origin is Literal:
        return "{" + ",".join(map(str, get_args(annotation))) + "}"
    if annotation is dict or origin is dict:
        return "JSON"
    if origin in (tuple, list):
        return " ".join(_type(arg) for arg in get_args(annotation) if arg is not Ellipsis)
    return annotation.__name__.upper()


def _default(value: Any) -> str:
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, (tuple, list)):
        return " ".join(map(str, value))
    return "none" if value is None else str(value) or "empty"
