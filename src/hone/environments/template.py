"""A template makes a task's columns of those that a data set has, by configuration and without a script.

    {question = "{problem} Answer with a number.", answer = "{gold}", info = {level = "{meta.level}"}}

Each key is a column of the new row, and the new row has no others. Text may hold placeholders: `{gold}` is the column
`gold`; `{meta.level}` is what stands under `level` in the column `meta`, `{choices.0}` the first of a list (unless a
column has just that name); `{{` and `}}` are braces. Lists and tables are made item by item, so `prompt` may be a list
of messages. Text that is one placeholder and nothing else keeps the type of what it stands for: a number, a list, a
list of messages; but a `prompt`, `question` or `completion` that is a number is written out, for these are text or
messages. Anywhere else, and in what a message says, the value is written out as well: `true`, `false`, lists and tables
as JSON.

A list of turns becomes messages by `each`, where the placeholders of `role` and `content` name what stands in a turn:

    {each = "{conversations}", role = "{from}", content = "{value}", roles = {human = "user", gpt = "assistant"}}

In a list of messages, such a table stands for all its messages.
"""

from __future__ import annotations

import difflib
import json
import numbers
from collections.abc import Callable, Mapping
from string import Formatter
from typing import Any

from hone.environments.data import Row, Rows, shown
from hone.errors import UserError

MESSAGE = {"role", "content"}
"""Keys of a message, whose values are always text."""
_EACH = {"each", "roles", "name", *MESSAGE}
"""Keys of a table that makes messages of turns."""
_SAID = {"prompt", "question", "completion"}
"""Columns that are text or messages."""
_AS_JSON = (bool, list, tuple, dict)
Make = Callable[[Row, str], Any]
"""Makes a value of a row; the second argument names the row in errors."""


class Template:
    """Makes rows of rows. `columns` is what the config says, `name` where it says so: "data.template".

    Raises UserError for a placeholder that is none: Python's conversions and formats (`{a!r}`, `{a:>5}`), brackets.
    """

    def __init__(self, columns: Mapping[str, Any], name: str = "template") -> None:
        if not columns:
            raise UserError(f"{name} is empty: give the columns that it should make, such as question and answer")
        self._columns = {str(column): _compiled(value, f"{name}.{column}", False) for column, value in columns.items()}

    def row(self, row: Row, where: str) -> Row:
        """Return the new row. UserError, naming the row by `where`, if it lacks a column that the template wants."""
        made = {column: make(row, where) for column, make in self._columns.items()}
        return made | {column: str(made[column]) for column in _SAID & made.keys() if _is_number(made[column])}

    def rows(self, rows: Rows) -> Rows:
        """Return the same for all rows, each when it is asked for."""
        return rows.map(self.row)


def _compiled(value: Any, name: str, as_text: bool) -> Make:
    """Return the function that makes `value` of a row, with its placeholders filled in."""
    if isinstance(value, str):
        return _text(value, name, as_text)
    if _is_each(value):
        return _turns(value, name)
    if isinstance(value, Mapping):
        message = value.keys() >= MESSAGE
        items = {key: _compiled(item, f"{name}.{key}", message and key in MESSAGE) for key, item in value.items()}
        return lambda row, where: {key: make(row, where) for key, make in items.items()}
    if isinstance(value, list | tuple):
        parts = [_compiled(item, f"{name}[{i}]", as_text) for i, item in enumerate(value)]
        spliced = [_is_each(item) for item in value]

        def listed(row: Row, where: str) -> list[Any]:
            made = [make(row, where) for make in parts]
            return [one for item, many in zip(made, spliced, strict=True) for one in (item if many else [item])]

        return listed
    return lambda row, where: value


def _is_each(value: Any) -> bool:
    return isinstance(value, Mapping) and "each" in value and bool(value.keys() & (MESSAGE | {"roles"}))


