"""`--help`: the keys of a config with their docstrings, types and defaults; common keys first."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from hone.config.base import (
    PLAIN,
    BaseConfig,
    Key,
    Meta,
    Path,
    dotted,
    flag,
    is_dict,
    lookup,
    names_of,
    nearest,
    shared_keys,
)
from hone.errors import UserError

INDENT = 34


class Row(NamedTuple):
    path: Path
    left: str
    text: str
    is_section: bool = False
    meta: Meta = PLAIN
    order: tuple[tuple[bool, int], ...] = ()
    """Sort key: the places of the row's sections, then the row's place. A section comes after the keys of its level."""


def render(cls: type[BaseConfig], prog: str, topic: str = "") -> str:
    """Return the help page of a command, wrapped to the terminal's width.

    `topic` is a section, a key, `all`, or "": all keys, but only the common keys if the config has headings.
    """
    width = min(shutil.get_terminal_size().columns, 120)
    nested = list(_rows(cls, Row((), "", "")))
    rows = sorted(nested, key=lambda row: row.order)
    sections = [dotted(row.path) for row in rows if row.is_section and len(row.path) == 1]
    if topic not in ("", "all") and not topic.startswith(("-", "@")):
        key = lookup(cls, path := tuple(topic.split(".")))
        if key is None:
            close = nearest(cls, path)
            hint = f"did you mean {dotted(close)}?" if close else "--help all lists all keys"
            raise UserError(f"--help {topic}: no such section or key; {hint}")
        rows = [row for row in rows if row.path[: len(key.path)] == key.path]
        rows += [Row(key.path, value, text) for value, text in cls.choices.get(dotted(key.path), {}).items()]
    elif topic != "all" and cls.headings:
        rows = []
        for heading, kinds in cls.kinds().items():
            below = [row for row in nested if kinds.intersection((row.meta.common or "").split())]
            below.sort(key=lambda row: row.meta.place)
            rows += [Row((), heading, "", True), *(row._replace(is_section=False) for row in below)]

    words = ((name.upper(), cls.model_fields[name].is_required()) for name in cls.positional.split())
    lines = [
        f"usage: {prog}{''.join(f' {word}' if needed else f' [{word}]' for word, needed in words)} [@ FILE.toml ...]"
        f"{' [--SECTION @ FILE.toml ...]' * bool(sections)} [--KEY VALUE ...]",
        "",
        *textwrap.wrap(" ".join((cls.__doc__ or "").partition("\n\n")[0].split()), width),
        "",
        f"Flags win over files,{' section files over others,' * bool(sections)} and later files over earlier ones.",
        "In a file the same keys are written without the dashes: --a.b-c 1 is `b_c = 1` under `[a]`.",
        "",
        "  -h, --help",
    ]
    margin = " " * INDENT
    for row in rows:
        if row.is_section:
            heading = f"{dotted(row.path) or row.left}: {row.text}".rstrip()
            lines += ["", *textwrap.wrap(heading, width, subsequent_indent="    ", break_on_hyphens=False)]
            continue
        text = textwrap.wrap(row.text, max(width - INDENT, 30), break_on_hyphens=False)
        head = f"  {row.left}  "
        lines += [head.ljust(INDENT) + text.pop(0)] if len(head) <= INDENT else [head.rstrip()]
        lines += [margin + line for line in text]
    if cls.headings and topic != "all":
        more = f"All keys: `{prog} --help all`."
        if sections:
            more += f" Of one section: `{prog} --help SECTION` ({', '.join(sections)})."
        lines += ["", *textwrap.wrap(more, width, break_on_hyphens=False)]
    return "\n".join(lines)


def _rows(cls: type[BaseModel], above: Row, default: Any = None, off: str = "") -> Iterator[Row]:
    """Yield a row for each key below `above`. `off`: " with SECTION" for keys of a section that is off by default."""
    for number, (name, field) in enumerate(cls.model_fields.items()):
        # Users write `json` for the field `as_json`: pydantic already uses the name `json`.
        names = names_of(name, field)
        written = next((other for other in names if name in (f"as_{other}", f"{other}_")), name)
        key = Key.of((*above.path, written), field, above.meta)
        order = (*above.order, (key.section is not None, number))
        value = getattr(default, name) if default is not None else field.default
        text = " ".join((field.description or "").split())
        if key.section:
            within = f" with {dotted(key.path)}" if key.optional and value is None else off
            if within != off and not any(one.is_required() for one in key.section.model_fields.values()):
                text += f" [bare {flag(key.path)}: on with defaults]"
            text += f" [{flag(key.path)} {key.bare.upper()} sets {dotted((*key.path, key.bare))}]" if key.bare else ""
            if getattr(key.section, "is_role", False):
                text += f" Also takes these top-level keys: {', '.join(shared_keys(cls))}."
            yield (row := Row(key.path, flag(key.path), text, True, key.meta, order))
            yield from _rows(key.section, row, value, within)
        else:
            shorts = "".join(f"-{alias}, " for alias in names if len(alias) == 1)
            word = f"{flag(key.path)} {_type(key.type)}" if key.type is not bool else f"--[no-]{flag(key.path)[2:]}"
            text += "" if value is None or "default" in text.lower() else f" [{_default(value)}{off}]"
            yield Row(key.path, shorts + word, text, False, key.meta, order)


def _type(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return "{" + ",".join(map(str, get_args(annotation))) + "}"
    if get_origin(annotation) in (tuple, list):
        return " ".join(_type(arg) for arg in get_args(annotation))
    return "JSON" if is_dict(annotation) or issubclass(annotation, BaseModel) else annotation.__name__.upper()


def _default(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, (tuple, list)):
        value = " ".join(map(str, value))
    return "required" if value is PydanticUndefined else str(value) or "empty"
