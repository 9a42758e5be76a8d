"""In what a config differs from the defaults of its class."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from hone.config.dump import plain
from hone.config.schema import unwrap


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
