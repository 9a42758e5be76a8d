r"""Tool calls in a model's text, in the form that the model's family was trained to write.

    HERMES    Qwen2.5, Qwen3, hone/tiny  <tool_call>{"name": "f", "arguments": {…}}</tool_call>
    XML       Qwen3-Coder, Qwen3.5       <tool_call><function=f><parameter=x>…</parameter></function></tool_call>
    LLAMA     Llama 3.x                  {"name": "f", "parameters": {…}}, the whole text, perhaps after <|python_tag|>

hone finds the form in the chat template, because the template writes earlier calls. For a template without tools,
`without_tools` writes tools and calls in Hermes' form into the texts of system, assistant and user messages.

Calls are read as strict JSON within bounds, in time linear in the length of the text. Calls in thoughts (`<think>`)
don't count. A call that cannot be read is malformed, and the environment answers it with the reason.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hone.model.strict_json import MAX_CHARS, read_json, read_object, skip_space
from hone.types import Message, content_hash

MAX_CALLS = 64
"""Largest number of calls in one message. All text after these calls is one malformed call."""
Tool = dict[str, Any]
"""A tool in OpenAI's form: `{"type": "function", "function": {"name", "description", "parameters"}}`."""


@dataclass(frozen=True)
class Call:
    """A tool call. A malformed call has the name None, and its text in `raw`."""

    name: str | None
    arguments: dict[str, Any]
    raw: str = ""


Read = Callable[[str, int, "Sequence[Tool]"], "tuple[list[Call], int]"]


@dataclass(frozen=True)
class Format:
    """How a family of models writes calls.

    `opening` matches the start of a call. `read` returns the calls that begin there, and where they end. `signs`: a
    chat template with one of these texts writes calls in this form. `tokens`: special tokens that decoding must write.
    """

    name: str
    opening: re.Pattern[str]
    read: Read
    signs: tuple[str, ...]
    tokens: tuple[str, ...] = ()

    def calls(self, text: str, tools: Sequence[Tool] | None = None) -> list[Call]:
        return [call for call, _ in self._find_calls(text, tools or ())]

    def before_calls(self, text: str) -> str:
        """Return the text before its first call, without white space at the end; if it has no call, the whole text."""
        return next((text[:at].rstrip() for _, at in self._find_calls(text, ())), text)

    def _find_calls(self, text: str, tools: Sequence[Tool]) -> list[tuple[Call, int]]:
        """Return each call and where it starts. All calls that one `read` returns have the same start."""
        found: list[tuple[Call, int]] = []
        at = self._spoken_from(text, tools)
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

    def _spoken_from(self, text: str, tools: Sequence[Tool]) -> int:
        """Return where the answer starts: after `</think>` (outside arguments) if the template opened a thought."""
        end = text.find("</think>")
        if end < 0 or "<think>" in text[:end]:
            return 0
        before = text[:end]
        for opened in itertools.islice(self.opening.finditer(before), MAX_CALLS):
            if self._is_call(text, opened.start(), tools) and not self._is_call(before, opened.start(), tools):
                return 0
        return end + len("</think>")

    def _is_call(self, text: str, at: int, tools: Sequence[Tool]) -> bool:
        calls, _ = self.read(text, at, tools)
        return bool(calls) and all(call.name is not None for call in calls)


def tool_calls(text: str, form: Format, tools: Sequence[Tool] | None = None) -> list[dict[str, Any]]:
    """Return a text's calls in OpenAI's form: `id`, `type`, `function` with `name` and `arguments` (JSON as text).

    A malformed call has the name "", and its raw text as arguments. An id has nine letters and digits, as Mistral
    requires, and depends only on the text and the call's index. `tools` give types of arguments in XML; an argument
    without a type is text.
    """
    return [openai_call(call, text, i) for i, call in enumerate(form.calls(text, tools))]


def openai_call(call: Call, text: str, index: int) -> dict[str, Any]:
    arguments = call.raw if call.name is None else json.dumps(call.arguments, ensure_ascii=False)
    function = {"name": call.name or "", "arguments": arguments}
    return {"id": content_hash([text, index])[:9], "type": "function", "function": function}


def format_of_template(template: str) -> Format | None:
    """Return the format of the calls that a chat template writes; None if hone can't read this format."""
    if GLM_SIGN in template:
        return None
    return next((form for form in FORMATS if any(sign in template for sign in form.signs)), None)


def _call(value: Any) -> Call | None:
    """Return a JSON value as a Call; None if it is no call. Arguments may be an object, JSON text, or missing."""
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str) or not name.strip():
        return None
    arguments = value.get("arguments", value.get("parameters"))
    if arguments is None:
        arguments = {}
    if isinstance(arguments, str):
        arguments = read_object(arguments)
    return Call(name.strip(), arguments) if isinstance(arguments, dict) else None


# One reader for each format. A reader gets the place where a call starts, and returns the place to go on.