def _turns(value: Mapping[str, Any], name: str) -> Make:
    """Return the function that makes a message of each turn in a list; `roles` maps the turns' words for roles."""
    if lacking := MESSAGE - value.keys():
        raise UserError(f'{name} has each, but no {min(lacking)}: say what stands in a turn, such as "{{value}}"')
    if unknown := value.keys() - _EACH:
        raise UserError(f"{name} has {min(unknown)!r}; beside each there may be role, content, roles and name")
    source, roles = value["each"], value.get("roles", {})
    fields = _fields(source, f"{name}.each") if isinstance(source, str) else []
    if len(fields) != 1 or fields[0][0] or fields[0][1] is None:
        raise UserError(f'{name}.each is {source!r}: give the column that holds the turns, such as "{{conversations}}"')
    if not isinstance(roles, Mapping) or not all(isinstance(role, str) for role in roles.values()):
        raise UserError(f'{name}.roles is {roles!r}: give a table such as {{human = "user", gpt = "assistant"}}')
    find = _placeholder(fields[0][1], f"{name}.each")
    make = _compiled({key: item for key, item in value.items() if key not in ("each", "roles")}, name, False)

    def messages(row: Row, where: str) -> list[Any]:
        turns = find(row, where)
        if not isinstance(turns, list | tuple) or not all(isinstance(turn, Mapping) for turn in turns):
            raise UserError(f"{where}: {source} of {name}.each is {shown(turns)}, not a list of turns")
        made = [make(turn, f"{where}, turn {i}") for i, turn in enumerate(turns)]
        return [message | {"role": roles.get(message["role"], message["role"])} for message in made]

    return messages


def _text(text: str, name: str, as_text: bool) -> Make:
    fields = _fields(text, name)
    if not as_text and len(fields) == 1 and fields[0][0] == "" and fields[0][1] is not None:
        return _placeholder(fields[0][1], name)
    parts = [(literal, None if field is None else _written(field, name)) for literal, field in fields]

    def fill(row: Row, where: str) -> str:
        return "".join(literal + (write(row, where) if write else "") for literal, write in parts)

    return fill


def _fields(text: str, name: str) -> list[tuple[str, str | None]]:
    """(text before it, what stands in it) of each placeholder, and what follows the last one."""
    try:
        parsed = list(Formatter().parse(text))
    except ValueError:
        raise UserError(f"{name}: a single brace in {text!r}; write {{{{ and }}}} for braces") from None
    found = []
    for literal, field, form, conversion in parsed:
        if field is not None and (form or conversion or not field.strip() or set(field) & set("[]{}")):
            shown = "{" + field + (f"!{conversion}" if conversion else "") + (f":{form}" if form else "") + "}"
            raise UserError(
                f"{name}: {shown} is no placeholder; write {{column}} or {{column.key}}, and {{{{ and }}}} for braces"
            )
        found.append((literal, field))
    return found


def _placeholder(field: str, name: str) -> Make:
    """Return the function that looks up `field` in a row, by keys and positions only: no attribute is reached."""
    keys = field.split(".")

    def look_up(row: Row, where: str) -> Any:
        if field in row:
            return row[field]
        value: Any = row
        for depth, key in enumerate(keys):
            if isinstance(value, Mapping) and key in value:
                value = value[key]
            elif isinstance(value, list | tuple) and key.isdecimal() and int(key) < len(value):
                value = value[int(key)]
            else:
                raise _missing(value, keys, depth, name, where)
        return value

    return look_up


def _missing(value: Any, keys: list[str], depth: int, name: str, where: str) -> UserError:
    """Return the error for key number `depth` of a placeholder, which `value` does not have."""
    wanted, before = ".".join(keys), ".".join(keys[:depth])
    if not isinstance(value, Mapping):
        found = f"a list of {len(value)}" if isinstance(value, list | tuple) else f"{shown(value)} and has no keys"
        return UserError(f"{where}: {name} wants {{{wanted}}}, but {before!r} is {found}")
    there = [str(key) for key in value]
    near = difflib.get_close_matches(keys[depth], there, n=1, cutoff=0.5)
    hint = f" (did you mean {{{'.'.join([*keys[:depth], *near, *keys[depth + 1 :]])}}}?)" if near else ""
    lacks, kind = (f"no column {keys[0]!r}", "columns") if depth == 0 else (f"no {keys[depth]!r} in {before!r}", "keys")
    listed = ", ".join(map(repr, there)) or "none"
    return UserError(f"{where}: {lacks}, which {name} wants{hint}; the {kind} there are {listed}")


def _written(field: str, name: str) -> Callable[[Row, str], str]:
    """Return the function that writes the value of `field` as text. UserError for null: no prompt should say "None"."""
    look_up = _placeholder(field, name)

    def write(row: Row, where: str) -> str:
        value = look_up(row, where)
        if value is None:
            raise UserError(f"{where}: {field!r}, which {name} writes into a text, is null; fill it in or drop the row")
        return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, _AS_JSON) else str(value)

    return write


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Number) and not isinstance(value, bool)
