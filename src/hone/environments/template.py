"""A template makes a task's columns from a data set's, by configuration and without a script.

    {question = "{problem} Answer with a number.", answer = "{gold}", info = {level = "{meta.level}"}}

Each key is a column of the new row, and the new row has no others. Text may hold placeholders: `{gold}` is the column
`gold`; `{meta.level}` is the value of `level` in the column `meta`, `{choices.0}` the first of a list (unless a
column has that name); `{{` and `}}` are braces. Lists and tables are made item by item, so `prompt` may be a list
of messages. Text that is one placeholder and nothing else keeps the type of what it stands for: a number, a list, a
list of messages; but a `prompt`, `question` or `completion` that is a number is written out, for these are text or
messages. Anywhere else, and in a message's text, the value is written out as well: `true`, `false`, lists and tables
as JSON.

A list of turns becomes messages by `each`, where the placeholders of `role` and `content` name parts of a turn:

    {each = "{conversations}", role = "{from}", content = "{value}", roles = {human = "user", gpt = "assistant"}}

In a list of messages, such a table stands for all its messages.
"""

from __future__ import annotations

import difflib
import functools
import json
import numbers
from collections.abc import Mapping
from string import Formatter
from typing import Any

from hone.environments.data import Row, Rows, brief
from hone.errors import UserError

MESSAGE = {"role", "content"}
"""Keys of a message, whose values are always text."""
_EACH = {"each", "roles", "name", *MESSAGE}
"""Keys of a table that makes messages of turns."""
_TEXTS = {"prompt", "question", "completion"}
"""Columns that are text or messages."""
_AS_JSON = (bool, list, tuple, dict)


class Template:
    """Makes rows from rows. `columns` comes from the config, under the key `name`: "data.template".

    Raises UserError for a bad placeholder: Python's conversions and formats (`{a!r}`, `{a:>5}`), brackets.
    """

    def __init__(self, columns: Mapping[str, Any], name: str = "template") -> None:
        if not columns:
            raise UserError(f"{name} is empty: give the columns that it should make, such as question and answer")
        self._columns = {str(column): (value, f"{name}.{column}") for column, value in columns.items()}
        for value, path in self._columns.values():
            _check(value, path)

    def row(self, row: Row, where: str) -> Row:
        """Return the new row. UserError, naming the row by `where`, if it lacks a column that the template wants."""
        made = {column: _fill(value, name, row, where) for column, (value, name) in self._columns.items()}
        for column in _TEXTS & made.keys():
            if isinstance(made[column], numbers.Number) and not isinstance(made[column], bool):
                made[column] = str(made[column])
        return made

    def rows(self, rows: Rows) -> Rows:
        """Return the same for all rows, each when it is asked for."""
        return rows.map(self.row)


