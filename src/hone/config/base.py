"""The base of every config: strict about keys, and `"None"` in a TOML file is null."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

import pydantic_config
from pydantic import ConfigDict, model_validator

from hone.config.schema import is_dict, unwrap

if TYPE_CHECKING:
    from hone.config.sources import Sources


class BaseConfig(pydantic_config.BaseConfig):
    """A typed section. Unknown keys are errors; the string `"None"` is null, which TOML cannot write.

    The docstring under a field is its description, and so its line in `--help`.
    """

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    positional: ClassVar[str | tuple[str, ...] | None] = None
    """Field that the first bare word of the command line sets (`hone eval ENV`), or fields, one for each."""

    bare: ClassVar[str | None] = None
    """Field of a section that a bare value of it sets: with `id`, `--env countdown` is `--env.id countdown`."""

    section: ClassVar[str | None] = None
    """Section that files without one are read as, and flags that the top does not know."""

    @classmethod
    def chosen(cls, argv: list[str]) -> type[Self]:
        """The class that this command line is parsed as: this one, where it does not depend on what the line says."""
        return cls

    @classmethod
    def words(cls) -> tuple[str, ...]:
        """The fields that bare words set, in order."""
        return (cls.positional,) if isinstance(cls.positional, str) else cls.positional or ()

    @classmethod
    def compose(cls, sources: Sources) -> dict[str, Any]:
        """One tree from what the command line says: flags win over files."""
        from hone.config.sources import merge

        return merge(sources.files, sources.flags)

    @model_validator(mode="before")
    @classmethod
    def _coerce_dict_str_values(cls, data: Any) -> Any:
        """Keep the types of free-form dicts, but for `"None"`: the library would turn `{answer = "5"}` into a number.

        Flags are typed when they are read, see `hone.config.sources`.
        """
        if not isinstance(data, dict):
            return data
        free = [name for name, field in cls.model_fields.items() if is_dict(unwrap(field.annotation)[0])]
        return {name: _with_nulls(value) if name in free else value for name, value in data.items()}


def _with_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_nulls(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_nulls(item) for item in value]
    return None if value == "None" else value
