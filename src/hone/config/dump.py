"""Writes a resolved config as TOML that `@ file` reads back to an equal config, and compares such TOML tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel, ValidationError

from hone.config.base import unwrap
from hone.errors import UserError


def to_toml(config: BaseModel) -> str:
    """Return all fields of `config` as TOML. Null is left out if it is the default, else written as `"None"`."""
    return tomli_w.dumps(plain(config))


def plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        fields = {name: (getattr(value, name), field.default) for name, field in type(value).model_fields.items()}
        if getattr(value, "partial", False):
            fields = {name: fields[name] for name in fields if name in value.model_fields_set}
        return {name: plain(item) for name, (item, default) in fields.items() if (item, default) != (None, None)}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return str(value) if value is None or isinstance(value, Path) else value


def non_defaults(
    cls: type[BaseModel], table: dict[str, Any], default: BaseModel | None = None, prefix: str = ""
) -> dict[str, Any]:
    """Return the values of `table` (from `to_toml`) that differ from `default`, or from the defaults of `cls`.

    Names are dotted. A section that is off by default, and now has only default values, has the value "on". Keys that
    `cls` doesn't know are included.
    """
    found = {}
    for name, value in table.items():
        field = cls.model_fields.get(name)
        usual = getattr(default, name) if field and default is not None else field and field.default
        section = field and unwrap(field.annotation)[0]
        if field and value == plain(usual):
            continue
        if isinstance(value, dict) and isinstance(section, type) and issubclass(section, BaseModel):
            within = usual if isinstance(usual, BaseModel) else None
            below = non_defaults(section, value, within, f"{prefix}{name}.")
            found |= below or ({prefix + name: "on"} if usual is None else {})
        else:
            found[prefix + name] = value
    return found


def mistyped(cls: type[BaseModel], table: dict[str, Any]) -> list[str]:
    """Remove values of a wrong type from `table`, but no other invalid values; return the dotted names removed."""
    try:
        cls.model_validate_json(json.dumps(table, default=str), strict=True)
        return []
    except UserError:
        return []  # a wrong value, not a wrong type
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
    wrong = [
        tuple(part for part in one["loc"] if isinstance(part, str))
        for one in problems
        if one["type"] != "tuple_type" and one["type"].endswith(("_type", "_parsing", "literal_error"))
    ]
    for path in wrong:
        holder: Any = table
        for name in path[:-1]:
            holder = holder.get(name, {})
        holder.pop(path[-1], None)
    return list(dict.fromkeys(map(".".join, wrong)))
