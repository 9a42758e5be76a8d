"""config.toml: the resolved config of a run, and its differences from another config."""

from __future__ import annotations

import hashlib
import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from hone.config.base import ADDED, PLAIN, BaseConfig, Meta, changed, lookup, meta_of
from hone.config.dump import mistyped, to_toml
from hone.config.parse import CONFIG_OF
from hone.config.retired import retired
from hone.config.shared import RunConfig
from hone.runs.files import RESTORE
from hone.runs.view import CONFIG, GIVEN, read_toml

_SOURCES = {"environment": "task file", "model": "initial model"}
"""Readable names for some of run.json's `sources`."""


@dataclass(frozen=True)
class Change:
    """A setting of a run that changed (None: unset), or a source with a changed digest.

    `harmless` is true if the numbers don't depend on it.
    """

    name: str
    before: Any
    now: Any
    harmless: bool = False
    kind: Literal["settings", "sources", "records"] = "settings"

    def __str__(self) -> str:
        if self.kind != "settings":
            return f"{_SOURCES.get(self.name, self.name)} ({self.before[:8]}, now {self.now[:8]})"
        return "{} ({}, now {})".format(self.name, *self.values)

    @property
    def values(self) -> list[str]:
        words = {None: "unset", True: "true", False: "false"}
        return [words[value] if isinstance(value, bool | None) else str(value) for value in (self.before, self.now)]


def run_toml(config: RunConfig, kind: str) -> str:
    """Return the whole config, without keys that say how a process starts. The first line names the command."""
    fields = type(config).model_fields.items()
    usual = {name: field.default for name, field in fields if meta_of(field).decides == "start"}
    return f"{CONFIG_OF}{kind}\n" + to_toml(changed(config, usual))


def read_config(folder: Path, kind: str) -> tuple[dict[str, Any], list[str]]:
    """Return a run's config.toml ({} if missing), and a sentence on each setting of a wrong type."""
    path = folder / CONFIG
    if not os.path.lexists(path):
        return {}, []
    table = read_toml(path)
    wrong = mistyped(config_class(kind), table)
    return table, [f"{path} is damaged ({name} has an invalid value, and is left out): {RESTORE}" for name in wrong]


def config_class(kind: str) -> type[BaseConfig]:
    name = f"{kind.upper() if kind != 'eval' else 'Eval'}Config"
    return getattr(import_module(f"hone.config.{kind}"), name)


def settings_of(folder: Path, config: RunConfig) -> dict[str, Any]:
    """Return the flat settings of the run in `folder`, or of `config` if the run has no config.toml yet."""
    file = folder / CONFIG
    return flat(read_toml(file) if file.exists() else tomllib.loads(run_toml(config, "")))


def changes(old: Mapping[str, Any], config: RunConfig, sources: Mapping[str, str]) -> list[Change]:
    """Return the settings that change the numbers and differ between `old` (flat) and `config`.

    If the run's `sources` have digests of the model and its tokenizer, their names don't matter.
    """
    new = flat(tomllib.loads(run_toml(config, "")))
    usual: dict[str, Any] = {}  # the defaults of extensions that may have been installed since
    for name, value in ADDED.items():
        usual |= flat({name: tomllib.loads(to_toml(value)) if isinstance(value, BaseConfig) else value})
    old = {name: value for name, value in usual.items() if name in new} | dict(old)
    # Other steps to go are harmless where the learning rate of those so far does not depend on how many there are.
    schedule = new.get("trainer.scheduler.type", new.get("scheduler.type", "constant"))
    names = differing(old, new, names_matter=not {"model", "tokenizer"} <= sources.keys())
    return [
        Change(name, old.get(name), new.get(name), harmless=name == "max_steps" and schedule == "constant")
        for name in names
    ]


def differing(old: Mapping[str, Any], new: Mapping[str, Any], names_matter: bool = False) -> list[str]:
    """Return settings that change the numbers and differ in two `flat` configs; model names only if `names_matter`."""
    before, now = _with_own_paths(old), _with_own_paths(new)
    names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    names = [name for name in names if before.get(name) != now.get(name)]
    # A server's address: its presence matters, its value does not. In mode split there is a server in any case.
    server = "" if "split" in (old.get("mode"), new.get("mode")) else "orchestrator.client.base_url"
    return [
        name
        for name in names
        if about(name).decides in ("bytes", *["digest"] * names_matter)
        or (name == server and (name in old) != (name in new))
    ]


def digest(table: Mapping[str, Any]) -> str:
    """Return the SHA-256 over those settings of a nested config that change the numbers."""
    settings = _with_own_paths(flat(table))
    deciding = {name: value for name, value in settings.items() if not about(name).is_free}
    return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()


@cache
def about(name: str) -> Meta:
    found = (lookup(config_class(kind), tuple(name.split("."))) for kind in ("rl", "sft"))
    is_gone = retired("", tuple(name.split("."))) is not None  # of an older run, or of an extension
    return next((key.meta for key in found if key), Meta(decides="nothing") if is_gone else PLAIN)


def _with_own_paths(settings: Mapping[str, Any]) -> dict[str, Any]:
    return moved(settings, settings.get("output_dir", ""), "RUN")


def moved(settings: Mapping[str, Any], before: str | Path, now: str | Path) -> dict[str, Any]:
    """Return settings, flat or nested, with paths in `before` replaced by paths in `now`."""

    def change(value: Any) -> Any:
        if isinstance(value, dict):
            return moved(value, before, now)
        if isinstance(value, list):
            return [*map(change, value)]
        name = value.removeprefix(f"{before}/") if isinstance(value, str) else ""
        return f"{now}/{name}" if name != value and name.partition(":")[0] in GIVEN else value

    return {name: change(value) for name, value in settings.items()}


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in table.items():
        result.update(flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return result
