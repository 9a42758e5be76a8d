"""In what a config differs from the defaults of its class."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticUndefined

from hone.config.dump import plain
from hone.config.schema import unwrap
from hone.errors import UserError


def non_defaults(cls: type[BaseModel], table: dict[str, Any]) -> dict[str, Any]:
    """The leaves of `table` (a config as `to_toml` wrote it) that aren't the defaults of `cls`, by dotted name.

    An optional section is measured against its own defaults; one that has nothing but those is given as "on". Keys that
    `cls` doesn't know are kept.
    """
    return dict(_differing(cls, table, None, ""))


def _differing(cls: type[BaseModel], table: dict[str, Any], default: BaseModel | None, prefix: str) -> list[tuple]:
    found = []
    for name, value in table.items():
        field = cls.model_fields.get(name)
        if field is None:
            found.append((prefix + name, value))
            continue
        usual = getattr(default, name) if default is not None else field.default
        section = unwrap(field.annotation)[0]
        if isinstance(value, dict) and isinstance(section, type) and issubclass(section, BaseModel):
            below = _differing(section, value, usual if isinstance(usual, BaseModel) else None, f"{prefix}{name}.")
            found += below or ([(prefix + name, "on")] if usual is None else [])
        elif usual is PydanticUndefined or value != plain(usual):
            found.append((prefix + name, value))
    return found


def mistyped(cls: type[BaseModel], table: dict[str, Any]) -> list[str]:
    """Remove from `table`, a config as `to_toml` wrote it, what is of another type than the field of `cls` has; returns
    the dotted names. Values of the right type that `cls` would refuse stay, and so do keys that it doesn't know.
    """
    found = []
    try:
        cls.model_validate_json(json.dumps(table, default=str), strict=True)
    except ValidationError as error:
        for one in error.errors(include_url=False, include_context=False, include_input=False):
            if one["type"] != "tuple_type" and one["type"].endswith(("_type", "_parsing", "literal_error")):
                found.append(_remove(table, one["loc"]))
    except UserError:
        pass  # of a value, not of its type
    return list(dict.fromkeys(filter(None, found)))


def _remove(table: Any, place: tuple[int | str, ...]) -> str:
    """Remove the value at a place, whose parts that are no keys name branches of a union; returns its dotted name."""
    names: list[str] = []
    holder: Any = None
    for part in place:
        if isinstance(table, dict) and part in table:
            holder, table = table, table[part]
            names.append(str(part))
    if holder is not None:
        holder.pop(names[-1], None)
    return ".".join(names)
