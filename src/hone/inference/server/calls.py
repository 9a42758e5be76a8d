"""Tool calls in what a sample says: shown as OpenAI's `tool_calls`, and left out of its text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hone.inference.server.generation import Delta
from hone.inference.types import Token
from hone.model.chat import ChatRenderer
from hone.model.tool_calls import Tool

OPENING = "<tool_call>"
"""Text that may start a call is kept back until it is clear whether it does."""


@dataclass(frozen=True)
class Shown:
    """What can be shown of a sample now."""

    text: str
    calls: list[dict[str, Any]]
    finish_reason: str | None


class CallReader:
    """One sample of a request with tools. Calls come at its end, all at once; the text before them as it is sampled.

    Text that was cut, or that holds a call that cannot be read, is shown as it is.
    """

    def __init__(self, renderer: ChatRenderer, tools: list[Tool]) -> None:
        self._renderer, self._tools = renderer, tools
        self._text = ""
        self._shown = 0
        self._tokens: list[Token] = []

    def push(self, delta: Delta) -> Shown:
        """Takes what the sample has gained."""
        self._text += delta.text
        self._tokens += delta.tokens
        if delta.finish_reason is None:
            return Shown(self._show(self._certain()), [], None)
        text, calls = self._text, []
        if delta.finish_reason == "stop" and delta.stop is None:
            message = self._renderer.message([token.id for token in self._tokens], self._tools)
            calls = message.get("tool_calls", [])
            if calls and all(call["function"]["name"] for call in calls):
                text = self._renderer.before_calls(message["content"])
                text = text.removeprefix(self._renderer.opened_by_template)
            else:
                calls = []
        return Shown(self._show(text), calls, "tool_calls" if calls else delta.finish_reason)

    def _show(self, text: str) -> str:
        """What of `text`, with which the sample begins, is new."""
        new = text[self._shown :]
        self._shown = max(self._shown, len(text))
        return new

    def _certain(self) -> str:
        """The text so far that no call begins in, without the white space at its end."""
        if not self._renderer.calls_are_text:
            return ""
        at = self._text.find(OPENING)
        if at < 0:
            partial = (n for n in range(len(OPENING) - 1, 0, -1) if self._text.endswith(OPENING[:n]))
            at = len(self._text) - next(partial, 0)
        return self._text[:at].rstrip()
