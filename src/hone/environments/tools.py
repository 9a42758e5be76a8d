"""Tasks with tools: typed Python functions that the model may call, run between its messages.

    def multiply(a: int, b: int) -> int:
        \"\"\"Multiplies two numbers.\"\"\"
        return a * b

    ToolEnv(tools=[multiply], max_turns=5, rubric=..., dataset=...)

pydantic makes a tool's schema from its type hints and docstring, and checks arguments against the schema.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Annotated, Any, NotRequired, get_type_hints

from pydantic import ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from hone.environments.multi_turn import MultiTurnEnv
from hone.environments.parsers import message_text
from hone.environments.rubric import component_name, is_async, is_inline
from hone.errors import UserError, first_line
from hone.grading import GraderFailure, together
from hone.model.strict_json import read_object
from hone.model.tool_calls import HERMES, Call, openai_call, tool_calls
from hone.types import Message, Outcome, content_hash

ERROR = "error:"
"""The beginning of the answer to a failed call."""
STATE = "state"
"""Name of the parameter that gets the conversation's state; the model can't set it."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]{6,}>")
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class ToolEnv(MultiTurnEnv):
    """A task with `tools`: each call in the model's message is answered by a message of the role "tool".

    `tools` are plain or async functions with type hints. Their docstrings tell the model what the tools do. A parameter
    named `state` gets the conversation's state, which must stay JSON. The answer to a call is what the tool returns:
    text as it is, other values as JSON, cut to `max_chars`. The answer to an unknown tool, wrong arguments, a malformed
    call or an exception begins with "error:". Only an exception in `stop_errors` means that the tool is broken, and
    fails the sample. The conversation is over when the model calls nothing, or after `max_turns` messages of the model.
    Calls in the last of these messages run only if a tool takes `state`.
    """

    def __init__(
        self,
        *,
        tools: Sequence[Callable[..., Any]],
        max_turns: int = 10,
        max_chars: int = 4000,
        stop_errors: Sequence[type[BaseException]] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(max_turns=max_turns, **kwargs)
        if callable(tools) or not all(callable(tool) for tool in tools):
            raise UserError(f"environment {self.id!r}: tools is {tools!r:.100}; it must be a list of functions")
        functions = [ToolFunction(tool) for tool in tools]
        self.tools = {function.name: function for function in functions}
        if not functions or len(self.tools) != len(functions):
            raise UserError(
                f"environment {self.id!r}: tools are {[function.name for function in functions]}; "
                "give at least one tool, and no name twice"
            )
        self.max_chars, self.stop_errors = max_chars, tuple(stop_errors)
        self.tool_schemas = [function.schema for function in functions]

    @property
    def responds_inline(self) -> bool:
        return all(is_inline(tool.func) for tool in self.tools.values()) or super().responds_inline

    @property
    def responds_async(self) -> bool:
        return any(is_async(tool.func) for tool in self.tools.values()) or super().responds_async

    @property
    def hears_last(self) -> bool:
        """True if calls in the last message must run: a tool or an overridden `env_response` may set the state."""
        return type(self).env_response is not ToolEnv.env_response or any(t.takes_state for t in self.tools.values())

    def env_response(self, messages: list[Message], state: dict[str, Any]) -> list[Message] | Awaitable[list[Message]]:
        """Return the answers to the calls in the last message, in order; [] if it calls nothing."""
        calls = calls_of(messages[-1])
        answers = [self._answer(call, state) for call in calls]
        if not all(isinstance(answer, str) for answer in answers):
            return self._later(calls, answers)
        return [_message(*pair) for pair in zip(calls, answers, strict=True)]

    def called(self, name: str, **arguments: Any) -> list[Message]:
        """Run a tool now; return the message that calls it and the tool's answer, for demonstrations.

        [*self.called("multiply", a=6, b=7), {"role": "assistant", "content": "ANSWER: 42"}]
        """
        call = openai_call(Call(name, arguments), content_hash([name, arguments]), 0)
        message: Message = {"role": "assistant", "content": "", "tool_calls": [call]}
        (answer,) = together([self.responding([message], {})])
        if isinstance(answer, GraderFailure):
            raise UserError(f"environment {self.id!r}: the tool {name} failed in a demonstration: {answer.detail}")
        return [message, *answer[0]]

    def failed_response(self, messages: list[Message], failure: GraderFailure) -> list[Message] | None:
        """Return an error for the model if a tool was killed or ended its process. Else None: the sample fails."""
        calls = calls_of(messages[-1])
        late = failure.outcome is Outcome.GRADER_TIMEOUT
        if not calls or not (late or failure.lost):
            return None
        text = f"{ERROR} it took too long and was stopped" if late else f"{ERROR} it ended without an answer"
        return [_message(call, text) for call in calls]

    def _answer(self, call: dict[str, Any], state: dict[str, Any]) -> str | Awaitable[Any]:
        try:
            function, arguments = self._read(call)
        except ValueError as error:
            return self._cut(f"{ERROR} {error}")
        try:
            value = function.func(**arguments, **({"state": state} if function.takes_state else {}))
            return value if inspect.isawaitable(value) else self._text(value)
        except BaseException as error:
            return self._error(error)

    async def _later(self, calls: list[dict[str, Any]], answers: list[str | Awaitable[Any]]) -> list[Message]:
        async def text_of(answer: str | Awaitable[Any]) -> str:
            try:
                return answer if isinstance(answer, str) else self._text(await answer)
            except BaseException as error:
                return self._error(error)

        texts = await asyncio.gather(*map(text_of, answers))
        return [_message(*pair) for pair in zip(calls, texts, strict=True)]

    def _read(self, call: dict[str, Any]) -> tuple[ToolFunction, dict[str, Any]]:
        name, given = arguments_of(call)
        if not name:
            raise ValueError(f"the call cannot be read: {_raw(call)!r}")
        if name not in self.tools:
            raise ValueError(f"there is no tool {name[:100]!r}; there is {', '.join(self.tools)}")
        if given is None:
            raise ValueError(f"the arguments of {name} are no JSON object: {_raw(call)!r}")
        return self.tools[name], self.tools[name].check(given)

    def _text(self, value: Any) -> str:
        return self._cut(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=_plain))

    def _error(self, error: BaseException) -> str:
        """Return the exception as an answer; re-raise it if the tool itself is broken."""
        if isinstance(error, (KeyboardInterrupt, asyncio.CancelledError, *self.stop_errors)):
            raise error
        return self._cut(_ADDRESS.sub(" at 0x…>", f"{ERROR} {type(error).__name__}: {error}".rstrip(": ")))

    def _cut(self, text: str) -> str:
        more = len(text) - self.max_chars
        return text if more <= 0 else f"{text[: self.max_chars]}… ({more} more characters)"


