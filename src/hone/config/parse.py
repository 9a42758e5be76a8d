"""From a command line to a typed config; whatever is wrong with it becomes one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from hone.config.base import BaseConfig
from hone.config.schema import lookup
from hone.config.sources import Sources, add_settings, read_sources
from hone.errors import UserError

Config = TypeVar("Config", bound=BaseConfig)


def parse(cls: type[Config], argv: list[str], prog: str) -> Config:
    """The config that `argv` (without the program's name) describes; the syntax is that of `hone.config.sources`.

    Raises UserError for anything wrong with it. `-h` or `--help` prints every key and raises SystemExit(0).
    """
    cls = cls.chosen(argv)
    if "-h" in argv or "--help" in argv:
        from hone.config.help import render

        print(render(cls, prog))
        raise SystemExit(0)
    return _validated(cls, read_sources(cls, argv), prog)


def from_settings(cls: type[Config], config: Config | str | Path | None, settings: Mapping[str, Any]) -> Config:
    """The config of a TOML file, or one that was made before, with these `settings` on top, by name or dotted name.

    from_settings(RLConfig, "rl.toml", {"model": "Qwen/Qwen3-0.6B", "trainer.optim.lr": 1e-6, "ckpt": True})

    A section takes a dict, True for its defaults, or the value of its main key; False turns an optional one off. Raises
    UserError as `parse` does.
    """
    if isinstance(config, BaseConfig):
        if not settings:
            return config
        sources = Sources(config.model_dump(exclude_unset=True))
    else:
        sources = read_sources(cls, [] if config is None else ["@", str(config)])
    return _validated(cls, add_settings(cls, sources, settings), "hone")


def _validated(cls: type[Config], sources: Sources, prog: str) -> Config:
    try:
        return cls.model_validate(cls.compose(sources))
    except ValidationError as error:
        raise UserError(_sentence(cls, error, sources, prog)) from None


def _sentence(cls: type[BaseConfig], error: ValidationError, sources: Sources, prog: str) -> str:
    """The first problem that pydantic found, naming the key, its value, where it was set and what is expected."""
    details = error.errors(include_url=False)[0]
    path = tuple(str(part) for part in details["loc"])
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in details["loc"]).lstrip(".")
    if details["type"] == "value_error":  # raised by a validator of ours
        reason = str(details.get("ctx", {})["error"])
        return f"{name}: {reason}" if name else reason
    if details["type"] == "missing":
        if name in cls.words():
            return f"{name.upper()} is missing: say `{prog} {' '.join(cls.words()).upper()}`"
        return f"{name} is missing{sources.origin(path)}"
    found = f"{name} is {_shown(details['input'])}{sources.origin(path)}"
    if details["type"] == "model_type":
        key = lookup(cls, path)
        assert key is not None and key.section is not None, path
        return f"{found}, but should be a section with keys such as {name}.{next(iter(key.section.model_fields))}"
    expected = details["msg"].removeprefix("Input should be ").partition(", unable to parse")[0]
    return f"{found}, but should be {expected}" if expected != details["msg"] else f"{found}: {expected}"


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)
