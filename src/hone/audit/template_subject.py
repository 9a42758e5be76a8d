"""A model's chat template as an audit sees it: hone's renderer, what is said through it, and what may go wrong."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from hone.audit.report import Verdict
from hone.errors import UserError
from hone.model.chat import ChatRenderer, RendererParts
from hone.model.rendering import TemplateRendering
from hone.model.tool_calls import HERMES, Tool
from hone.types import Message, content_hash

TOOLS: list[Tool] = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "finds a word",
            "parameters": {
                "type": "object",
                "properties": {"word": {"type": "string"}, "most": {"type": "integer"}, "more": {"type": "object"}},
                "required": ["word"],
            },
        },
    }
]
MOST_KEPT = 256
"""Texts that are kept: several rules look at one conversation."""
EMPTY_THOUGHT = re.compile(r"\s*(?:<think>)?\s*</think>\s*")


@dataclass(frozen=True)
class Conversation:
    """Messages, with calls as `tool_calls` beside the text, and the tools that they may call."""

    messages: list[Message]
    tools: list[Tool] | None = None

    @property
    def finished(self) -> bool:
        return self.messages[-1].get("role") == "assistant"

    @property
    def prompt(self) -> list[Message]:
        """The messages before the answer, of a finished conversation."""
        return self.messages[:-1]

    def upto(self, count: int) -> Conversation:
        return replace(self, messages=self.messages[:count])

    def saying(self, index: int, content: Any) -> Conversation:
        """The same with other content of one message."""
        changed = {**self.messages[index], "content": content}
        return replace(self, messages=[*self.messages[:index], changed, *self.messages[index + 1 :]])

    def json(self) -> str:
        """The conversation as JSON to copy."""
        record: dict[str, Any] = {"messages": self.messages} | ({"tools": self.tools} if self.tools else {})
        return json.dumps(record, ensure_ascii=False)


@dataclass(frozen=True)
class Problem:
    """What a conversation shows: a finding's name and `what`, the difference in words, and how bad it is, if that is
    not what is usual for the name (see template_findings.py).
    """

    name: str
    what: str
    conversation: Conversation
    difference: str
    verdict: Verdict | None = None

    @property
    def key(self) -> tuple[str, str]:
        return self.name, self.what


class ChatSubject:
    """A renderer with what the checks ask of it.

    `declared`: the ids at which the model's files end generation. `controls`: the special tokens by their text.
    """

    def __init__(self, parts: RendererParts) -> None:
        self.renderer = ChatRenderer(*parts)
        self.tokenizer = parts.tokenizer
        self.rendering = parts.rendering
        self.declared = parts.stop_ids
        added = self.tokenizer.get_added_tokens_decoder()
        self._texts: dict[tuple[str, bool], str] = {}
        self.controls = {token.content: i for i, token in sorted(added.items()) if token.special}

    @property
    def by_template(self) -> bool:
        """Whether the model's chat template renders, not the `renderers` package."""
        return isinstance(self.rendering, TemplateRendering)

    @property
    def takes_tools(self) -> bool:
        return self.rendering.format is not None or not self.by_template

    @property
    def speaks_beside_calls(self) -> bool:
        """Whether text may stand before a call in one turn."""
        form = self.rendering.format
        return form is not None and not form.only_calls and form.name != "llama"

    @property
    def structured(self) -> bool:
        """Whether calls are written anew from `tool_calls`, not as the model wrote them."""
        return self.rendering.format is None or self.rendering.format.structured

    def answer(self, text: str, thought: str | None = None, calls: Sequence[dict[str, Any]] = ()) -> Message:
        """A turn of the assistant. Where the template opens a thought there is one."""
        if thought is None and self.renderer.opened_by_template:
            thought = "hm"
        content = text if thought is None else f"<think>\n{thought}\n</think>\n\n{text}"
        return {"role": "assistant", "content": content} | ({"tool_calls": list(calls)} if calls else {})

    def text(self, conversation: Conversation, opens: bool | None = None) -> str:
        """The conversation as the template writes it, ready for the next turn unless it is finished."""
        opens = not conversation.finished if opens is None else opens
        key = (conversation.json(), opens)
        if key not in self._texts:
            if len(self._texts) >= MOST_KEPT:
                self._texts.clear()
            self._texts[key] = self.renderer.text(conversation.messages, opens, conversation.tools)
        return self._texts[key]

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)

    def has_controls(self, text: Any) -> bool:
        """Whether text holds that of a special token."""
        return isinstance(text, str) and any(token in text for token in self.controls)

    @cached_property
    def lead(self) -> str:
        """The white space that the template writes before an answer, which a model has learnt to write: Mistral's."""
        asked = [user("a")]
        answered = self.text(Conversation([*asked, self.answer("b")]))
        rest = answered[len(self.text(Conversation(asked))) :]
        return rest[: len(rest) - len(rest.lstrip())]

    def said(self, message: Message, tools: list[Tool] | None) -> list[int]:
        """The ids that a model samples to say this."""
        text = (message.get("content") or "").removeprefix(self.renderer.opened_by_template)
        if calls := message.get("tool_calls"):
            text += ("\n" if text and not text.endswith("\n") else "") + self._written(calls, tools)
        lead = self.lead if text.strip() and not text[0].isspace() else ""
        return [*self.encode(lead + text), self.renderer.end_of_turn_id]

    def play(self, conversation: Conversation) -> tuple[list[int], list[Message]]:
        """The ids that training sees, and the messages as hone keeps them, up to the last answer to the assistant.

        The prompt, each turn as it is sampled, and each bridge. Raises UserError where hone can't go on.
        """
        messages, tools = conversation.messages, conversation.tools
        at = next(i for i, message in enumerate(messages) if message["role"] == "assistant")
        kept = messages[:at]
        ids = self.renderer.prompt_ids(kept, tools)
        while at < len(messages):
            own = self.said(messages[at], tools)
            turn = self.renderer.message(own, tools)
            answers = list(itertools.takewhile(lambda m: m["role"] != "assistant", messages[at + 1 :]))
            if not answers:
                break
            answers = list(_with_ids(answers, turn))
            kept = [*kept, turn]
            ids = [*ids, *own, *self.renderer.bridge_ids(kept, answers, tools)]
            kept += answers
            at += 1 + len(answers)
        return ids, kept

    def _written(self, calls: list[dict[str, Any]], tools: list[Tool] | None) -> str:
        """Calls as the model's family writes them."""
        if self.rendering.format is HERMES:
            bodies = [
                f'{{"name": {json.dumps(call["function"]["name"])}, "arguments": {call["function"]["arguments"]}}}'
                for call in calls
            ]
            return "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)
        turn: Message = {"role": "assistant", "content": "", "tool_calls": calls}
        ids = self.renderer.completion_ids([user("a")], turn, tools)
        written = self.decode(ids[:-1] if ids[-1] in self.renderer.stop_ids else ids)
        return EMPTY_THOUGHT.sub("", written, count=1).strip() if EMPTY_THOUGHT.match(written) else written.strip()