def calls_of(message: Message) -> list[dict[str, Any]]:
    """Return an assistant message's `tool_calls`, or the calls in its text, in OpenAI's form (malformed: no name)."""
    if message.get("role") != "assistant":
        return []
    given = message.get("tool_calls")
    if isinstance(given, list) and given:
        return [call if isinstance(call, dict) else {"function": None} for call in given]
    return tool_calls(message_text(message), HERMES)


def arguments_of(call: dict[str, Any]) -> tuple[str, dict[str, Any] | None]:
    """Return the name in a call ("": malformed), and the arguments (None: they are no JSON object)."""
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return "", None
    given = function.get("arguments")
    given = read_object(given) if isinstance(given, str) else given
    return function["name"], given if isinstance(given, dict) else None


def _raw(call: dict[str, Any]) -> str:
    function = call.get("function")
    return str(function.get("arguments") if isinstance(function, dict) else "")[:200]


def _plain(value: Any) -> Any:
    """Convert a value that JSON lacks, the same in every run: sets sorted, objects without their address."""
    return sorted(value, key=repr) if isinstance(value, set | frozenset) else _ADDRESS.sub(" at 0x…>", str(value))


def _message(call: dict[str, Any], text: Any) -> Message:
    function = call.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    return {"role": "tool", "name": name or "", "tool_call_id": call.get("id") or "", "content": text}


