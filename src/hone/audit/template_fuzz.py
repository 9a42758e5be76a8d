"""Random conversations through a chat template, by Hypothesis: what breaks a rule is shrunk to the least that does.

Hypothesis finds failures and shrinks them better than own code would, but its text and its random numbers go by what
else is imported, which is switched off: what is found is a function of the template and the seed. Nothing is stored.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from hone import rng
from hone.audit.report import Check
from hone.audit.template_findings import findings_of
from hone.audit.template_rules import first_problem
from hone.audit.template_subject import TOOLS, ChatSubject, Conversation, Problem, call_of, system, tool, user
from hone.types import Message

ALPHABET = (
    string.ascii_lowercase
    + " \n01279ABZ.,:;!?'\"`-_=+*/\\|()[]{}<>#%&$@~^\t\r"
    + "éßñçÅøĳıİſςÿµªº²½¼№™…–—“”„«»€¥"  # Latin, some of which normalising changes
    + "\u0301\u0308\u0323\u0327\u034f"  # combining
    + "אבגשَ\u064eعرب\u200f\u200e\u202e\u2066"  # right to left, with its marks
    + "你好世界あアｱ한\u1112\u1161\u11ab𠮷"  # wide
    + "ﬁﬀＡ１ⅣΩÅ①㎏"  # compatibility forms
    + "\u00a0\u00ad\u200b\u200c\u200d\u2028\u3000\ufeff\u2060"  # spaces and nothings
    + "\U0001f3b2\U0001f469\U0001f3fd\u2764\ufe0f\U0001f1e9\U0001f1ea"  # emoji and what joins them
    + "\x00\x07\x1b\x7f\x85\ue000\ufffd\uffff"  # control, private, no character
)
SNIPPETS = (
    *("{{ 7 * 191 }}", "{% if a %}", "{%- raw %}", "{# b #}", "{}", "{0}", "{role}", "}}", "%s", "100%", "$x", "\\n"),
    *("<think>", "</think>", "<answer>", "</answer>", "<tool_response>", "</tool_response>", "<tool_call>"),
    *("</tool_call>", '{"name": "look_up", "arguments": {}}', '{"name": "a", "parameters": {}}', "<function=a>"),
    *("user", "assistant", "system", "\n\n", "  ", "```", "\\boxed{1}", "<b>&amp;</b>"),
)
MOST_FOUND = 4
MOST_SHRINKING = 250
"""Conversations that may be tried to make one smaller."""
Tell = Callable[[str, int, int], None]


class _Found(Exception):
    """Tells Hypothesis that an example fails."""


class _Enough(BaseException):
    """Ends the search: Hypothesis catches no such thing."""


def check_fuzz(subject: ChatSubject, known: Collection[tuple[str, str]], examples: int, seed: int, tell: Tell) -> Check:
    """Up to MOST_FOUND problems that random conversations show, other than those known, each at its least."""
    seen, found, tried = set(known), [], 0
    while tried < examples and len(found) < MOST_FOUND:
        search = _Search(subject, seen, tell, tried, examples)
        problem = search.run(int(rng.stream(seed, "audit", "template", len(found)).integers(2**31)))
        tried += search.tried
        if problem is None:
            break
        seen.add(problem.key)
        found.append(problem)
    tell("fuzz", examples, examples)
    figures = {"examples": tried, "seed": seed, "found": len(found)}
    return Check("fuzz", f"{tried} random conversations", findings_of(found), figures)


class _Search:
    """One search for one problem."""

    def __init__(
        self, subject: ChatSubject, known: Collection[tuple[str, str]], tell: Tell, before: int, examples: int
    ) -> None:
        self.subject, self.known, self.tell = subject, known, tell
        self.before, self.examples = before, examples
        self.tried = self.shrinking = 0
        self.failing: dict[str, Problem] = {}
        self.key: tuple[str, str] | None = None
        self.least: Problem | None = None

    def run(self, seed: int) -> Problem | None:
        import hypothesis
        from hypothesis import HealthCheck, Phase, Verbosity

        with _nothing_imported():
            settings = hypothesis.settings(
                max_examples=self.examples - self.before,
                database=None,
                deadline=None,
                derandomize=False,
                report_multiple_bugs=False,
                print_blob=False,
                verbosity=Verbosity.quiet,
                phases=(Phase.generate, Phase.shrink),
                suppress_health_check=list(HealthCheck),  # pyright: ignore[reportArgumentType]
                backend="hypothesis",
            )
            test = hypothesis.given(conversations(self.subject))(self._try)
            try:
                hypothesis.seed(seed)(settings(test))()
            except (_Found, _Enough):
                return self._cut(self.least)
        return None

    def _cut(self, problem: Problem | None) -> Problem | None:
        """The problem with messages and letters left out, one after the other: Hypothesis counts draws, not letters."""
        tries = 0
        while problem is not None:
            for smaller in _smaller(problem.conversation):
                tries += 1
                again = first_problem(self.subject, smaller, self.known)
                if again is not None and again.key == problem.key:
                    problem = again
                    break
                if tries > MOST_SHRINKING:
                    return problem
            else:
                return problem
        return None

    def _try(self, conversation: Conversation) -> None:
        problem = self._problem(conversation)
        if problem is not None:
            if self.least is None or _size(problem) < _size(self.least):
                self.least = problem
            raise _Found

    def _problem(self, conversation: Conversation) -> Problem | None:
        """The problem of a conversation; while shrinking only the same one, and within bounds."""
        written = conversation.json()
        if self.key is None:
            self.tried += 1
            if self.tried % 20 == 0:
                self.tell("fuzz", self.before + self.tried, self.examples)
        elif written in self.failing:
            return self.failing[written]
        else:
            self.shrinking += 1
            if self.shrinking > MOST_SHRINKING:
                raise _Enough
        problem = first_problem(self.subject, conversation, self.known)
        if problem is None or problem.name == "refuses" or (self.key and problem.key != self.key):
            return None
        self.key = problem.key
        self.failing[written] = problem
        return problem


def conversations(subject: ChatSubject) -> Any:
    """The strategy: a system message or none, a question, and turns, each answered by a user or by tools."""
    from hypothesis import strategies as st

    pieces = (*ALPHABET, *SNIPPETS, *SNIPPETS)
    spoken = st.lists(st.sampled_from(pieces), max_size=6).map("".join)
    asked = st.lists(st.sampled_from((*pieces, *subject.controls)), max_size=6).map("".join)
    more = st.dictionaries(st.sampled_from(("a", "b c", "{")), spoken, max_size=2)
    arguments = st.fixed_dictionaries(
        {"word": spoken}, optional={"most": st.integers(-9, 99), "more": more} if subject.takes_tools else {}
    )
    calls = st.lists(arguments, max_size=2) if subject.takes_tools else st.just([])
    turn = st.tuples(spoken, st.none() | spoken, calls, asked, asked)
    return st.builds(
        lambda *drawn: assemble(subject, *drawn),
        asked,
        st.none() | asked,
        st.lists(turn, max_size=3),
        st.none() | turn,
    )


def assemble(subject: ChatSubject, asked: str, instruction: str | None, turns: list[Any], last: Any) -> Conversation:
    """A conversation of what was drawn: each turn is what is said, a thought, calls, and two answers."""
    messages: list[Message] = [] if instruction is None else [system(instruction)]
    messages.append(user(asked))
    for text, thought, arguments, *answers in turns:
        messages.append(_turn(subject, text, thought, arguments))
        calls = messages[-1].get("tool_calls")
        told = [tool(call, answer) for call, answer in zip(calls or [], answers, strict=False)]
        messages += told or [user(answers[0])]
    if last is not None:
        messages.append(_turn(subject, *last[:3]))
    return Conversation(messages, TOOLS if any("tool_calls" in message for message in messages) else None)


def _turn(subject: ChatSubject, text: str, thought: str | None, arguments: list[dict[str, Any]]) -> Message:
    calls = [call_of(drawn, index=i) for i, drawn in enumerate(arguments)]
    if calls and not subject.speaks_beside_calls:
        text, thought = "", None
    return subject.answer(text, thought, calls)


def _smaller(conversation: Conversation) -> Iterator[Conversation]:
    """The conversation without one of its messages, or with less of what one of them says."""
    messages = conversation.messages
    for index, message in enumerate(messages):
        plain = message["role"] != "tool" and "tool_calls" not in message
        rest = [*messages[:index], *messages[index + 1 :]]
        if plain and any(one["role"] == "user" for one in rest):
            yield Conversation(rest, conversation.tools)
    for index, message in enumerate(messages):
        text = message["content"]
        if text:
            yield conversation.saying(index, "")
        for at in range(len(text)) if len(text) > 1 else ():
            yield conversation.saying(index, text[:at] + text[at + 1 :])


def _size(problem: Problem) -> int:
    return len(problem.conversation.json())


@contextmanager
def _nothing_imported() -> Iterator[None]:
    """Hypothesis without the constants that it picks out of the modules that are imported, and stores.

    A backend of its own would not do: Hypothesis shrinks with its usual one.
    """
    from hypothesis.internal.conjecture.providers import HypothesisProvider

    usual = HypothesisProvider._maybe_draw_constant
    HypothesisProvider._maybe_draw_constant = lambda *args, **options: None
    try:
        yield
    finally:
        HypothesisProvider._maybe_draw_constant = usual
