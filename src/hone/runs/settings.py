"""config.toml: the resolved config of a run, and how another one differs from it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from hone.config.dump import to_toml
from hone.config.shared import RunConfig
from hone.errors import UserError

_FREE = {"output_dir", "display", "wandb", "ckpt", "resume"}
"""Settings that don't change what a run computes."""


def run_toml(config: RunConfig) -> str:
    """The whole config but `resume`: that says how a process started, not what the run is."""
    return to_toml(config.model_copy(update={"resume": None}))


def read_toml(path: Path) -> dict[str, Any]:
    """A config.toml as a nested dict. UserError if it isn't TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}): mend it, or choose another --output-dir") from None


def changed(before: Path, config: RunConfig) -> list[str]:
    """Dotted names of the settings that matter and in which `config` differs from the file `before`."""
    if not before.exists():
        return []
    old, new = _flat(read_toml(before)), _flat(tomllib.loads(run_toml(config)))
    names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    return [name for name in names if name.split(".")[0] not in _FREE]


def _flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat = {}
    for key, value in table.items():
        flat.update(_flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return flat
