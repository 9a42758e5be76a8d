"""config.toml: the resolved config, as a file that gives the same config back (`hone rl @ outputs/config.toml`)."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from hone.errors import UserError

_FREE = {"output_dir", "display", "wandb", "ckpt", "resume"}
"""Settings that don't change what a run computes."""


def to_toml(config: BaseModel) -> str:
    """The whole config but `resume`, which says how a process started, not what the run is."""
    import tomli_w

    return tomli_w.dumps(_table(config, ""))


def _table(config: BaseModel, prefix: str) -> dict[str, Any]:
    table = {}
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        if value is None and field.default is not None:
            table[name] = "None"  # how pydantic-config spells it, for TOML has no null
        elif value is not None and not (name == "resume" and not prefix):
            table[name] = _value(value, f"{prefix}{name}")
    return table


def _value(value: Any, where: str) -> Any:
    if value is None:
        raise UserError(f"{where} is null, which a TOML file cannot hold: leave it out")
    if isinstance(value, BaseModel):
        return _table(value, f"{where}.")
    if isinstance(value, dict):
        return {str(key): _value(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_value(item, where) for item in value]
    return str(value) if isinstance(value, Path) else value


def changed(before: Path, config: BaseModel) -> list[str]:
    """Dotted names of the settings that matter and in which `config` differs from the file `before`."""
    old, new = _flat(tomllib.loads(before.read_text())), _flat(tomllib.loads(to_toml(config)))
    names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    return [name for name in names if name.split(".")[0] not in _FREE]


def _flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat = {}
    for key, value in table.items():
        flat.update(_flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return flat
