"""`--help`: every key of a config with its docstring, type and default."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from hone.config.base import BaseConfig
from hone.config.schema import Path, dotted, flag, names_of, shown_name, unwrap, walk

INDENT = 30


def render(cls: type[BaseConfig], prog: str) -> str:
    """The help page of one command, wrapped to the terminal."""
    width = min(shutil.get_terminal_size().columns, 120)
    word = "".join(f" {name.upper()}" for name in cls.words())
    sections = any(key.section for key in walk(cls))
    by_section, rule = (
        (" [--SECTION @ FILE.toml ...]", " a section's files over files at the top,") if sections else ("", "")
    )
    lines = [f"usage: {prog}{word} [@ FILE.toml ...]{by_section} [--KEY VALUE ...]", ""]
    lines += [*textwrap.wrap((cls.__doc__ or "").partition("\n\n")[0], width), ""]
    lines += [
        f"Flags win over files,{rule} and later files over earlier ones.",
        "In a file the same keys are written without the dashes: --a.b-c 1 is `b_c = 1` under `[a]`.",
        "",
        "  -h, --help",
    ]
    for heading, rows in _groups(cls):
        wrapped = textwrap.wrap(heading, width, subsequent_indent="    ", break_on_hyphens=False)
        lines += ["", *wrapped] if heading else []
        for left, text in rows:
            lines += _row(left, text, width)
    return "\n".join(lines)


def _groups(cls: type[BaseModel], prefix: Path = (), heading: str = "", default: Any = None) -> Iterator[tuple]:
    """(heading, [(flag and type, text)]) of a section, then of the sections below it."""
    rows, below = [], []
    for name, field in cls.model_fields.items():
        path = (*prefix, shown_name(name, field))
        inner, optional = unwrap(field.annotation)
        value = getattr(default, name) if default is not None else field.default
        text = " ".join((field.description or "").split())
        if name in getattr(cls, "shared", ()):
            rows.append((flag(path) + (".*" if isinstance(inner, type) and issubclass(inner, BaseModel) else ""), text))
        elif isinstance(inner, type) and issubclass(inner, BaseModel):
            bare = f" [bare {flag(path)}: on with defaults]" if optional and value is None else ""
            if named := getattr(inner, "bare", None):
                bare += f" [{flag(path)} {named.upper()}: that {dotted((*path, named))}]"
            below.append(_groups(inner, path, f"{dotted(path)}: {text}{bare}", value))
        else:
            shorts = [f"-{alias}, " for alias in names_of(name, field) if len(alias) == 1]
            word = flag(path).replace("--", "--[no-]") if inner is bool else f"{flag(path)} {_type(inner)}"
            rows.append(("".join(shorts) + word, f"{text} [{_default(value)}]"))
    yield heading, rows
    for groups in below:
        yield from groups


def _row(left: str, text: str, width: int) -> list[str]:
    wrapped = textwrap.wrap(text, max(width - INDENT - 4, 30), break_on_hyphens=False)
    head = f"  {left}".ljust(INDENT + 4)
    if len(left) > INDENT:
        return [f"  {left}", *(" " * (INDENT + 4) + line for line in wrapped)]
    return [head + wrapped[0], *(" " * (INDENT + 4) + line for line in wrapped[1:])]


def _type(annotation: Any) -> str:
    """How a value is written: INT, {a,b}, JSON."""
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
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, (tuple, list)):
        return " ".join(map(str, value))
    return str(value) or "empty"
