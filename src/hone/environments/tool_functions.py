"""A Python function as a tool: its schema from type hints and docstring, and its arguments checked.

pydantic makes the schema and checks the arguments, so that both say the same. (transformers' `get_json_schema` makes
schemas only, refuses a function whose docstring leaves out an argument, and is slow to import in every worker.)
"""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Callable
from typing import Annotated, Any, NotRequired, get_type_hints

from hone.environments.rubric import component_name
from hone.errors import UserError

STATE = "state"
"""A parameter of this name is not the model's to give: it gets the conversation's state."""
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class ToolFunction:
    """A tool: `name`, `schema` in OpenAI's form, and `func`, plain or async. Raises UserError for what cannot be one.

    The description is the docstring up to its Args section, that section (in Google's form) describes the arguments.
    """

    def __init__(self, func: Callable[..., Any]) -> None:
        self.func, self.name = func, component_name(func)
        parameters = dict(inspect.signature(func).parameters)
        self.takes_state = parameters.pop(STATE, None) is not None
        text, told = read_docstring(inspect.getdoc(func) or "")
        self._arguments = _arguments(self.name, func, parameters, told)
        self.schema: dict[str, Any] = {
            "type": "function",
            "function": {"name": self.name, "description": text, "parameters": _schema(self._arguments, parameters)},
        }

    def check(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments, converted to their types where that is unambiguous ("3" to 3). ValueError says why not."""
        from pydantic import ValidationError

        try:
            return self._arguments.validate_python(arguments)
        except ValidationError as error:
            wrong = "; ".join(self._words(one) for one in error.errors(include_url=False)[:3])
            raise ValueError(wrong) from None

    def _words(self, error: Any) -> str:
        name = ".".join(str(part) for part in error["loc"])
        properties = self.schema["function"]["parameters"]["properties"]
        if error["type"] == "missing" and name in properties:
            return f"{self.name} needs the argument {name!r}"
        if error["type"] == "extra_forbidden":
            return f"{self.name} has no argument {name!r}; it takes {', '.join(properties) or 'none'}"
        said = error["msg"][:1].lower() + error["msg"][1:]
        return f"argument {name!r} of {self.name}: {said}"


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """The description, and what the Args section says of each argument."""
    parts = re.split(r"^(Args|Arguments|Parameters|Returns|Raises|Yields|Examples?):[ \t]*$", text, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    arguments = next((sections[name] for name in ("Args", "Arguments", "Parameters") if name in sections), "")
    told: dict[str, str] = {}
    indent, name = None, ""
    for line in arguments.splitlines():
        depth = len(line) - len(line.lstrip())
        indent = depth if indent is None and line.strip() else indent
        head = re.match(r"\s*\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)", line) if depth == indent else None
        if head is not None:
            name, told[head[1]] = head[1], head[2].strip()
        elif line.strip() and name:
            told[name] = f"{told[name]} {line.strip()}".strip()
    return parts[0].strip(), told


def _arguments(
    name: str, func: Callable[..., Any], parameters: dict[str, inspect.Parameter], told: dict[str, str]
) -> Any:
    """A pydantic adapter of the table of arguments."""
    from pydantic import ConfigDict, Field, PydanticUserError, TypeAdapter
    from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

    try:
        target = inspect.unwrap(func.func if isinstance(func, functools.partial) else func)
        hints = get_type_hints(target if inspect.isroutine(target) else type(target).__call__, include_extras=True)
    except NameError as error:
        raise UserError(f"tool {name}: a type hint cannot be resolved ({error}): import what it names") from error
    fields: dict[str, Any] = {}
    for key, parameter in parameters.items():
        if parameter.kind not in _NAMED:
            raise UserError(f"tool {name}: the parameter {parameter} cannot be given by name; name each argument")
        if key not in hints:
            raise UserError(f"tool {name}: the parameter {key} has no type hint; give it one, such as {key}: str")
        kind = Annotated[hints[key], Field(description=told[key])] if told.get(key) else hints[key]
        fields[key] = kind if parameter.default is parameter.empty else NotRequired[kind]
    table: Any = TypedDict("table", fields)  # pyright: ignore[reportGeneralTypeIssues, reportArgumentType]
    table.__pydantic_config__ = ConfigDict(extra="forbid")
    try:
        return TypeAdapter(table)
    except PydanticUserError as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"tool {name}: a type hint has no JSON schema ({reason}); take types that JSON has") from error


def _schema(arguments: Any, parameters: dict[str, inspect.Parameter]) -> dict[str, Any]:
    """The JSON schema of the arguments, with their defaults and without titles."""
    from pydantic.json_schema import GenerateJsonSchema

    class Untitled(GenerateJsonSchema):
        def field_title_should_be_set(self, schema: Any) -> bool:
            return False

    schema = arguments.json_schema(schema_generator=Untitled)
    properties = {key: _type_first(value) for key, value in schema.get("properties", {}).items()}
    for key, parameter in parameters.items():
        if parameter.default is not parameter.empty and _is_json(parameter.default):
            properties[key]["default"] = parameter.default
    rest = {key: schema[key] for key in ("required", "$defs") if key in schema}
    return {"type": "object", "properties": properties, **rest}


def _type_first(schema: dict[str, Any]) -> dict[str, Any]:
    return {key: schema[key] for key in ("type", "description") if key in schema} | schema


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True
