r"""Tool calls in the text of a model, in OpenAI's form, and JSON that a model wrote.

The form in which each family writes its calls is a `Format` (see `hone.model.tool_formats`).
Text of a model is data. It is read as strict JSON, as servers read it (a raw line break in a string is an error; so are
a key twice, NaN and half a surrogate pair), up to `MAX_CHARS` and `MAX_DEPTH`, in time linear in its length. What was
thought (`<think>`) calls nothing. A call that cannot be read is a malformed one, for the model to be told.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hone.types import Message, content_hash

MAX_CHARS = 1_000_000
"""Characters of one call; a longer one is malformed."""
MAX_DEPTH = 100
MAX_CALLS = 64
"""Calls in one message; what follows the last of them is one malformed call."""
Tool = dict[str, Any]
"""A tool in OpenAI's form: `{"type": "function", "function": {"name", "description", "parameters"}}`."""


@dataclass(frozen=True)
class Call:
    """A call: the function's name and arguments, or for a malformed one None and its `raw` text."""

    name: str | None
    arguments: dict[str, Any]
    raw: str = ""


Read = Callable[[str, int, "Sequence[Tool]"], "tuple[list[Call], int]"]


@dataclass(frozen=True)
class Format:
    """How a family writes calls.

    `opening` is the regular expression of what a call starts with, `read` reads from where that starts: (calls, where
    they end). `signs`: a chat template that holds one of these texts writes this format. `tokens`: special tokens of
    the format, which decoding must keep. `structured`: the template wants calls as `tool_calls`, not in the text.
    """

    name: str
    opening: re.Pattern[str]
    read: Read
    signs: tuple[str, ...]
    tokens: tuple[str, ...] = ()
    structured: bool = False

    def calls(self, text: str, tools: Sequence[Tool] | None = None) -> list[Call]:
        """The calls in a text, in order."""
        return [call for call, _ in self._found(text, tools or ())]

    def before_calls(self, text: str) -> str:
        """The text up to its first call, without white space at the end; all of it if it calls nothing."""
        return next((text[:at].rstrip() for _, at in self._found(text, ())), text)

    def _found(self, text: str, tools: Sequence[Tool]) -> list[tuple[Call, int]]:
        """Each call, and where it (or the list that it stands in) starts."""
        found: list[tuple[Call, int]] = []
        at = _spoken_from(text)
        start = re.compile(f"<think>|{self.opening.pattern}", self.opening.flags)
        while match := start.search(text, at):
            if match.group() == "<think>":
                end = text.find("</think>", match.end())
                if end < 0:
                    break
                at = end + len("</think>")
                continue
            if len(found) >= MAX_CALLS:
                found.append((Call(None, {}, text[match.start() :]), match.start()))
                break
            calls, end = self.read(text, match.start(), tools)
            found += [(call, match.start()) for call in calls]
            at = max(end, match.end())
        return found


def tool_calls(text: str, form: Format, tools: Sequence[Tool] | None = None) -> list[dict[str, Any]]:
    """The calls in a text in OpenAI's form: `id`, `type`, `function` with `name` and `arguments` (JSON as text).

    Of a malformed call the name is "" and the arguments are its raw text. An id is nine letters and digits, as Mistral
    wants it, and a function of the text and the call's place. `tools` tell the types of XML's arguments, which are
    plain text without them.
    """
    return [openai_call(call, text, i) for i, call in enumerate(form.calls(text, tools))]


def openai_call(call: Call, text: str, index: int) -> dict[str, Any]:
    """The call as OpenAI has it; `text` and `index` make its id."""
    arguments = call.raw if call.name is None else json.dumps(call.arguments, ensure_ascii=False)
    function = {"name": call.name or "", "arguments": arguments}
    return {"id": content_hash([text, index])[:9], "type": "function", "function": function}


def read_object(text: str) -> dict[str, Any] | None:
    """The JSON object that is all of `text`, within the bounds of this module, or None."""
    value, end = read_json(text, skip_space(text, 0))
    return value if isinstance(value, dict) and not text[end:].strip() else None


HERMES_TOOLS = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""
"""The words with which Hermes and Qwen models were trained."""


def without_tools(messages: Sequence[Message], tools: Sequence[Tool] | None) -> list[Message]:
    """The same conversation in Hermes' form for a template that knows neither tools nor their messages.

    Tools stand in the system message, calls in the assistant's text, and answers in turns of the user.
    """
    plain: list[Message] = []
    for message in messages:
        if message.get("role") == "tool":
            answer = f"<tool_response>\n{message.get('content') or ''}\n</tool_response>"
            if plain and plain[-1].get("answers"):
                plain[-1]["content"] += "\n" + answer
            else:
                plain.append({"role": "user", "content": answer, "answers": True})
        elif calls := message.get("tool_calls"):
            written = [_written(call) for call in calls]
            content = "\n".join([text for text in [message.get("content")] if text] + written)
            plain.append({"role": message["role"], "content": content})
        else:
            plain.append(dict(message))
    plain = [{name: part for name, part in message.items() if name != "answers"} for message in plain]
    if not tools:
        return plain
    listed = HERMES_TOOLS.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if plain and plain[0].get("role") == "system":
        return [{**plain[0], "content": f"{plain[0]['content']}\n\n{listed}"}, *plain[1:]]
    return [{"role": "system", "content": listed}, *plain]


def with_objects(call: dict[str, Any]) -> dict[str, Any]:
    """The call with its arguments as an object, as chat templates take them; text that is no object stays."""
    function = dict(call.get("function") or call)
    if isinstance(function.get("arguments"), str):
        value = read_object(function["arguments"])
        function["arguments"] = function["arguments"] if value is None else value
    return {**call, "function": function} if "function" in call else function


def _written(call: dict[str, Any]) -> str:
    function = with_objects(call).get("function") or call
    body = {"name": function.get("name", ""), "arguments": function.get("arguments", {})}
    return f"<tool_call>\n{json.dumps(body, ensure_ascii=False)}\n</tool_call>"


def _spoken_from(text: str) -> int:
    """Where speech can start: behind a `</think>` that nothing before it opened (the chat template did)."""
    end = text.find("</think>")
    return 0 if end < 0 or "<think>" in text[:end] else end + len("</think>")


# Reading JSON


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key twice")
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    if not math.isfinite(number := float(digits)):
        raise ValueError(f"{digits} is too large")
    return number


_DECODER = json.JSONDecoder(object_pairs_hook=_no_duplicates, parse_constant=_no_constant, parse_float=_finite)
_SPACE = re.compile(r"\s*")


def skip_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return at if match is None else match.end()


def read_json(text: str, at: int) -> tuple[Any, int]:
    """The JSON value at `at` and its end; (None, at) if there is none within the bounds."""
    try:
        value, end = _DECODER.raw_decode(text, at)
        if end - at > MAX_CHARS or not _shallow(value):
            return None, at
        text[at:end].encode()
        json.dumps(value, ensure_ascii=False).encode()  # an escape may have made half a surrogate pair
    except (ValueError, RecursionError):
        return None, at
    return value, end


def _shallow(value: Any) -> bool:
    """Whether lists and objects are nested at most `MAX_DEPTH` deep."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return True
    return False
