"""What must hold of every conversation that a chat template writes. The checks and the fuzzing ask the same rules.

A rule looks at one conversation and returns the first `Problem` that it sees, or None. Rules stand in an order in which
each may rely on those before it, so one cause is one finding.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from hone.audit.report import Verdict
from hone.audit.template_lost import SYNTAX, WELL_FORMED, find, kind_of_change, lost
from hone.audit.template_subject import ChatSubject, Conversation, Problem, in_short, user
from hone.errors import UserError
from hone.model.chat import THINK
from hone.model.rendering import END_THINK, squeeze
from hone.types import Message

Rule = Callable[[ChatSubject, Conversation], Problem | None]
AWKWARD = {"think tags": (THINK, END_THINK), "tags": ("<", ">", "[")}
"""What in arguments may be taken for the end of a call or of a thought."""


def first_problem(
    subject: ChatSubject,
    conversation: Conversation,
    known: Collection[tuple[str, str]] = (),
    rules: Sequence[Rule] | None = None,
) -> Problem | None:
    """The first rule that does not hold; None if all do, or if that is known already. Without `rules`, of all."""
    for rule in RULES if rules is None else rules:
        try:
            problem = rule(subject, conversation)
        except UserError as error:
            problem = Problem("refuses", _roles(conversation), conversation, in_short(error))
        except Exception as error:  # what a template or a package raises is what is looked for
            problem = Problem("crashes", type(error).__name__, conversation, f"{type(error).__name__}: {error}")
        if problem is not None:
            return None if problem.key in known else problem
    return None


def renders(subject: ChatSubject, conversation: Conversation) -> Problem | None:
    """The conversation can be written at all, whatever signs its texts hold."""
    try:
        subject.text(conversation)
    except UserError as error:
        tame = [{**m, "content": _tame(m.get("content"))} for m in conversation.messages]
        if tame == conversation.messages or _refused(subject, replace(conversation, messages=tame)):
            raise
        role = next(str(a["role"]) for a, b in zip(conversation.messages, tame, strict=True) if a != b)
        return Problem("evaluates", role, conversation, in_short(error))
    return None


def keeps_texts(subject: ChatSubject, conversation: Conversation) -> Problem | None:
    """What messages say stands in what is written, unchanged and in order; of earlier answers see `goes_on`."""
    written, at = subject.text(conversation), 0
    for index, message in enumerate(conversation.messages):
        last = index == len(conversation.messages) - 1
        if message["role"] == "assistant" and not last:
            continue
        for text in _texts(message):
            found = find(subject, written, text, at)
            if found < 0:
                return lost(subject, conversation, index, text, written)
            at = found
    return None


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
    if history != prompt and begun != known:
        role = str(conversation.messages[-1]["role"])
        return Problem(
            "opens-differently", role, conversation, f"it opens {begun!r} here, and {known!r} after one message of user"
        )
    return None


def continues(subject: ChatSubject, conversation: Conversation) -> Problem | None:
    """A finished turn continues its prompt, with what the assistant says and nothing before it."""
    if not conversation.finished:
        return None
    answer = conversation.messages[-1]
    prompt = subject.text(Conversation(conversation.prompt, conversation.tools), opens=True)
    full = subject.text(conversation)
    if not full.startswith(prompt):
        verdict = Verdict.WARN if _is_empty(answer) else None
        return Problem("rewrites-prompt", _shape(answer), conversation, parting(prompt, full), verdict)
    rest = full[len(prompt) :]
    text = (answer.get("content") or "").removeprefix(subject.renderer.opened_by_template)
    head = rest[: max(rest.find(text.strip()), 0)] if text.strip() else ""
    if head.strip() and squeeze(head) in (f"{THINK}{END_THINK}", END_THINK):
        return Problem("adds-thought", "empty", conversation, f"it writes {head!r} before {text[:40]!r}")
    if head.strip():
        return Problem("no-generation-prompt", "opening", conversation, f"it writes {head!r} before {text[:40]!r}")
    return None


def ends(subject: ChatSubject, conversation: Conversation) -> Problem | None:
    """A finished turn ends with the token at which generation stops, which stands nowhere inside of it."""
    answer = conversation.messages[-1]
    if not conversation.finished or subject.has_controls(str(answer)):
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
    if not conversation.finished or not answer.get("tool_calls"):
        return None
    text = answer.get("content") or ""
    if any(subject.has_controls(str(part)) for part in (text, answer["tool_calls"])):
        return None
    if subject.renderer.before_calls(text) != text or not WELL_FORMED.fullmatch(text):
        return None  # what stands before is read as a call or a thought
    arguments = "".join(call["function"]["arguments"] for call in answer["tool_calls"])
    if any(subject.decode(subject.encode(part)) != part for part in (text, arguments)):
        return None  # the tokenizer's doing: see `round_trips`
    difference = _unread(subject, conversation)
    if difference is None:
        return None
    tame = [{**call, "function": {**call["function"], "arguments": '{"word": "a"}'}} for call in answer["tool_calls"]]
    plain = Conversation([*conversation.prompt, {**answer, "tool_calls": tame}], conversation.tools)
    if _unread(subject, plain) is not None:
        return Problem("tool-calls", "any", conversation, difference)
    kind = next((kind for kind, signs in AWKWARD.items() if any(sign in arguments for sign in signs)), "text")
    return Problem("tool-arguments", kind, conversation, difference)


def goes_on(subject: ChatSubject, conversation: Conversation) -> Problem | None:
    """What was sampled, bridged to what answered it, is the conversation as the template writes it whole."""
    messages = conversation.prompt if conversation.finished else conversation.messages
    turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    if not turns or not _sound(subject):
        return None
    if any(subject.has_controls(str(messages[i])) for i in turns):
        return None
    for i in turns:
        for rule in (keeps_texts, continues, ends, calls_are_read):
            problem = rule(subject, conversation.upto(i + 1))
            if problem is not None and problem.name != "adds-thought":
                return problem
    difference = _broken(subject, Conversation(messages, conversation.tools))
    if difference is None:
        return None
    shortest = [Conversation(messages[:count], conversation.tools) for count in (*turns[1:], len(messages))]
    asked, difference = next((c, d) for c in shortest if (d := _broken(subject, c)) is not None)
    messages = asked.messages
    turns = [i for i in turns if i < len(messages)]
    answers = str(messages[-1]["role"])
    if difference.startswith(MOVED):
        answers = EMPTY if any(_is_empty(messages[i]) for i in turns) else answers
        return Problem("moves-white-space", answers, asked, difference)
    if stripped := _stripped_thoughts(subject, asked):
        if answers != "user" and not any(squeeze(thought) for thought in stripped):
            return Problem("think-stripping", "empty thoughts", asked, difference, Verdict.WARN)
        return Problem("think-stripping", answers, asked, difference)
    if any(_has_stray_tags(messages[i]) for i in turns):
        return Problem("think-tags", "stray", asked, difference)
    if any(_is_empty(messages[i]) for i in turns):
        return Problem("rewrites-history", EMPTY, asked, difference, Verdict.WARN)
    return Problem("rewrites-history", answers, asked, difference)


def round_trips(subject: ChatSubject, conversation: Conversation) -> Problem | None:
    """Text that a model wrote comes back from its ids as it was, and has the same ids again."""
    text = conversation.messages[-1].get("content") or ""
    if not conversation.finished or subject.has_controls(text):
        return None
    ids = subject.encode(text)
    back = subject.decode(ids)
    if back != text:
        shown = f"{text!r} comes back as {back!r}"
        return Problem("tokenizer-changes-text", kind_of_change(text, back), conversation, shown)
    again = subject.encode(back)
    return None if again == ids else Problem("unstable-ids", "text", conversation, f"{ids} became {again}")


RULES: tuple[Rule, ...] = (renders, keeps_texts, opens_a_turn, continues, ends, calls_are_read, goes_on, round_trips)
MOVED = "white space: "
EMPTY = "an empty answer"


def parting(before: str, after: str, one: str = "the prompt", other: str = "the finished turn") -> str:
    """Where two texts part, in words."""
    pairs = zip(before, after, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(before), len(after)))
    start = max(at - 20, 0)
    return f"{one} has {before[start : at + 40]!r} where {other} has {after[start : at + 40]!r}"


def _broken(subject: ChatSubject, conversation: Conversation) -> str | None:
    """How the ids of training and the template's writing differ; None if they are the same text."""
    try:
        ids, kept = subject.play(conversation)
    except UserError as error:
        return in_short(error)
    if subject.structured and any(message.get("tool_calls") for message in kept):
        return None  # calls are written anew, with other ids and white space than the model's
    sampled = subject.decode(ids)
    whole = subject.decode(subject.renderer.prompt_ids(kept, conversation.tools))
    if sampled == whole:
        return None
    moved = MOVED if squeeze(sampled) == squeeze(whole) else ""
    return moved + parting(sampled, whole, "what was sampled", "the template")


