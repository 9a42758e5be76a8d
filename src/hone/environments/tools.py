"""Tasks in which the model calls tools: typed Python functions, run in turns between its messages.

def multiply(a: int, b: int) -> int:
    \"\"\"Multiplies two numbers.\"\"\"
    return a * b

ToolEnv(tools=[multiply], max_turns=5, rubric=..., dataset=...)
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from hone.environments.multi_turn import MultiTurnEnv
from hone.environments.parsers import message_text
from hone.environments.rubric import is_async, is_inline
from hone.environments.tool_functions import ToolFunction
from hone.errors import UserError
from hone.grading import GraderFailure, together
from hone.model.strict_json import read_object
from hone.model.tool_calls import HERMES, Call, openai_call, tool_calls
from hone.types import Message, Outcome, content_hash

ERROR = "error:"
"""How the answer to a call begins that did not work."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]{6,}>")


class ToolEnv(MultiTurnEnv):
    """A task with `tools`: each call in the model's message is answered by a message of the role "tool".

    `tools` are plain or async functions with type hints; their docstrings tell the model what they do. A parameter
    named `state` gets the conversation's state, which must stay JSON. What a tool returns is its answer: text as it is,
    other values as JSON, cut to `max_chars`. The conversation is over when the model calls nothing, or after
    `max_turns` of its messages. An unknown tool, wrong arguments, a malformed call and an exception are answers that
    begin with "error:"; only exceptions in `stop_errors` mean that the tool itself is broken, and fail the sample.
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
        if not isinstance(max_chars, int) or max_chars < 1:
            raise UserError(
                f"environment {self.id!r}: max_chars is {max_chars!r}; it must be a whole number, at least 1"
            )
        if not all(isinstance(error, type) and issubclass(error, BaseException) for error in stop_errors):
            raise UserError(f"environment {self.id!r}: stop_errors is {stop_errors!r}; it must be a list of exceptions")
        functions = [ToolFunction(tool) for tool in tools]
        self.tools = {function.name: function for function in functions}
        if not functions or len(self.tools) != len(functions):
            raise UserError(
                f"environment {self.id!r}: tools are {[function.name for function in functions]}; "
                "give at least one, and each a name of its own"
            )
        self.max_chars, self.stop_errors = max_chars, tuple(stop_errors)
        self.tool_schemas = [function.schema for function in functions]

    @property
    def responds_inline(self) -> bool:
        """Whether all tools are marked as cheap and pure (`hone.environments.inline`)."""
        return all(is_inline(tool.func) for tool in self.tools.values()) or super().responds_inline

    @property
    def responds_async(self) -> bool:
        """Whether any tool is async."""
        return any(is_async(tool.func) for tool in self.tools.values()) or super().responds_async

    def env_response(self, messages: list[Message], state: dict[str, Any]) -> list[Message] | Awaitable[list[Message]]:
        """The answers to the calls of the last message, in their order; none if it calls nothing."""
        calls = calls_of(messages[-1])
        answers = [self._answer(call, state) for call in calls]
        waiting = [answer for answer in answers if not isinstance(answer, str)]
        return (
            self._later(calls, answers) if waiting else [_message(*pair) for pair in zip(calls, answers, strict=True)]
        )

    def called(self, name: str, **arguments: Any) -> list[Message]:
        """A message that calls a tool, and the tool's answer, run now: what demonstrations are made of.

        [*self.called("multiply", a=6, b=7), {"role": "assistant", "content": "ANSWER: 42"}]
        """
        call = openai_call(Call(name, arguments), content_hash([name, arguments]), 0)
        message: Message = {"role": "assistant", "content": "", "tool_calls": [call]}
        (answer,) = together([self.responding([message], {})])
        if isinstance(answer, GraderFailure):
            raise UserError(f"environment {self.id!r}: the tool {name} failed in a demonstration: {answer.detail}")
        return [message, *answer[0]]

    def failed_response(self, messages: list[Message], failure: GraderFailure) -> list[Message] | None:
        """A tool that was ended at its deadline, or took its process with it, is told to the model like any error.

        What else went wrong, such as an exception that left `env_response`, is none of the model's: the sample fails.
        """
        calls = calls_of(messages[-1])
        late = failure.outcome is Outcome.GRADER_TIMEOUT
        if not calls or not (late or failure.lost):
            return None
        text = f"{ERROR} it took too long and was stopped" if late else f"{ERROR} it ended without an answer"
        return [_message(call, text) for call in calls]

    def _answer(self, call: dict[str, Any], state: dict[str, Any]) -> str | Awaitable[str]:
        """What a call is answered; an async tool's answer is still to be awaited."""
        try:
            function, arguments = self._read(call)
        except ValueError as error:
            return self._cut(f"{ERROR} {error}")
        try:
            value = function.func(**arguments, **({"state": state} if function.takes_state else {}))
            return self._awaited(value) if inspect.isawaitable(value) else self._text(value)
        except BaseException as error:
            return self._error(error)

    async def _awaited(self, value: Awaitable[Any]) -> str:
        try:
            return self._text(await value)
        except BaseException as error:
            return self._error(error)

    async def _later(self, calls: list[dict[str, Any]], answers: list[str | Awaitable[str]]) -> list[Message]:
        async def done(answer: str | Awaitable[str]) -> str:
            return answer if isinstance(answer, str) else await answer

        texts = await asyncio.gather(*map(done, answers))
        return [_message(*pair) for pair in zip(calls, texts, strict=True)]

    def _read(self, call: dict[str, Any]) -> tuple[ToolFunction, dict[str, Any]]:
        """The tool that a call names, and its arguments. ValueError says what is wrong with it."""
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
        """The exception as an answer; raised again if it is not the model's to know."""
        if isinstance(error, (KeyboardInterrupt, asyncio.CancelledError, *self.stop_errors)):
            raise error
        return self._cut(_ADDRESS.sub(" at 0x…>", f"{ERROR} {type(error).__name__}: {error}".rstrip(": ")))

    def _cut(self, text: str) -> str:
        more = len(text) - self.max_chars
        return text if more <= 0 else f"{text[: self.max_chars]}… ({more} more characters)"


def calls_of(message: Message) -> list[dict[str, Any]]:
    """The tool calls of a message of the assistant, in OpenAI's form. A malformed one has the name "".

    They are its `tool_calls`; of a message without these, the calls in its text (`<tool_call>{…}</tool_call>`).
    """
    if message.get("role") != "assistant":
        return []
    given = message.get("tool_calls")
    if isinstance(given, list) and given:
        return [call if isinstance(call, dict) else {"function": None} for call in given]
    return tool_calls(message_text(message), HERMES)


def arguments_of(call: dict[str, Any]) -> tuple[str, dict[str, Any] | None]:
    """The name of the function that a call names ("": malformed), and the arguments (None: they are no JSON object)."""
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return "", None
    given = function.get("arguments")
    given = read_object(given) if isinstance(given, str) else given
    return function["name"], given if isinstance(given, dict) else None


def _raw(call: dict[str, Any]) -> str:
    """The beginning of a call's arguments as they were written."""
    function = call.get("function")
    return str(function.get("arguments") if isinstance(function, dict) else "")[:200]


def _plain(value: Any) -> Any:
    """What JSON does not know, such that another run writes the same: sets in order, objects without their address."""
    return sorted(value, key=repr) if isinstance(value, set | frozenset) else _ADDRESS.sub(" at 0x…>", str(value))


def _message(call: dict[str, Any], text: Any) -> Message:
    function = call.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    return {"role": "tool", "name": name or "", "tool_call_id": call.get("id") or "", "content": text}
