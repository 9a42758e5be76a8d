"""Ways to rewrite a completion without changing its answer, which a fair grader must accept.

for restyling in RESTYLINGS:
    text = restyling.apply(subject, env)  # None: it does not apply to this answer
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from hone.environments import Environment
from hone.extensions.audit.answers import PLAIN, Form, Kind, Statement, kind_of, statement_of, value_of, wrong_for
from hone.extensions.audit.probes import Subject

Style = Callable[[Statement, Kind], str | None]
Change = Callable[[str], str]

N, X, M, W = (Kind.NUMBER,), (Kind.EXPRESSION,), (Kind.MATH,), (Kind.WORD,)
TAGS, BOX, LINE = (Form.TAG,), (Form.BOXED,), (Form.LINE,)
MARKED, OWN = (*TAGS, *BOX, *LINE), (*TAGS, *BOX, *LINE, Form.BARE)

THOUGHT = "I should work this out carefully before I say anything."
THOUGHT_NUMBERS = "First try: 17 and 25 make 42, and 42 / 6 = 7. No, that is 3 off. Let me look again: 8, 9, 10."
SUMMARY = (
    "\n\n## Summary\n\n1. I read the question.\n2. I worked it out, which took 4 lines.\n3. I checked it twice.\n\n"
    "I am 95% sure of this. It should take about 10 minutes to follow."
)
CLOSING = "\n\n" + " ".join(
    [
        "That settles the question that was asked.",
        "The way there was to read what is given, to see what is missing, and to take one step after the other.",
        "Each step was checked before the next one, so that no number was lost on the way.",
        "A second look at it, as in case B or case D of the book, changes nothing; that much is true.",
        "If anything in it is unclear, I am happy to go through it again with you, in more detail or with a picture.",
    ]
    * 6
)


def reasoning(words: int, separator: str = " ") -> str:
    """Return about `words` words of plausible reasoning, with numbers and equations; the same text each time."""
    written: list[str] = []
    for i in count():
        a, b = 3 + i * 7 % 89, 2 + i * 5 % 43
        for sentence in (
            f"Step {i + 1} starts with {a} and {b}.",
            f"Together they make {a} + {b} = {a + b}, so I keep {a + b} in mind.",
            "Wait, let me check that again before I go on.",
            f"Taking {b} away from {a * b} leaves {a * b - b}, which does not help yet.",
            "Hmm, so the other way may be better, and I should look at what is asked.",
            f"If x = {a}, then 2x + {b} = {2 * a + b}.",
            "A closer look at case C and case D says: yes and no, neither is true nor false in general.",
        ):
            if words <= 0:
                return separator.join(written)
            written.append(sentence)
            words -= len(sentence.split())
    raise AssertionError("unreachable: count() never ends")


@dataclass(frozen=True)
class Restyling:
    """One way to write a completion.

    `style` is a function, or a template of a `Statement`'s parts, where {spoken} is all text after the thought. A
    template applies to answers in `forms` (empty: all). If a right answer is lost, `sort` names the finding: "growth"
    for longer texts, "strict" for styles that a prompt may forbid. `around` is true if the style adds words around the
    answer; a task may refuse such words if the whole completion is the answer.
    """

    name: str
    style: Style | str
    forms: tuple[Form, ...] = ()
    sort: str = "false-negative"
    around: bool = False

    def apply(self, subject: Subject, env: Environment) -> str | None:
        """Return the reference's last message in this style; None if it does not apply, or changes nothing."""
        s = statement_of(subject)
        if not isinstance(self.style, str):
            text = self.style(s, kind_of(subject, env.answer_is_exact))
        elif self.forms and not (s.form in self.forms and _is_marked(s)):
            text = None
        else:
            names = ("head", "opening", "answer", "closing", "tail", "text", "marked", "thought")
            parts = {name: getattr(s, name) for name in names}
            text = self.style.format(**parts, spoken=s.text[len(s.thought) :])
        return None if text == subject.text else text


def _is_marked(s: Statement) -> bool:
    """Return True if something marks the answer, so that other text may surround it."""
    return bool(s.answer) and s.form is not Form.BARE and not (s.form is Form.CODE and not s.head)


def _answer(change: Change | str, kinds: tuple[Kind, ...], forms: tuple[Form, ...] = OWN, only: str = ".*") -> Style:
    """Rewrite an answer that matches the pattern `only` with `change`, a function or a template."""
    make = change.format if isinstance(change, str) else change

    def style(s: Statement, kind: Kind) -> str | None:
        decorated = s.opening.rstrip().endswith(("$", "*", "`", "("))
        if kind not in kinds or s.form not in forms or decorated or not re.fullmatch(only, s.answer, re.DOTALL):
            return None
        return s.answering(make(s.answer))

    return style