def _stripped_thoughts(subject: ChatSubject, conversation: Conversation) -> list[str]:
    """The thoughts that the template leaves out of earlier turns, where it writes all that was spoken."""
    whole = squeeze(subject.text(conversation, opens=True))
    turns = [m.get("content") or "" for m in conversation.messages if m["role"] == "assistant"]
    if any(squeeze(turn.split(END_THINK)[-1]) not in whole for turn in turns):
        return []
    return [turn.split(END_THINK)[0].removeprefix(THINK) for turn in turns if _missing(turn, whole)]


def _missing(turn: str, whole: str) -> bool:
    return END_THINK in turn and squeeze(turn) not in whole


def _refused(subject: ChatSubject, conversation: Conversation) -> bool:
    try:
        subject.text(conversation)
    except UserError:
        return True
    return False


def _tame(content: Any) -> Any:
    return SYNTAX.sub("a", content) if isinstance(content, str) else content


@functools.lru_cache(maxsize=8)
def _sound(subject: ChatSubject) -> bool:
    """Whether one short turn continues its prompt and ends: without that nothing can be said about several."""
    shortest = Conversation([user("a"), subject.answer("b")])
    problems = [rule(subject, shortest) for rule in (keeps_texts, continues, ends)]
    return all(problem is None or problem.name == "adds-thought" for problem in problems)


