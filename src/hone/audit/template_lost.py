"""Why a text does not stand in what a chat template writes, found out by writing others in its place."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable

from hone.audit.report import Verdict
from hone.audit.template_subject import ChatSubject, Conversation, Problem, user
from hone.errors import UserError
from hone.model.chat import THINK
from hone.model.rendering import END_THINK, squeeze

TAG = r"(?:(?!</?think>).)*"
WELL_FORMED = re.compile(rf"(?:<think>\n{TAG}\n</think>\n\n)?{TAG}", re.DOTALL)
"""A turn whose thought, if it has one, is written as templates write it."""
CHANGES: dict[str, Callable[[str], str]] = {
    "lower-case": str.lower,
    "NFC": lambda text: unicodedata.normalize("NFC", text),
    "NFKC": lambda text: unicodedata.normalize("NFKC", text),
    "NFKC and lower-case": lambda text: unicodedata.normalize("NFKC", text).lower(),
    "white space": lambda text: " ".join(text.split()),
}
PLAIN = "plain words"
SYNTAX = re.compile(r"[{}%#\\$]")


def lost(subject: ChatSubject, conversation: Conversation, index: int, text: str, written: str) -> Problem:
    """The problem of a message whose text does not stand in what is written."""
    message = conversation.messages[index]
    role = str(message["role"])
    difference = f"{text[:80]!r} of {role} is not in {written[-160:]!r}"
    if not isinstance(message["content"], str):
        return Problem("loses-text", "parts", conversation, difference)
    if not _kept(subject, conversation, index, PLAIN):
        return Problem("loses-text", role, conversation, difference)
    if misplaced := _misplaced(subject, conversation):
        return Problem(*misplaced, conversation, difference)
    for name, change in {"strip": str.strip, **CHANGES}.items():
        changed = change(text)
        if changed == text or _written_with(subject, conversation, index, changed) != written:
            continue
        if changed.strip() and find(subject, written, changed.strip(), 0) < 0:
            continue  # left out alike
        if name == "strip":
            return Problem("strips-text", role, conversation, difference)
        verdict = Verdict.FAIL if role == "assistant" and name != "white space" else None
        return Problem("changes-text", name, conversation, difference, verdict)
    if text.strip() not in ("", text) and find(subject, written, text.strip(), 0) >= 0:
        return Problem("strips-text", role, conversation, difference)
    if SYNTAX.search(text) and _kept(subject, conversation, index, SYNTAX.sub("a", text)):
        return Problem("evaluates", role, conversation, difference)
    if role == "assistant" and (THINK in text or END_THINK in text):
        return _lost_thought(subject, conversation, index, text, difference)
    return Problem("changes-text", "letters", conversation, difference, Verdict.FAIL)


def _misplaced(subject: ChatSubject, conversation: Conversation) -> tuple[str, str] | None:
    """Whether messages are left out or change places, seen by giving each words of its own."""
    last = len(conversation.messages) - 1
    told = [
        index
        for index, message in enumerate(conversation.messages)
        if isinstance(message.get("content"), str)
        and message["content"]
        and (message["role"] != "assistant" or index == last)
    ]
    named = conversation
    for index in told:
        named = named.saying(index, f"{PLAIN} {index}")
    written, at = subject.text(named), 0
    for index in told:
        found = written.find(f"{PLAIN} {index}")
        if found < at:
            return "loses-text" if found < 0 else "reorders", str(named.messages[index]["role"])
        at = found
    return None


def _lost_thought(subject: ChatSubject, conversation: Conversation, index: int, text: str, difference: str) -> Problem:
    if not WELL_FORMED.fullmatch(text):
        return Problem("think-tags", "stray", conversation, difference)
    if squeeze(text) in squeeze(subject.text(conversation)):
        return Problem("moves-white-space", "thought", conversation, difference)
    plain = Conversation([user("a"), conversation.messages[index]])
    if text in subject.text(plain):  # what was asked looks like no question to the template
        return Problem("think-stripping", "odd questions", conversation, difference, Verdict.WARN)
    return Problem("think-stripping", "answer", conversation, difference)


def kind_of_change(text: str, back: str) -> str:
    """The name of what a tokenizer changed."""
    for name, change in {**CHANGES, "white space around": str.strip}.items():
        if change(text).strip() == back.strip():
            return name
    return "unknown characters" if len(back) < len(text) or "\ufffd" in back else "letters"


def _kept(subject: ChatSubject, conversation: Conversation, index: int, text: str) -> bool:
    """Whether another text in this place is written as it is."""
    written = _written_with(subject, conversation, index, text)
    return written is not None and find(subject, written, text, 0) >= 0


def _written_with(subject: ChatSubject, conversation: Conversation, index: int, text: str) -> str | None:
    """What is written with another text in this place; None if that is refused."""
    try:
        return subject.text(conversation.saying(index, text))
    except UserError:
        return None


def find(subject: ChatSubject, written: str, text: str, start: int) -> int:
    """Where a text stands as it is, or as JSON has it within quotes; -1 if nowhere."""
    forms = [text, json.dumps(text, ensure_ascii=False)[1:-1], json.dumps(text)[1:-1]]
    if not subject.by_template:  # known by its ids alone: what the tokenizer changes is told apart
        forms.append(subject.decode(subject.encode(text)))
    return min((at for form in forms if (at := written.find(form, start)) >= 0), default=-1)
