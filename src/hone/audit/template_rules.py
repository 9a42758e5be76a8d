"""What must hold of every conversation that a chat template writes.

A rule looks at one conversation and returns the first `Problem` that it sees, or None. Rules stand in an order in which
each may rely on those before it, so one cause is one finding.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hone.audit.report import Verdict
from hone.errors import UserError
from hone.model.chat import THINK, ChatRenderer, RendererParts
from hone.model.rendering import END_THINK, TemplateRendering, squeeze
from hone.model.tool_calls import HERMES, Tool
from hone.types import Message, content_hash

_TAG = r"(?:(?!</?think>).)*"
WELL_FORMED = re.compile(rf"(?:<think>\n{_TAG}\n</think>\n\n)?{_TAG}", re.DOTALL)
"""A turn whose thought, if it has one, is written as templates write it."""
CHANGES: dict[str, Callable[[str], str]] = {
    "strip": str.strip,
    "lower-case": str.lower,
    "NFC": lambda text: unicodedata.normalize("NFC", text),
    "NFKC": lambda text: unicodedata.normalize("NFKC", text),
    "white space": lambda text: " ".join(text.split()),
}
AWKWARD = {"think tags": (THINK, END_THINK), "tags": ("<", ">", "[")}
"""What in arguments may be taken for the end of a call or of a thought."""
EMPTY = "an empty answer"
_SYNTAX = re.compile(r"[{}%#\\$]")
_EMPTY_THOUGHT = re.compile(r"\s*(?:<think>)?\s*</think>\s*")


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

    def saying(self, index: int, content: Any) -> Conversation:
        """Return the same with other content of one message."""
        changed = {**self.messages[index], "content": content}
        return replace(self, messages=[*self.messages[:index], changed, *self.messages[index + 1 :]])

    def json(self) -> str:
        record: dict[str, Any] = {"messages": self.messages} | ({"tools": self.tools} if self.tools else {})
        return json.dumps(record, ensure_ascii=False)


@dataclass(frozen=True)
class Problem:
    """A finding's name and `what`, the conversation that shows it, the difference in words, and how bad it is, if that
    is not what is usual for the name.
    """

    name: str
    what: str
    conversation: Conversation
    difference: str
    verdict: Verdict | None = None

    @property
    def key(self) -> tuple[str, str]:
        return self.name, self.what


Rule = Callable[["ChatSubject", Conversation], Problem | None]


def user(content: Any) -> Message:
    return {"role": "user", "content": content}


def call_of(arguments: dict[str, Any], index: int = 0) -> dict[str, Any]:
    """Return a call as hone keeps it; its id is nine letters and digits."""
    written = json.dumps(arguments, ensure_ascii=False)
    function = {"name": "look_up", "arguments": written}
    return {"id": content_hash([written, index])[:9], "type": "function", "function": function}


def in_short(error: UserError) -> str:
    """Return a refusal without hone's remedy."""
    return re.split(r"; give a template|: give a template|: change the messages", str(error))[0]


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
        self.controls = {token.content: i for i, token in sorted(added.items()) if token.special}
        self._texts: dict[tuple[str, bool], str] = {}

    @property
    def by_template(self) -> bool:
        """True if the model's chat template renders, not the `renderers` package."""
        return isinstance(self.rendering, TemplateRendering)

    @property
    def takes_tools(self) -> bool:
        return self.rendering.format is not None or not self.by_template

    @property
    def speaks_beside_calls(self) -> bool:
        """True if text may stand before a call in one turn."""
        form = self.rendering.format
        return form is not None and form.name != "llama"

    def answer(self, text: str, thought: str | None = None, calls: Sequence[dict[str, Any]] = ()) -> Message:
        """Return a turn of the assistant. Where the template opens a thought there is one."""
        if thought is None and self.renderer.opened_by_template:
            thought = "hm"
        content = text if thought is None else f"<think>\n{thought}\n</think>\n\n{text}"
        return {"role": "assistant", "content": content} | ({"tool_calls": list(calls)} if calls else {})

    def text(self, conversation: Conversation, opens: bool | None = None) -> str:
        """Return the conversation as the template writes it, ready for the next turn unless it is finished."""
        opens = not conversation.finished if opens is None else opens
        key = (conversation.json(), opens)
        if key not in self._texts:
            self._texts[key] = self.renderer.text(conversation.messages, opens, conversation.tools)
        return self._texts[key]

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)

    def has_controls(self, *texts: Any) -> bool:
        """Return True if texts hold that of a special token."""
        return any(token in str(text) for token in self.controls for text in texts)

    def sampled_ids(self, message: Message, tools: list[Tool] | None) -> list[int]:
        """Return the ids that a model samples to say this."""
        text = (message.get("content") or "").removeprefix(self.renderer.opened_by_template)
        if calls := message.get("tool_calls"):
            text += ("\n" if text and not text.endswith("\n") else "") + self._written_calls(calls, tools)
        return [*self.encode(text), self.renderer.end_of_turn_id]

    def play(self, conversation: Conversation) -> tuple[list[int], list[Message]]:
        """Return the ids that training sees, and the messages as hone keeps them, up to the last answer.

        The prompt, each turn as it is sampled, and each bridge. Raises UserError where hone can't go on.
        """
        messages, tools = conversation.messages, conversation.tools
        at = next(i for i, message in enumerate(messages) if message["role"] == "assistant")
        kept = messages[:at]
        ids = self.renderer.prompt_ids(kept, tools)
        while at < len(messages):
            own = self.sampled_ids(messages[at], tools)
            turn = self.renderer.message(own, tools)
            answers = list(itertools.takewhile(lambda m: m["role"] != "assistant", messages[at + 1 :]))
            if not answers:
                break
            at += 1 + len(answers)
            called = iter([call["id"] for call in turn.get("tool_calls", [])])
            for i, answer in enumerate(answers):
                if answer["role"] == "tool" and (known := next(called, None)) is not None:
                    answers[i] = {**answer, "tool_call_id": known}
            kept = [*kept, turn]
            ids = [*ids, *own, *self.renderer.bridge_ids(kept, answers, tools)]
            kept += answers
        return ids, kept

    def _written_calls(self, calls: list[dict[str, Any]], tools: list[Tool] | None) -> str:
        """Return calls as the model's family writes them."""
        if self.rendering.format is HERMES:
            bodies = [
                f'{{"name": {json.dumps(call["function"]["name"])}, "arguments": {call["function"]["arguments"]}}}'
                for call in calls
            ]
            return "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)
        turn: Message = {"role": "assistant", "content": "", "tool_calls": calls}
        ids = self.renderer.completion_ids([user("a")], turn, tools)
        written = self.decode(ids[:-1] if ids[-1] in self.renderer.stop_ids else ids)
        return _EMPTY_THOUGHT.sub("", written, count=1).strip() if _EMPTY_THOUGHT.match(written) else written.strip()


