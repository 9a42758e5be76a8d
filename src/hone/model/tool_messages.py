"""Messages of tools as chat templates take them, and for templates that know no tools."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hone.model.strict_json import read_object
from hone.model.tool_calls import Tool
from hone.types import Message

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
