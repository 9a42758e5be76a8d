"""The base of every config: strict about keys, and `"None"` in a TOML file is null."""

from __future__ import annotations

from typing import Any, ClassVar

import pydantic_config
from pydantic import model_validator


class BaseConfig(pydantic_config.BaseConfig):
    """A typed section. Unknown keys are errors; the string `"None"` is null, which TOML cannot write."""

    positional: ClassVar[str | None] = None
    """Field that the first bare word of the command line sets (`hone eval ENV`)."""

    @model_validator(mode="before")
    @classmethod
    def _coerce_dict_str_values(cls, data: Any) -> Any:
        """Leave free-form dicts as written: the library would turn `{answer = "5"}` into the number 5.

        Flags are typed when they are read, see `hone.config.sources`.
        """
        return data