def first_problem(
    subject: ChatSubject, conversation: Conversation, rules: Iterable[Rule] | None = None
) -> Problem | None:
    """Return the first rule that does not hold; None if all do. Without `rules`, of all."""
    for rule in RULES if rules is None else rules:
        try:
            problem = rule(subject, conversation)
        except UserError as error:
            roles = ", ".join(str(message["role"]) for message in conversation.messages)
            problem = Problem("refuses", f"a conversation of {roles}", conversation, in_short(error))
        except Exception as error:  # what a template or a package raises is what is looked for
            problem = Problem("crashes", type(error).__name__, conversation, f"{type(error).__name__}: {error}")
        if problem is not None:
            return problem
    return None


def keeps_texts(subject: ChatSubject, conversation: Conversation) -> Problem | None:
    """What messages say is written unchanged and in order; of earlier answers see `continues_history`."""
    try:
        written, at = subject.text(conversation), 0
    except UserError as error:
        for index, message in enumerate(conversation.messages):
            content = message.get("content")
            tame = _SYNTAX.sub("a", content) if isinstance(content, str) else content
            if tame != content and _written_with(subject, conversation, index, tame) is not None:
                return Problem("evaluates", str(message["role"]), conversation, in_short(error))
        raise
    for index, message in enumerate(conversation.messages):
        content = message.get("content")
        parts = [part.get("text") for part in content] if isinstance(content, list) else [content]
        earlier = message["role"] == "assistant" and index < len(conversation.messages) - 1
        for text in parts if not earlier else ():
            found = _find(subject, written, text, at) if text else at
            if found < 0:
                return _lost_text(subject, conversation, index, str(text), written)
            at = found
    return None


