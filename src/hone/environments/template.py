"""A template makes a task's columns from a data set's columns, by configuration, without a script.

    {question = "{problem} Answer with a number.", answer = "{gold}", info = {level = "{meta.level}"}}

Each key is a column of the new row, and the new row has no others. Text may hold placeholders: `{gold}` is the column
`gold`; `{meta.level}` is the value of `level` in the column `meta`, `{choices.0}` the first of a list (unless a column
has that name); `{{` and `}}` are braces. Lists and tables are made item by item, so `prompt` may be a list of messages.
Text that is a single placeholder keeps the value's type: a number, a list, a list of messages; but in `prompt`,
`question` and `completion` a number becomes text. In longer text, and in a message's text, every value becomes text:
`true`, `false`, lists and tables as JSON.

`each` makes messages of a list of turns. The placeholders in `role` and `content` then name parts of a turn:

    {each = "{conversations}", role = "{from}", content = "{value}", roles = {human = "user", gpt = "assistant"}}

In a list of messages, a table with `each` stands for all messages that it makes.
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
_EACH = {"each", "roles", "name", *MESSAGE}
"""Keys of a table that makes messages from turns."""
_TEXTS = {"prompt", "question", "completion"}
"""Columns that are text or messages."""


class Template:
    """Makes new rows from a data set's rows. `columns`: the value of the config key `name`, such as "data.template"."""

    def __init__(self, columns: Mapping[str, Any], name: str = "template") -> None:
        if not columns:
            raise UserError(f"{name} is empty: give the columns that it should make, such as question and answer")
        self._columns = {str(column): (value, f"{name}.{column}") for column, value in columns.items()}

    def row(self, row: Row, where: str) -> Row:
        """Return the new row. Raises UserError for a missing column or a bad placeholder; `where` names the row."""
        made = {column: _fill(value, name, row, where) for column, (value, name) in self._columns.items()}
        for column in _TEXTS & made.keys():
            if isinstance(made[column], numbers.Number) and not isinstance(made[column], bool):
                made[column] = str(made[column])
        return made

    def rows(self, rows: Rows) -> Rows:
        return rows.map(self.row)


def _fill(value: Any, name: str, row: Row, where: str, as_text: bool = False) -> Any:
    """Return `value` with its placeholders filled in; a single placeholder keeps the type, unless `as_text` is true."""
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


def _is_each(value: Any) -> bool:
    return isinstance(value, Mapping) and "each" in value


def _messages(value: Mapping[str, Any], name: str, row: Row, where: str) -> list[Any]:
    if lacking := MESSAGE - value.keys():
        raise UserError(f'{name} has each, but no {min(lacking)}: name a part of a turn, such as "{{value}}"')
    if unknown := value.keys() - _EACH:
        raise UserError(f"{name} has {min(unknown)!r}; beside each, only role, content, roles and name are allowed")
    turns, roles = _fill(value["each"], f"{name}.each", row, where), value.get("roles", {})
    if not isinstance(turns, list | tuple) or not all(isinstance(turn, Mapping) for turn in turns):
        raise UserError(f"{where}: {value['each']} of {name}.each is {brief(turns)}, not a list of turns")
    if not isinstance(roles, Mapping) or not all(isinstance(role, str) for role in roles.values()):
        raise UserError(f'{name}.roles is {roles!r}: give a table such as {{human = "user", gpt = "assistant"}}')
    message = {key: item for key, item in value.items() if key not in ("each", "roles")}
    made = [_fill(message, name, dict(turn), f"{where}, turn {i}") for i, turn in enumerate(turns)]
    return [one | {"role": roles.get(one["role"], one["role"])} for one in made]


@functools.lru_cache(maxsize=1024)
def _fields(text: str, name: str) -> list[tuple[str, str | None]]:
    """Return (text before, content) of each placeholder, then (text after the last one, None)."""
    try:
        parsed = list(Formatter().parse(text))
        for _, field, form, conversion in parsed:
            if field is not None and (form or conversion or not field.strip() or set(field) & set("[]{}")):
                raise ValueError
    except ValueError:
        raise UserError(
            f"{name}: not all braces in {text!r} are placeholders: write {{column}} or {{column.key}}, and {{{{ and "
            "}} for braces"
        ) from None
    return [(literal, field) for literal, field, *_ in parsed]


def _look_up(field: str, name: str, row: Row, where: str) -> Any:
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
            there = list(map(str, value)) if isinstance(value, Mapping) else []
            near = difflib.get_close_matches(key, there, n=1, cutoff=0.5)
            hint = f" (did you mean {{{'.'.join([*keys[:depth], *near, *keys[depth + 1 :]])}}}?)" if near else ""
            lacks = f"no {key!r} in {'.'.join(keys[:depth])!r}" if depth else f"no column {key!r}"
            has = f"there is {', '.join(map(repr, there))}" if there else f"that is {brief(value)}"
            raise UserError(f"{where}: {lacks}, which {name} wants{hint}; {has}")
    return value


def _written(field: str, name: str, row: Row, where: str) -> str:
    """Return the value of `field` as text. Raises UserError if it is null: no prompt should say "None"."""
    value = _look_up(field, name, row, where)
    if value is None:
        raise UserError(f"{where}: {field!r}, which {name} writes into a text, is null; fill it in or drop the row")
    as_json = isinstance(value, bool | list | tuple | dict)
    return json.dumps(value, ensure_ascii=False, default=str) if as_json else str(value)