def user(content: Any) -> Message:
    return {"role": "user", "content": content}


def system(content: Any) -> Message:
    return {"role": "system", "content": content}


def tool(call: dict[str, Any], content: Any) -> Message:
    """What a tool says to a call."""
    return {"role": "tool", "name": call["function"]["name"], "tool_call_id": call["id"], "content": content}


def call_of(arguments: dict[str, Any], name: str = "look_up", index: int = 0) -> dict[str, Any]:
    """A call as hone keeps it; its id is nine letters and digits."""
    written = json.dumps(arguments, ensure_ascii=False)
    function = {"name": name, "arguments": written}
    return {"id": content_hash([written, index])[:9], "type": "function", "function": function}


def _with_ids(answers: Iterable[Message], turn: Message) -> Iterable[Message]:
    """The answers with the ids of the calls that the turn was read to make."""
    ids = iter([call["id"] for call in turn.get("tool_calls", [])])
    for answer in answers:
        known = next(ids, None) if answer["role"] == "tool" else None
        yield answer if known is None else {**answer, "tool_call_id": known}


def in_short(error: UserError) -> str:
    """A refusal without hone's remedy."""
    text = str(error)
    for remedy in ("; give a template", ": give a template", ": change the messages"):
        text = text.split(remedy)[0]
    return text