def _find(subject: ChatSubject, written: str, text: str, start: int = 0) -> int:
    """Return where a text stands as it is, or as JSON has it within quotes; -1 if nowhere."""
    forms = [text, json.dumps(text, ensure_ascii=False)[1:-1], json.dumps(text)[1:-1]]
    if not subject.by_template:  # known by its ids alone: what the tokenizer changes is another finding
        forms.append(subject.decode(subject.encode(text)))
    return min((at for form in forms if (at := written.find(form, start)) >= 0), default=-1)


def _written_with(subject: ChatSubject, conversation: Conversation, index: int, text: Any) -> str | None:
    """Return what is written with another text in this place; None if that is refused."""
    try:
        return subject.text(conversation.saying(index, text))
    except UserError:
        return None


def _lost_text(subject: ChatSubject, conversation: Conversation, index: int, text: str, written: str) -> Problem:
    """Say why a text does not stand in what is written, by writing others in its place."""
    message = conversation.messages[index]
    role = str(message["role"])
    difference = f"{text[:80]!r} of {role} is not in {written[-160:]!r}"

    def is_kept(other: str) -> bool:
        instead = _written_with(subject, conversation, index, other)
        return instead is not None and _find(subject, instead, other) >= 0

    if not isinstance(message["content"], str) or not is_kept("plain words"):
        parts = not isinstance(message["content"], str)
        return Problem("loses-text", "parts" if parts else role, conversation, difference)
    if _find(subject, written, text) >= 0:
        return Problem("reorders", role, conversation, difference)
    for name, change in CHANGES.items():
        changed = change(text)
        if changed == text or not changed.strip() or _find(subject, written, changed.strip()) < 0:
            continue
        if _written_with(subject, conversation, index, changed) == written:
            if name == "strip":
                return Problem("strips-text", role, conversation, difference)
            verdict = Verdict.FAIL if role == "assistant" and name != "white space" else None
            return Problem("changes-text", name, conversation, difference, verdict)
    if text.strip() not in ("", text) and _find(subject, written, text.strip()) >= 0:
        return Problem("strips-text", role, conversation, difference)
    if _SYNTAX.search(text) and is_kept(_SYNTAX.sub("a", text)):
        return Problem("evaluates", role, conversation, difference)
    if role != "assistant" or (THINK not in text and END_THINK not in text):
        return Problem("changes-text", "letters", conversation, difference, Verdict.FAIL)
    if not WELL_FORMED.fullmatch(text):
        return Problem("think-tags", "stray", conversation, difference)
    if squeeze(text) in squeeze(written):
        return Problem("moves-white-space", "thought", conversation, difference)
    if text in subject.text(Conversation([user("a"), message])):  # what was asked looks like no question
        return Problem("think-stripping", "odd questions", conversation, difference, Verdict.WARN)
    return Problem("think-stripping", "answer", conversation, difference)


def opens_a_turn(subject: ChatSubject, conversation: Conversation) -> Problem | None:
    """The opening of the assistant's turn is appended to the conversation, and opens what hone knows that it opens."""
    if conversation.finished:
        return None
    prompt, history = subject.text(conversation, opens=True), subject.text(conversation, opens=False)
    if not prompt.startswith(history):
        return Problem("generation-prompt", "rewrites", conversation, parting(history, prompt))
    opening = prompt[len(history) :]
    begun = opening[opening.rfind(THINK) :] if THINK in opening else ""
    begun = "" if END_THINK in begun else begun
    known = subject.renderer.opened_by_template
    if history == prompt or begun == known:
        return None
    difference = f"it opens {begun!r} here, and {known!r} after one message of user"
    return Problem("opens-differently", str(conversation.messages[-1]["role"]), conversation, difference)


