"""Resolved config as TOML that `@ file` reads back to an equal config."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel


def to_toml(config: BaseModel) -> str:
    """`config` with every field and default written out, as TOML text.

    A field that is None is left out where None is its default, and is `"None"` elsewhere, for TOML has no null.
    """
    return tomli_w.dumps(_table(config))


def _table(config: BaseModel) -> dict[str, Any]:
    table = {}
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        if value is not None or field.default is not None:
            table[name] = plain(value)
    return table


def plain(value: Any) -> Any:
    """`value` in the types that TOML knows."""
    if isinstance(value, BaseModel):
        return _table(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, Path):
        return str(value)
    return "None" if value is None else value