class ToolFunction:
    """A tool: `name`, `schema` in OpenAI's form, and `func`, plain or async. UserError if `func` can't be a tool.

    The docstring before its Args section describes the tool. The Args section (Google's form) describes the arguments.
    """

    def __init__(self, func: Callable[..., Any]) -> None:
        self.func, self.name = func, component_name(func)
        parameters = dict(inspect.signature(func).parameters)
        self.takes_state = parameters.pop(STATE, None) is not None
        text, described = read_docstring(inspect.getdoc(func) or "")
        self._arguments = _arguments(self.name, func, parameters, described)
        self.schema: dict[str, Any] = {
            "type": "function",
            "function": {"name": self.name, "description": text, "parameters": _schema(self._arguments, parameters)},
        }

    def check(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments, converted if unambiguous ("3" to 3). ValueError for wrong arguments."""
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
        return f"argument {name!r} of {self.name}: {error['msg'][:1].lower()}{error['msg'][1:]}"


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    parts = re.split(r"^(Args|Arguments|Parameters|Returns|Raises|Yields|Examples?):[ \t]*$", text, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    arguments = next((sections[name] for name in ("Args", "Arguments", "Parameters") if name in sections), "")
    described: dict[str, str] = {}
    indent, name = None, ""
    for line in arguments.splitlines():
        depth = len(line) - len(line.lstrip())
        indent = depth if indent is None and line.strip() else indent
        head = re.match(r"\s*\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)", line) if depth == indent else None
        if head is not None:
            name, described[head[1]] = head[1], head[2].strip()
        elif line.strip() and name:
            described[name] = f"{described[name]} {line.strip()}".strip()
    return parts[0].strip(), described


def _arguments(
    name: str, func: Callable[..., Any], parameters: dict[str, inspect.Parameter], described: dict[str, str]
) -> Any:
    try:
        target = inspect.unwrap(func.func if isinstance(func, functools.partial) else func)
        hints = get_type_hints(target if inspect.isroutine(target) else type(target).__call__, include_extras=True)
    except NameError as error:
        raise UserError(f"tool {name}: a type hint cannot be resolved ({error}): import what it names") from error
    fields: dict[str, Any] = {}
    for key, parameter in parameters.items():
        if parameter.kind not in _NAMED:
            raise UserError(f"tool {name}: the parameter {parameter} can't be passed by name; use ordinary parameters")
        if key not in hints:
            raise UserError(f"tool {name}: the parameter {key} has no type hint; give it one, such as {key}: str")
        kind = Annotated[hints[key], Field(description=described[key])] if described.get(key) else hints[key]
        fields[key] = kind if parameter.default is parameter.empty else NotRequired[kind]
    table: Any = TypedDict("table", fields)  # pyright: ignore[reportGeneralTypeIssues, reportArgumentType]
    table.__pydantic_config__ = ConfigDict(extra="forbid")
    try:
        return TypeAdapter(table)
    except PydanticUserError as error:
        raise UserError(
            f"tool {name}: a type hint has no JSON schema ({first_line(error)}); use types that JSON has"
        ) from error


def _schema(arguments: Any, parameters: dict[str, inspect.Parameter]) -> dict[str, Any]:
    schema = arguments.json_schema(schema_generator=_Untitled)
    first = ("type", "description")
    properties = {
        key: {name: value[name] for name in first if name in value} | value
        for key, value in schema.get("properties", {}).items()
    }
    for key, parameter in parameters.items():
        if parameter.default is not parameter.empty:
            with suppress(TypeError, ValueError):
                json.dumps(parameter.default, allow_nan=False)
                properties[key]["default"] = parameter.default
    rest = {key: schema[key] for key in ("required", "$defs") if key in schema}
    return {"type": "object", "properties": properties, **rest}


class _Untitled(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: Any) -> bool:
        return False