def continues(subject: ChatSubject, conversation: Conversation) -> Problem | None:
    """A finished turn continues its prompt, with what the assistant says and nothing before it."""
    if not conversation.finished:
        return None
    answer = conversation.messages[-1]
    prompt = subject.text(Conversation(conversation.prompt, conversation.tools), opens=True)
    full = subject.text(conversation)
    if not full.startswith(prompt):
        shape = EMPTY if _is_empty(answer) else "thought" if END_THINK in (answer["content"] or "") else "answer"
        shape, verdict = "calls" if answer.get("tool_calls") else shape, Verdict.WARN if _is_empty(answer) else None
        return Problem("rewrites-prompt", shape, conversation, parting(prompt, full), verdict)
    rest = full[len(prompt) :]
    text = (answer.get("content") or "").removeprefix(subject.renderer.opened_by_template)
    head = rest[: max(rest.find(text.strip()), 0)] if text.strip() else ""
    if not head.strip():
        return None
    difference = f"it writes {head!r} before {text[:40]!r}"
    if squeeze(head) in (f"{THINK}{END_THINK}", END_THINK):
        return Problem("adds-thought", "empty", conversation, difference)
    return Problem("no-generation-prompt", "opening", conversation, difference)


def ends(subject: ChatSubject, conversation: Conversation) -> Problem | None:
    """A finished turn ends with the token at which generation stops, which stands nowhere inside of it."""
    answer = conversation.messages[-1]
    if not conversation.finished or subject.has_controls(answer):
        return None
    ids = subject.rendering.continuation_ids(conversation.prompt, answer, conversation.tools)
    stops = [i for i, token in enumerate(ids) if token in subject.renderer.stop_ids]
    if not stops:
        return Problem("no-stop-token", "answer", conversation, f"the turn is {subject.decode(ids)[-60:]!r}")
    inside, rest = subject.decode(ids[: stops[0]]), subject.tokenizer.decode(ids[stops[0] + 1 :])
    text = answer.get("content") or ""
    called = subject.renderer.before_calls(text) != text  # then what is in `tool_calls` is not written again
    names = [] if called else [call["function"]["name"] for call in answer.get("tool_calls", [])]
    spoken = subject.decode(subject.encode(text.removeprefix(subject.renderer.opened_by_template)))
    if squeeze(spoken) not in squeeze(inside) or any(name not in inside for name in names):
        ended = subject.decode(ids[: stops[0] + 1])
        return Problem("stop-inside", "calls" if names else "answer", conversation, f"the turn ends after {ended!r}")
    if rest.strip():
        return Problem("always-opens", "answer", conversation, f"it writes {rest!r} after the turn's end")
    return None


def calls_are_read(subject: ChatSubject, conversation: Conversation) -> Problem | None:
    """Calls that the template writes are read back, with the arguments that they had."""
    answer = conversation.messages[-1]
    calls = answer.get("tool_calls")
    if not conversation.finished or not calls or subject.has_controls(answer.get("content"), calls):
        return None
    difference = _unread_calls(subject, conversation)
    if difference is None:
        return None
    arguments = "".join(call["function"]["arguments"] for call in calls)
    tame = [{**call, "function": {**call["function"], "arguments": '{"word": "a"}'}} for call in calls]
    plain = Conversation([*conversation.prompt, {**answer, "tool_calls": tame}], conversation.tools)
    if _unread_calls(subject, plain) is not None:
        return Problem("tool-calls", "any", conversation, difference)
    kind = next((kind for kind, signs in AWKWARD.items() if any(sign in arguments for sign in signs)), "text")
    return Problem("tool-arguments", kind, conversation, difference)


def _unread_calls(subject: ChatSubject, conversation: Conversation) -> str | None:
    """Say why calls are not read as they were, as the template writes them or as a model does; None if they are."""
    answer = conversation.messages[-1]
    try:
        subject.renderer.completion_ids(conversation.prompt, answer, conversation.tools)
    except UserError as error:
        return in_short(error)
    said = subject.sampled_ids(answer, conversation.tools)
    read = subject.renderer.message(said, conversation.tools).get("tool_calls", [])
    kept, had = (
        [(call["function"]["name"], json.loads(call["function"]["arguments"] or "null")) for call in calls]
        for calls in (read, answer["tool_calls"])
    )
    return None if kept == had else f"{subject.decode(said)[:120]!r} is read as {kept}"