def _check(value: Any, name: str) -> None:
    """Raise UserError if no row can be made of a template's value."""
    if isinstance(value, str):
        _fields(value, name)
    elif isinstance(value, Mapping):
        if _is_each(value):
            _check_each(value, name)
        for key, item in value.items():
            if key != "roles" or not _is_each(value):
                _check(item, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            _check(item, f"{name}[{i}]")


def _check_each(value: Mapping[str, Any], name: str) -> None:
    if lacking := MESSAGE - value.keys():
        raise UserError(f'{name} has each, but no {min(lacking)}: say what is in a turn, such as "{{value}}"')
    if unknown := value.keys() - _EACH:
        raise UserError(f"{name} has {min(unknown)!r}; beside each there may be role, content, roles and name")
    source, roles = value["each"], value.get("roles", {})
    fields = _fields(source, f"{name}.each") if isinstance(source, str) else []
    if len(fields) != 1 or fields[0][0] or fields[0][1] is None:
        raise UserError(f'{name}.each is {source!r}: give the column that holds the turns, such as "{{conversations}}"')
    if not isinstance(roles, Mapping) or not all(isinstance(role, str) for role in roles.values()):
        raise UserError(f'{name}.roles is {roles!r}: give a table such as {{human = "user", gpt = "assistant"}}')


def _is_each(value: Any) -> bool:
    return isinstance(value, Mapping) and "each" in value and bool(value.keys() & (MESSAGE | {"roles"}))


def _fill(value: Any, name: str, row: Row, where: str, as_text: bool = False) -> Any:
    """Return `value` with its placeholders filled in; of one placeholder alone its value, unless `as_text`."""
    if isinstance(value, str):
        fields = _fields(value, name)
        if not as_text and len(fields) == 1 and fields[0][0] == "" and fields[0][1] is not None:
            return _look_up(fields[0][1], name, row, where)
        return "".join(text + ("" if field is None else _written(field, name, row, where)) for text, field in fields)
    if _is_each(value):
        return _messages(value, name, row, where)
    if isinstance(value, Mapping):
        texts = MESSAGE if value.keys() >= MESSAGE else set()
        return {key: _fill(item, f"{name}.{key}", row, where, key in texts) for key, item in value.items()}
    if isinstance(value, list | tuple):
        made: list[Any] = []
        for i, item in enumerate(value):
            part = _fill(item, f"{name}[{i}]", row, where, as_text)
            made += part if _is_each(item) else [part]
        return made
    return value


def _messages(value: Mapping[str, Any], name: str, row: Row, where: str) -> list[Any]:
    """Return a message for each turn of a list; `roles` maps the turns' words for roles."""
    turns = _fill(value["each"], f"{name}.each", row, where)
    if not isinstance(turns, list | tuple) or not all(isinstance(turn, Mapping) for turn in turns):
        raise UserError(f"{where}: {value['each']} of {name}.each is {brief(turns)}, not a list of turns")
    message = {key: item for key, item in value.items() if key not in ("each", "roles")}
    made = [_fill(message, name, dict(turn), f"{where}, turn {i}") for i, turn in enumerate(turns)]
    roles = value.get("roles", {})
    return [one | {"role": roles.get(one["role"], one["role"])} for one in made]


@functools.lru_cache(maxsize=1024)
def _fields(text: str, name: str) -> list[tuple[str, str | None]]:
    """Return (text before it, what is in it) of each placeholder, and what follows the last one."""
    try:
        parsed = list(Formatter().parse(text))
    except ValueError:
        raise UserError(f"{name}: a single brace in {text!r}; write {{{{ and }}}} for braces") from None
    for _, field, form, conversion in parsed:
        if field is not None and (form or conversion or not field.strip() or set(field) & set("[]{}")):
            written = "{" + field + (f"!{conversion}" if conversion else "") + (f":{form}" if form else "") + "}"
            raise UserError(
                f"{name}: {written} is not a placeholder: write {{column}} or {{column.key}}, {{{{ and }}}} for braces"
            )
    return [(literal, field) for literal, field, *_ in parsed]


def _look_up(field: str, name: str, row: Row, where: str) -> Any:
    """Return what `field` stands for in a row, by keys and positions only: no attribute is reached."""
    if field in row:
        return row[field]
    value: Any = row
    keys = field.split(".")
    for depth, key in enumerate(keys):
        if isinstance(value, Mapping) and key in value:
            value = value[key]
        elif isinstance(value, list | tuple) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        else:
            raise _missing(value, keys, depth, name, where)
    return value


def _missing(value: Any, keys: list[str], depth: int, name: str, where: str) -> UserError:
    """Return the error for key number `depth` of a placeholder, which `value` does not have."""
    wanted, before = ".".join(keys), ".".join(keys[:depth])
    if not isinstance(value, Mapping):
        found = f"a list of {len(value)}" if isinstance(value, list | tuple) else f"{brief(value)} and has no keys"
        return UserError(f"{where}: {name} wants {{{wanted}}}, but {before!r} is {found}")
    there = [str(key) for key in value]
    near = difflib.get_close_matches(keys[depth], there, n=1, cutoff=0.5)
    hint = f" (did you mean {{{'.'.join([*keys[:depth], *near, *keys[depth + 1 :]])}}}?)" if near else ""
    lacks, kind = (f"no column {keys[0]!r}", "columns") if depth == 0 else (f"no {keys[depth]!r} in {before!r}", "keys")
    listed = ", ".join(map(repr, there)) or "none"
    return UserError(f"{where}: {lacks}, which {name} wants{hint}; the {kind} there are {listed}")


def _written(field: str, name: str, row: Row, where: str) -> str:
    """Return the value of `field` as text. Raises UserError if it is null: no prompt should say "None"."""
    value = _look_up(field, name, row, where)
    if value is None:
        raise UserError(f"{where}: {field!r}, which {name} writes into a text, is null; fill it in or drop the row")
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, _AS_JSON) else str(value)