def _think(thought: str) -> Style:

    def style(s: Statement, _: Kind) -> str:
        if "<think>" in s.thought:
            return s.text.replace("<think>", f"<think>\n{thought}\n", 1)
        return f"<think>\n{thought}\n</think>\n\n{s.text}"

    return style


def _drafts(s: Statement, kind: Kind) -> str | None:
    wrong = wrong_for(s.answer) if _is_marked(s) else []
    if not wrong:
        return None
    drafts = " ".join(f"Is it {s.opening}{answer}{s.closing}? No, that is not it." for answer in wrong)
    if s.form in (Form.LINE, Form.CODE):
        drafts = "\n".join(f"{s.opening}{answer}{s.closing}\nNo, that is not it." for answer in wrong)
    return _think(drafts)(s, kind)


def _unopened(s: Statement, _: Kind) -> str | None:
    """Leave out <think>: the chat template may have opened the block, as part of the prompt."""
    if s.thought.startswith("<think>"):
        return s.text.removeprefix("<think>")
    return None if s.thought else f"{THOUGHT}\n</think>\n\n{s.text}"


def _crlf(s: Statement, _: Kind) -> str | None:
    return None if "\n" in s.answer else (s.text + "\n").replace("\r\n", "\n").replace("\n", "\r\n")


def _own_line(s: Statement, _: Kind) -> str | None:
    if s.form is Form.LINE and re.search(r":\s*\Z", s.opening) and not s.closing.strip():
        return s.head + s.opening.rstrip() + f"\n{s.answer}" + s.closing + s.tail
    if s.form not in (Form.TAG, Form.BOXED):
        return None
    return s.head + s.opening.rstrip() + f"\n{s.answer}\n" + s.closing.lstrip() + s.tail


def _marker(change: Change | str) -> Style:

    def style(s: Statement, _: Kind) -> str | None:
        match = re.fullmatch(r"(\s*)(\w[\w ]*:)(\s*)", s.opening) if s.form is Form.LINE else None
        if match is None:
            return None
        changed = change.format(match[2]) if isinstance(change, str) else change(match[2])
        return f"{s.head}{match[1]}{changed}{match[3]}{s.answer}{s.closing}{s.tail}"

    return style


def _full_stop(kinds: tuple[Kind, ...]) -> Style:
    def style(s: Statement, kind: Kind) -> str | None:
        ends = s.form is Form.TAG or (s.form in (Form.LINE, Form.BARE) and not s.closing.strip())
        plain = kind is Kind.WORD or PLAIN.fullmatch(s.answer)
        return s.answering(f"{s.answer}.") if ends and plain and kind in kinds else None

    return style


def _spaced(answer: str) -> str:
    return re.sub(r"(?<=[\d)])([-+*/×÷−·])", r" \1 ", re.sub(r"\s+", "", answer))


_MARKED_OR_CODE = (*MARKED, Form.CODE)
_FIRST = "{{thought}}{}{{spoken}}".format
"""A template that puts a text between the thought and the rest."""
_WHOLE = r"-?(?:0|[1-9][0-9]*)"
_LONG = r".*[^()].*[^()].*"
"""Texts of two or more letters. The case of a single letter (a variable, a choice) may matter."""

