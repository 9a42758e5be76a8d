"""A completion as turns of a chat: what the policy said, the tools that it called, what came back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from hone.runs.checked import parse_json
from hone.types import Message


@dataclass(frozen=True)
class Call:
    """A call of a tool: its arguments by name as they are displayed. `raw`: of one that could not be read, its text."""

    name: str
    arguments: list[tuple[str, str]]
    raw: str = ""


@dataclass(frozen=True)
class Turn:
    """A message. `policy`: the how-manieth that the policy sampled, from 0; None if the environment wrote it."""

    role: str
    text: str
    name: str = ""
    calls: tuple[Call, ...] = ()
    policy: int | None = None


def turns(messages: list[Message], sampled: bool = True) -> list[Turn]:
    """The turns of messages; with `sampled`, those of the assistant are the policy's."""
    made: list[Turn] = []
    count = 0
    for message in messages:
        role = str(message.get("role") or "?")
        mine = sampled and role == "assistant"
        made.append(
            Turn(role, text_of(message), str(message.get("name") or ""), _calls(message), count if mine else None)
        )
        count += mine
    return made


def messages_of(text: str | None) -> list[Message]:
    """The messages in a column that holds them as JSON; a column that can't be read is one message with its text."""
    if not text:
        return []
    try:
        found = parse_json(text)
    except ValueError:
        return [{"role": "?", "content": text}]
    return found if is_messages(found) else [{"role": "?", "content": text}]


def is_messages(value: Any) -> bool:
    """Whether a value can be shown as messages."""
    return isinstance(value, list) and all(isinstance(message, dict) for message in value)


def completion_of(row: dict[str, Any]) -> list[Message]:
    """The messages of a row's completion: one of the assistant, or those of several turns."""
    return messages_of(row.get("completion")) or [{"role": "assistant", "content": row.get("text") or ""}]


def of_row(row: dict[str, Any]) -> list[Turn]:
    """The turns of a row's completion."""
    return turns(completion_of(row))


def asks(messages: list[Message]) -> str:
    """What a prompt asks: its last message."""
    return text_of(messages[-1]) if messages else ""


def text_of(message: Message) -> str:
    """The text of a message, of its parts if it has several."""
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text", part) if isinstance(part, dict) else part for part in content]
        return "\n".join(part if isinstance(part, str) else _json(part) for part in parts)
    return content if isinstance(content, str) else "" if content is None else _json(content)


def _calls(message: Message) -> tuple[Call, ...]:
    calls = message.get("tool_calls")
    return tuple(_call(one) for one in calls) if isinstance(calls, list) else ()


def _call(one: Any) -> Call:
    function = one.get("function") if isinstance(one, dict) else None
    if not isinstance(function, dict):
        return Call("", [], _json(one))
    name, arguments = function.get("name") or "", function.get("arguments")
    if isinstance(arguments, str):
        raw = arguments
        try:
            arguments = parse_json(arguments)
        except ValueError:
            return Call(str(name), [], raw)
        if not name:
            return Call("", [], raw)
    if not isinstance(arguments, dict):
        return Call(str(name), [], "" if arguments is None else _json(arguments))
    return Call(str(name), [(str(key), v if isinstance(v, str) else _json(v)) for key, v in arguments.items()])


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