def _texts(message: Message) -> list[str]:
    """The texts of a message, whether it is text or a list of parts."""
    content = message.get("content")
    if isinstance(content, list):
        return [part["text"] for part in content if part.get("text")]
    return [content] if content else []


def _is_empty(answer: Message) -> bool:
    return not answer.get("content") and not answer.get("tool_calls")


def _has_stray_tags(answer: Message) -> bool:
    """Whether <think> tags stand where no thought begins or ends."""
    in_calls = any(tag in str(answer.get("tool_calls", "")) for tag in (THINK, END_THINK))
    return in_calls or not WELL_FORMED.fullmatch(answer.get("content") or "")


def _shape(answer: Message) -> str:
    if answer.get("tool_calls"):
        return "calls"
    if _is_empty(answer):
        return EMPTY
    return "thought" if END_THINK in answer["content"] else "answer"


def _unread(subject: ChatSubject, conversation: Conversation) -> str | None:
    """Why calls are not read as they were, as the template writes them or as a model does; None if they are."""
    answer = conversation.messages[-1]
    try:
        subject.renderer.completion_ids(conversation.prompt, answer, conversation.tools)
    except UserError as error:
        return in_short(error)
    said = subject.said(answer, conversation.tools)
    read = subject.renderer.message(said, conversation.tools).get("tool_calls", [])
    if [_arguments(call) for call in read] == [_arguments(call) for call in answer["tool_calls"]]:
        return None
    return f"{subject.decode(said)[:120]!r} is read as {[call['function'] for call in read]}"


def _arguments(call: dict[str, Any]) -> Any:
    function = call["function"]
    return function["name"], json.loads(function["arguments"]) if function["name"] else None


def _roles(conversation: Conversation) -> str:
    return ", ".join(str(message["role"]) for message in conversation.messages)