RESTYLINGS: tuple[Restyling, ...] = (
    Restyling("leading-newlines", "\n\n{text}"),
    Restyling("trailing-newline", "{text}\n"),
    Restyling("trailing-newlines", "{text}\n\n\n"),
    Restyling("surrounding-spaces", "  {text} \t "),
    Restyling("trailing-nbsp", "{text}\u00a0"),
    Restyling("im-end-token", "{text}<|im_end|>", sort="strict"),
    Restyling("eos-token", "{text}</s>", sort="strict"),
    Restyling("crlf", _crlf),
    Restyling("blank-lines", lambda s, _: s.head.replace("\n", "\n\n") + s.marked + s.tail if _is_marked(s) else None),
    Restyling("own-line", _own_line),
    Restyling("padded-answer", "{head}{opening} {answer} {closing}{tail}", (*TAGS, *BOX)),
    Restyling("sure", _FIRST("Sure! Here is my answer.\n\n"), around=True),
    Restyling("plain-answer-first", _FIRST("I get {answer} here.\n\n"), _MARKED_OR_CODE, around=True),
    Restyling("in-a-sentence", "{head}So the final result is {marked}.{tail}", (*TAGS, *BOX), around=True),
    Restyling("hope-this-helps", "{text}\n\nI hope this helps!", around=True),
    Restyling(
        "remark-with-numbers",
        "{text}\n\nI checked this in 2 different ways, and it took 3 steps.",
        sort="growth",
        around=True,
    ),
    Restyling("verbose-summary", "{text}" + SUMMARY, sort="growth", around=True),
    Restyling("long-closing", "{text}" + CLOSING, sort="growth", around=True),
    Restyling(
        "sure-of-answer",
        "{text}\n\nI am sure of my answer: every step was checked.",
        (*TAGS, *BOX),
        sort="growth",
        around=True,
    ),
    Restyling("thought", _think(THOUGHT), around=True),
    Restyling("thought-with-numbers", _think(THOUGHT_NUMBERS), around=True),
    Restyling("thought-with-drafts", _drafts, around=True),
    Restyling("thought-unopened", _unopened, around=True),
    Restyling("thought-empty", lambda s, _: None if s.thought else f"<think>\n\n</think>\n\n{s.text}", around=True),
    Restyling("thought-long", _think(reasoning(2000)), sort="growth", around=True),
    Restyling("said-twice", "{head}{marked}\n\n{marked}{tail}", _MARKED_OR_CODE, around=True),
    Restyling("heading", _FIRST("## Solution\n\n"), around=True),
    Restyling("answer-heading", "{head}\n\n### Final answer\n\n{marked}{tail}", _MARKED_OR_CODE, around=True),
    Restyling("rule", "{head}\n\n---\n\n{marked}{tail}", _MARKED_OR_CODE, around=True),
    Restyling("bold", "{head}**{marked}**{tail}", MARKED),
    Restyling("quote", "{head}> {marked}{tail}", MARKED),
    Restyling("bold-answer", _answer("**{}**", (*N, *X, *W), (*TAGS, *LINE))),
    Restyling("code-answer", _answer("`{}`", (*N, *X, *W), (*TAGS, *LINE)), sort="strict"),
    Restyling("bold-marker", _marker("**{}**")),
    Restyling("marker-title-case", _marker(str.title), sort="strict"),
    Restyling("marker-lower-case", _marker(str.lower), sort="strict"),
    Restyling("marker-upper-case", _marker(str.upper), sort="strict"),
    # The last line that the prompts of Minerva, and of lm-eval after it, ask for.
    Restyling("minerva", "{head}Final Answer: The final answer is ${marked}$. I hope it is correct.{tail}", BOX),
    Restyling("dollars", _answer("${}$", (*N, *X, *M), MARKED)),
    Restyling("parentheses", _answer(r"\({}\)", (*N, *X, *M), MARKED)),
    Restyling("boxed-inside", _answer(r"\boxed{{{}}}", (*N, *X, *M), (*TAGS, *LINE))),
    Restyling("display", "{head}\\[\n{marked}\n\\]{tail}", BOX),
    Restyling("dfrac", _answer(lambda a: a.replace(r"\frac", r"\dfrac"), (*N, *X, *M))),
    Restyling("unicode-minus", _answer(lambda a: a.replace("-", "−"), (*N, *X))),
    Restyling("thousands-separators", _answer(lambda a: f"{int(a):,}", N, only=r"-?[1-9]\d{3,}")),
    Restyling("decimal-zero", _answer("{}.0", N, only=_WHOLE), sort="strict"),
    Restyling("full-stop", _full_stop((*N, *M))),
    Restyling("unit", _answer("{} units", N, only=PLAIN.pattern), sort="strict"),
    Restyling("spaces", _answer(_spaced, X)),
    Restyling("no-spaces", _answer(lambda a: re.sub(r"\s+", "", a), X)),
    Restyling("unicode-operators", _answer(lambda a: a.replace("*", "×").replace("/", "÷"), X, only=r"[^\\]*")),
    Restyling("equals-value", _answer(lambda a: f"{a} = {value_of(a)}", X)),
    Restyling("upper-case", _answer(str.upper, W, only=_LONG)),
    Restyling("lower-case", _answer(str.lower, W, only=_LONG)),
    Restyling("title-case", _answer(str.title, W)),
    Restyling("word-full-stop", _full_stop(W), sort="strict"),
    Restyling("reasoning-100", _FIRST(reasoning(100) + "\n\n"), sort="growth", around=True),
    Restyling("reasoning-1000", _FIRST(reasoning(1000) + "\n\n"), sort="growth", around=True),
    Restyling("reasoning-4000", _FIRST(reasoning(4000) + "\n\n"), sort="growth", around=True),
    Restyling("reasoning-16000", _FIRST(reasoning(16000) + "\n\n"), sort="growth", around=True),
    Restyling("many-lines", _FIRST(reasoning(2000, "\n") + "\n\n"), sort="growth", around=True),
)