def _malformed(text: str, start: int) -> tuple[list[Call], int]:
    """Return a malformed call and its end: the closing tag or the next call, whichever is first, or the text's end."""
    end, following = text.find("</tool_call>", start), text.find("<tool_call>", start)
    closed = end >= 0 and not 0 <= following < end
    if not closed:
        end = following if following >= 0 else len(text)
    return [Call(None, {}, text[start:end].strip())], end + len("</tool_call>") * closed


def _read_hermes(text: str, at: int, tools: Sequence[Tool]) -> tuple[list[Call], int]:
    body = at + len("<tool_call>")
    value, end = read_json(text, skip_space(text, body))
    end = skip_space(text, end)
    call = _call(value)
    if call is not None and text.startswith("</tool_call>", end):
        return [call], end + len("</tool_call>")
    return _malformed(text, body)


_FUNCTION = re.compile(r"\s*<function=([^<>\n]+)>")
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]+)>(.*?)</parameter>", re.DOTALL)
_FUNCTION_END = re.compile(r"\s*</function>\s*</tool_call>")


def _read_xml(text: str, at: int, tools: Sequence[Tool]) -> tuple[list[Call], int]:
    body = at + len("<tool_call>")
    malformed = _malformed(text, body)
    head = _FUNCTION.match(text, body)
    if head is None:
        return malformed
    name, at = head.group(1).strip(), head.end()
    types = _types(name, tools)
    arguments: dict[str, Any] = {}
    while match := _PARAMETER.match(text, at):
        key = match.group(1).strip()
        if key in arguments:
            return malformed
        value = match.group(2).removeprefix("\n").removesuffix("\n")
        arguments[key] = _typed(value, types.get(key))
        at = match.end()
    end = _FUNCTION_END.match(text, at)
    if end is None or end.end() - body > MAX_CHARS:
        return malformed
    return [Call(name, arguments)], end.end()


def _types(name: str, tools: Sequence[Tool]) -> dict[str, Any]:
    for tool in tools:
        function = tool.get("function", tool)
        if function.get("name") == name:
            parameters = function.get("parameters")
            properties = parameters.get("properties") if isinstance(parameters, dict) else None
            schemas = properties.items() if isinstance(properties, dict) else ()
            return {key: schema.get("type", "any") for key, schema in schemas if isinstance(schema, dict)}
    return {}


def _typed(text: str, kind: Any) -> Any:
    if kind is None or kind == "string":
        return text
    value, end = read_json(text, skip_space(text, 0))
    return text if text[end:].strip() or (value is None and text.strip() != "null") else value


def _read_llama(text: str, at: int, tools: Sequence[Tool]) -> tuple[list[Call], int]:
    tagged = text.startswith("<|python_tag|>", at)
    start = skip_space(text, at + len("<|python_tag|>") if tagged else at)
    calls: list[Call] = []
    at = start
    while len(calls) < MAX_CALLS:
        value, end = read_json(text, at)
        call = _call(value) if isinstance(value, dict) and value.keys() & {"arguments", "parameters"} else None
        if call is None:
            break
        calls.append(call)
        at = skip_space(text, end)
        if text.startswith(";", at):
            at = skip_space(text, at + 1)
    unread = text[at:]
    if not calls and not tagged and not _LOOKS_LIKE_A_CALL.match(unread):
        return [], len(text)
    if (tagged and unread) or _LOOKS_LIKE_A_CALL.match(unread):
        calls.append(Call(None, {}, unread.strip()))
    return calls, len(text)


_LOOKS_LIKE_A_CALL = re.compile(r'\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:')
HERMES = Format("hermes", re.compile("<tool_call>"), _read_hermes, ("<tool_call>",))
XML = Format("xml", re.compile("<tool_call>"), _read_xml, ("<function=",))
LLAMA = Format(
    "llama",
    re.compile(r"<\|python_tag\|>|(?:(?<=</think>)|\A)\s*\{"),
    _read_llama,
    ("<|python_tag|>", '"parameters": dictionary'),
    tokens=("<|python_tag|>",),
)
GLM_SIGN = "<arg_key>"
"""A text that only GLM's calls contain. GLM uses Hermes' tags with other content."""
FORMATS = (XML, HERMES, LLAMA)
"""`format_of_template` tries these in order."""

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
"""The instruction that Hermes and Qwen models were trained with."""


def without_tools(messages: Sequence[Message], tools: Sequence[Tool] | None) -> list[Message]:
    """Return the conversation with tools in Hermes' form, for a template that knows neither tools nor tool messages."""
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
    """Return the call with arguments as an object, as chat templates expect. Text that is no JSON object stays."""
    function = dict(call.get("function") or call)
    if isinstance(function.get("arguments"), str):
        value = read_object(function["arguments"])
        function["arguments"] = function["arguments"] if value is None else value
    return {**call, "function": function} if "function" in call else function


def _written(call: dict[str, Any]) -> str:
    function = with_objects(call).get("function") or call
    body = {"name": function.get("name", ""), "arguments": function.get("arguments", {})}
    return f"<tool_call>\n{json.dumps(body, ensure_ascii=False)}\n</tool_call>"
