"""`--help`: the keys of a config with their docstrings, types and defaults; first those that most people set."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from hone.config.base import BaseConfig, Key, Path, dotted, flag, is_dict, lookup, names_of, nearest, unwrap
from hone.errors import UserError

INDENT = 34


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
        rows = {path: row for group in groups for path, row in group.rows.items()}
        rows |= {group.path: (flag(group.path), group.heading.partition(": ")[2]) for group in groups}
        paths = {heading: [tuple(key.split(".")) for key in keys.split()] for heading, keys in cls.common.items()}
        groups = [Group((), f"{heading}:", {path: rows[path] for path in paths[heading]}) for heading in paths]
    lines = [
        f"usage: {prog}{''.join(f' {name.upper()}' for name in cls.positional.split())} [@ FILE.toml ...]"
        f"{' [--SECTION @ FILE.toml ...]' * bool(sections)} [--KEY VALUE ...]",
        "",
        *textwrap.wrap((cls.__doc__ or "").partition("\n\n")[0], width),
        "",
        f"Flags win over files,{' a section over the top,' * bool(sections)} and later files over earlier ones.",
        "In a file the same keys are written without the dashes: --a.b-c 1 is `b_c = 1` under `[a]`.",
        "",
        "  -h, --help",
    ]
    for _, heading, rows in groups:
        wrapped = textwrap.wrap(heading, width, subsequent_indent="    ", break_on_hyphens=False)
        lines += ["", *wrapped] if heading else []
        for left, text in rows.values():
            head, margin = f"  {left}  ".ljust(INDENT), " " * INDENT
            first, *rest = textwrap.wrap(text, max(width - INDENT, 30), break_on_hyphens=False)
            lines += [head + first] if len(head) == INDENT else [f"  {left}", margin + first]
            lines += [margin + line for line in rest]
    if cls.common and topic != "all":
        more = f"All keys: `{prog} --help all`. Of one section: `{prog} --help SECTION` ({', '.join(sections)})."
        lines += ["", *textwrap.wrap(more, width, break_on_hyphens=False)]
    return "\n".join(lines)


def _section(cls: type[BaseConfig], groups: list[Group], topic: str) -> list[Group]:
    """Return a section and those below it. UserError if there is none of that name."""
    path = tuple(topic.split("."))
    key = lookup(cls, path)
    if key is None or key.section is None:
        close = nearest(cls, path)
        hint = f"did you mean {dotted(close)}?" if close else "--help all lists all keys"
        raise UserError(f"--help {topic}: there is no such section; {hint}")
    return [group for group in groups if group.path[: len(key.path)] == key.path]


def _groups(cls: type[BaseModel], path: Path = (), heading: str = "", default: Any = None) -> Iterator[Group]:
    """Yield the keys of a section, then the sections below it."""
    rows, below = {}, []
    for name, field in cls.model_fields.items():
        key = Key((*path, _shown_name(name, field)), *unwrap(field.annotation))
        value = getattr(default, name) if default is not None else field.default
        text = " ".join((field.description or "").split())
        if key.section:
            text += f" [bare {flag(key.path)}: on with defaults]" if key.optional and value is None else ""
            text += f" [{flag(key.path)} {key.bare.upper()}: that {dotted((*key.path, key.bare))}]" if key.bare else ""
            below.append(_groups(key.section, key.path, f"{dotted(key.path)}: {text}", value))
        else:
            shorts = "".join(f"-{alias}, " for alias in names_of(name, field) if len(alias) == 1)
            word = f"{flag(key.path)} {_type(key.type)}" if key.type is not bool else f"--[no-]{flag(key.path)[2:]}"
            rows[key.path] = (shorts + word, f"{text} [{_default(value)}]")
    if shared := getattr(cls, "shared", ()):
        heading += f" Takes these keys of the top as well: {', '.join(shared)}."
    yield Group(path, heading, rows)
    for groups in below:
        yield from groups


def _shown_name(name: str, field: FieldInfo) -> str:
    """Return how users write a field whose name Python or pydantic has taken: `json` for `as_json`."""
    return next((other for other in names_of(name, field) if name in (f"as_{other}", f"{other}_")), name)


def _type(annotation: Any) -> str:
    """Return how a value is written: INT, {a,b}, JSON."""
    if get_origin(annotation) is Literal:
        return "{" + ",".join(map(str, get_args(annotation))) + "}"
    if is_dict(annotation):
        return "JSON"
    if get_origin(annotation) in (tuple, list):
        return " ".join(_type(arg) for arg in get_args(annotation))
    return annotation.__name__.upper()


def _default(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, (tuple, list)):
        return " ".join(map(str, value))
    named = "required" if value is PydanticUndefined else "none" if value is None else str(value)
    return named or "empty"
