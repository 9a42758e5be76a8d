"""A completion as turns of a chat, with tool calls."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from hone.runs.files import parse_json
from hone.types import Message


@dataclass(frozen=True)
class Call:
    """A tool call: name and displayed arguments, or the `raw` text of a malformed call."""

    name: str
    arguments: list[tuple[str, str]]
    raw: str = ""


@dataclass(frozen=True)
class Turn:
    """A message. `policy` is its index among the sampled messages; None if the environment wrote it."""

    role: str
    text: str
    name: str = ""
    calls: tuple[Call, ...] = ()
    policy: int | None = None


def turns(messages: list[Message], sampled: bool = True) -> list[Turn]:
    """Return messages as turns. `sampled` is true if the policy wrote the assistant's messages."""
    made: list[Turn] = []
    for message in messages:
        role, calls = str(message.get("role") or "?"), message.get("tool_calls")
        policy = sum(turn.policy is not None for turn in made) if sampled and role == "assistant" else None
        called = tuple(map(_call, calls)) if isinstance(calls, list) else ()
        made.append(Turn(role, text_of(message), str(message.get("name") or ""), called, policy))
    return made


def messages_of(text: str | None) -> list[Message]:
    """Parse JSON messages; if this fails, return the text as one message."""
    try:
        found = parse_json(text or "[]")
    except ValueError:
        found = None
    return found if found is not None and is_messages(found) else [{"role": "?", "content": text}]


def is_messages(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(message, dict) for message in value)


def turns_of_row(row: dict[str, Any]) -> list[Turn]:
    return turns(messages_of(row.get("completion")) or [{"role": "assistant", "content": row.get("text") or ""}])


def asks(messages: list[Message]) -> str:
    return text_of(messages[-1]) if messages else ""


def text_of(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text", part) if isinstance(part, dict) else part for part in content]
        return "\n".join(map(_text, parts))
    return "" if content is None else _text(content)


def _call(one: Any) -> Call:
    function = one.get("function") if isinstance(one, dict) else None
    if not isinstance(function, dict):
        return Call("", [], _text(one))
    name, given = str(function.get("name") or ""), function.get("arguments")
    try:
        arguments = parse_json(given) if isinstance(given, str) else given
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict) or not name:
        return Call(name, [], "" if given is None else _text(given))
    return Call(name, [(str(key), _text(value)) for key, value in arguments.items()])


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
