"""From a command line to a typed config; whatever is wrong with it becomes one sentence."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import ValidationError

from hone.config.base import BaseConfig
from hone.config.schema import dotted, lookup
from hone.config.sources import Sources, read_sources
from hone.errors import UserError

Config = TypeVar("Config", bound=BaseConfig)


def parse(cls: type[Config], argv: list[str], prog: str) -> Config:
    """The config that `argv` (without the program's name) describes; the syntax is that of `hone.config.sources`.

    Raises UserError for anything wrong with it. `-h` or `--help` prints every key and raises SystemExit(0).
    """
    if "-h" in argv or "--help" in argv:
        from hone.config.help import render

        print(render(cls, prog))
        raise SystemExit(0)
    sources = read_sources(cls, argv)
    try:
        return cls.model_validate(cls.compose(sources))
    except ValidationError as error:
        raise UserError(_sentence(cls, error, sources)) from None


def _sentence(cls: type[BaseConfig], error: ValidationError, sources: Sources) -> str:
    """The first problem that pydantic found, naming the key, its value, where it was set and what is expected."""
    details = error.errors(include_url=False)[0]
    path = tuple(str(part) for part in details["loc"])
    if details["type"] == "value_error":  # raised by a validator of ours
        reason = str(details.get("ctx", {})["error"])
        return f"{dotted(path)}: {reason}" if path else reason
    if details["type"] == "model_type":
        section = lookup(cls, path)
        assert section is not None and section.section is not None, path
        expected = f"a section with keys such as {dotted((*path, next(iter(section.section.model_fields))))}"
    else:
        expected = details["msg"].removeprefix("Input should be ").partition(", unable to parse")[0]
    return f"{dotted(path)} is {_shown(details['input'])}{sources.origin(path)}, but should be {expected}"


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)
