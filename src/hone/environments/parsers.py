"""Parsers find the answer in a completion. None means that there is no well-formed one, which is not a wrong one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from hone.types import Message

_THINK = re.compile(r"</?think>")


def message_text(message: Message) -> str:
    """The text of a message; of a list of content parts, the text parts joined."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content if isinstance(part, dict))
    return content or ""


def completion_text(completion: str | Sequence[Message]) -> str:
    """The text that is graded: the string itself, or the last assistant message ('' if there is none)."""
    if isinstance(completion, str):
        return completion
    return next((message_text(m) for m in reversed(completion) if m.get("role") == "assistant"), "")


def said(text: str) -> str:
    """`text` without what was thought, and without the markers `<|…|>` that a server may leave at its end."""
    kept: list[str] = []
    start, thinking = 0, False
    for tag in _THINK.finditer(text):
        if tag.group() == "<think>":
            if not thinking:
                kept.append(text[start : tag.start()])
            thinking = True
        else:
            if not thinking:
                kept.clear()
            start, thinking = tag.end(), False
    if not thinking:
        kept.append(text[start:])
    return _without_specials("\n".join(kept))


class Parser:
    """The answer is the whole text, without surrounding whitespace. Subclasses override `parse`."""

    expects = "an answer"
    """What a well-formed completion holds, in words: an unparsable one is said to lack it."""

    def parse(self, text: str) -> str | None:
        """The answer in `text`, or None if there is no well-formed one."""
        return text.strip() or None

    def parse_answer(self, completion: str | Sequence[Message]) -> str | None:
        """The text of the answer in a completion: of a list of messages, in the last one of the assistant."""
        return self.parse(completion_text(completion))

    def value(self, completion: str | Sequence[Message]) -> Any:
        """What the answer in a completion says, or None: its text, unless the parser reads more than text."""
        return self.parse_answer(completion)


class TagParser(Parser):
    """The answer is what stands in the last well-formed pair `<tag>…</tag>`.

    A pair is well-formed if neither tag occurs inside it and something other than whitespace does; text after it is
    ignored, an unclosed tag too, and what was thought before it (see `said`). Whitespace around the answer, line breaks
    included, is stripped; inside it is kept.
    """

    def __init__(self, tag: str) -> None:
        assert re.fullmatch(r"\w+", tag), tag
        self.tag, self.opening, self.closing = tag, f"<{tag}>", f"</{tag}>"
        self.expects = f"a {self.opening}…{self.closing} pair"
        self._tags = re.compile(f"</?{tag}>")

    def parse(self, text: str) -> str | None:
        answer, start = None, -1
        text = text if self.tag == "think" else said(text)
        for match in self._tags.finditer(text):
            if match.group() == self.opening:
                start = match.end()
            elif start >= 0:
                answer = text[start : match.start()].strip() or answer
                start = -1
        return answer

    def wrap(self, answer: str) -> str:
        """`answer` between the tags."""
        return f"{self.opening}{answer}{self.closing}"


def _without_specials(text: str) -> str:
    end = len(text)
    while True:
        while end and text[end - 1].isspace():
            end -= 1
        start = text.rfind("<|", max(0, end - 64), end)
        if not text.startswith("|>", end - 2) or start < 0 or "|" in text[start + 2 : end - 2]:
            return text[:end]
        end = start