def continues_history(subject: ChatSubject, conversation: Conversation) -> Problem | None:
    """What was sampled, bridged to what answered it, is the conversation as the template writes it whole."""
    messages = conversation.prompt if conversation.finished else conversation.messages
    turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    if not turns or not _is_sound(subject) or subject.has_controls(*(messages[i] for i in turns)):
        return None
    for i in turns:
        earlier = Conversation(messages[: i + 1], conversation.tools)
        problem = first_problem(subject, earlier, (keeps_texts, continues, ends, calls_are_read))
        if problem is not None and problem.name not in ("adds-thought", "refuses"):
            return problem
    for count in (*turns[1:], len(messages)):  # the shortest that shows it
        asked = Conversation(messages[:count], conversation.tools)
        if (difference := _broken_history(subject, asked)) is not None:
            return _rewritten(subject, asked, *difference)
    return None


def _rewritten(subject: ChatSubject, asked: Conversation, difference: str, moved: bool) -> Problem:
    """Say what of earlier turns is rewritten in a conversation. `moved`: only white space."""
    turns = [message for message in asked.messages if message["role"] == "assistant"]
    answers = str(asked.messages[-1]["role"])
    is_empty = any(map(_is_empty, turns))
    if moved:
        return Problem("moves-white-space", EMPTY if is_empty else answers, asked, difference)
    whole = squeeze(subject.text(asked, opens=True))
    texts = [turn.get("content") or "" for turn in turns]
    if all(squeeze(text.split(END_THINK)[-1]) in whole for text in texts):
        stripped = [text for text in texts if END_THINK in text and squeeze(text) not in whole]
        thoughts = [squeeze(text.split(END_THINK)[0].removeprefix(THINK)) for text in stripped]
        if thoughts and answers != "user" and not any(thoughts):
            return Problem("think-stripping", "empty thoughts", asked, difference, Verdict.WARN)
        if thoughts:
            return Problem("think-stripping", answers, asked, difference)
    if not all(WELL_FORMED.fullmatch(text) for text in texts):
        return Problem("think-tags", "stray", asked, difference)
    if is_empty:
        return Problem("rewrites-history", EMPTY, asked, difference, Verdict.WARN)
    return Problem("rewrites-history", answers, asked, difference)


def _broken_history(subject: ChatSubject, conversation: Conversation) -> tuple[str, bool] | None:
    """Say how the ids of training and the template's writing differ, and if that is only white space; else None."""
    try:
        ids, kept = subject.play(conversation)
    except UserError as error:
        return in_short(error), False
    if subject.rendering.format is None and any(message.get("tool_calls") for message in kept):
        return None  # calls are written anew, with other ids and white space than the model's
    sampled = subject.decode(ids)
    whole = subject.decode(subject.renderer.prompt_ids(kept, conversation.tools))
    if sampled == whole:
        return None
    return parting(sampled, whole, "what was sampled", "the template"), squeeze(sampled) == squeeze(whole)


@functools.lru_cache(maxsize=8)
def _is_sound(subject: ChatSubject) -> bool:
    """Return True if one short turn continues its prompt and ends: else nothing can be said about several."""
    shortest = Conversation([user("a"), subject.answer("b")])
    problem = first_problem(subject, shortest, (keeps_texts, continues, ends))
    return problem is None or problem.name == "adds-thought"


def round_trips(subject: ChatSubject, conversation: Conversation) -> Problem | None:
    """Text that a model wrote comes back from its ids as it was."""
    text = conversation.messages[-1].get("content") or ""
    if not conversation.finished or subject.has_controls(text):
        return None
    back = subject.decode(subject.encode(text))
    if back == text:
        return None
    kind = next((name for name, change in CHANGES.items() if change(text).strip() == back.strip()), "letters")
    return Problem("tokenizer-changes-text", kind, conversation, f"{text!r} comes back as {back!r}")


RULES: tuple[Rule, ...] = (
    keeps_texts,
    opens_a_turn,
    continues,
    ends,
    calls_are_read,
    continues_history,
    round_trips,
)


def parting(before: str, after: str, one: str = "the prompt", other: str = "the finished turn") -> str:
    """Say where two texts part."""
    pairs = zip(before, after, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(before), len(after)))
    start = max(at - 20, 0)
    return f"{one} has {before[start : at + 40]!r} where {other} has {after[start : at + 40]!r}"


def _is_empty(answer: Message) -> bool:
    return not answer.get("content") and not answer.get("tool_calls")
