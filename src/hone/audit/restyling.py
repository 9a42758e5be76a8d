"""Ways to write a completion that change nothing about its answer: what a fair grader must not mind.

for restyling in RESTYLINGS:
    text = restyling.apply(subject, env)  # None: it does not apply to this answer
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from hone.audit import prose
from hone.audit.kinds import PLAIN, Kind, kind_of, value_of, wrong_for
from hone.audit.probes import Subject
from hone.audit.statement import Form, Statement, statement_of
from hone.environments import Environment

_NUMERIC = (Kind.NUMBER, Kind.EXPRESSION)
_MATHS = (*_NUMERIC, Kind.MATH)
_LOOSE = (*_NUMERIC, Kind.WORD)
_OWN = (Form.TAG, Form.BOXED, Form.LINE, Form.BARE)
_MARKED = (Form.TAG, Form.BOXED, Form.LINE)
_UNBOXED = (Form.TAG, Form.LINE)

Style = Callable[[Statement, Kind], str | None]


@dataclass(frozen=True)
class Restyling:
    """`growth`: a policy in training grows into it, as completions get longer. `arguable`: a strict grader may mind, if
    the prompt says so. `around`: it adds something to say before or after the answer, so that a task of which the whole
    completion is the answer may refuse it.
    """

    name: str
    group: str
    style: Style
    growth: bool = False
    arguable: bool = False
    around: bool = False

    def apply(self, subject: Subject, env: Environment) -> str | None:
        """The reference's last message in this style; None if it does not apply, or would change nothing."""
        statement = statement_of(subject)
        kind = kind_of(subject, env.answer_is_exact)
        text = self.style(statement, kind)
        return None if text is None or text == subject.text else text


def _add(before: str = "", after: str = "") -> Style:
    return lambda s, _: before + s.text + after


def _begin(text: str) -> Style:
    return lambda s, _: s.beginning(text)


def _ahead(text: str) -> Style:
    return lambda s, _: s.ahead(text) if _marked(s) else None


def _wrap(left: str, right: str = "", forms: tuple[Form, ...] = _MARKED) -> Style:
    return lambda s, _: s.wrapped(left, right) if s.form in forms and s.answer else None


def _inner(change: Callable[[str], str | None], kinds: tuple[Kind, ...], forms: tuple[Form, ...] = _OWN) -> Style:
    """Changes how the answer itself is written, if it is of one of `kinds` and marked by one of `forms`."""

    def style(s: Statement, kind: Kind) -> str | None:
        if kind not in kinds or s.form not in forms or s.opening.rstrip().endswith(("$", "*", "`", "(")):
            return None
        answer = change(s.answer)
        return None if answer is None else s.answering(answer)

    return style


def _think(thought: str) -> Style:
    """The thought in front; in the reference's own thought, if there is one."""

    def style(s: Statement, _: Kind) -> str:
        if "<think>" in s.thought:
            return s.text.replace("<think>", f"<think>\n{thought}\n", 1)
        return f"<think>\n{thought}\n</think>\n\n{s.text}"

    return style


def _drafts(s: Statement, kind: Kind) -> str | None:
    wrong = wrong_for(s.answer) if _marked(s) else []
    if not wrong:
        return None
    said = " ".join(f"Is it {s.opening}{answer}{s.closing}? No, that is not it." for answer in wrong)
    if s.form in (Form.LINE, Form.CODE):
        said = "\n".join(f"{s.opening}{answer}{s.closing}\nNo, that is not it." for answer in wrong)
    return _think(said)(s, kind)


def _unopened(s: Statement, _: Kind) -> str | None:
    """The chat template may have opened the block, as part of the prompt."""
    if s.thought.startswith("<think>"):
        return s.text.removeprefix("<think>")
    return None if s.thought else f"{prose.THOUGHT}\n</think>\n\n{s.text}"


def _empty_thought(s: Statement, _: Kind) -> str | None:
    return None if s.thought else f"<think>\n\n</think>\n\n{s.text}"


def _crlf(s: Statement, _: Kind) -> str | None:
    if "\n" in s.answer:
        return None
    return (s.text + "\n").replace("\r\n", "\n").replace("\n", "\r\n")


def _blank_lines(s: Statement, _: Kind) -> str | None:
    return s.head.replace("\n", "\n\n") + s.said + s.tail if _marked(s) else None


def _own_line(s: Statement, _: Kind) -> str | None:
    if s.form is Form.LINE and re.search(r":\s*\Z", s.opening) and not s.closing.strip():
        return s.head + s.opening.rstrip() + f"\n{s.answer}" + s.closing + s.tail
    if s.form not in (Form.TAG, Form.BOXED):
        return None
    return s.head + s.opening.rstrip() + f"\n{s.answer}\n" + s.closing.lstrip() + s.tail


def _padded(s: Statement, _: Kind) -> str | None:
    return s.answering(f" {s.answer} ") if s.form in (Form.TAG, Form.BOXED) else None


def _in_sentence(s: Statement, _: Kind) -> str | None:
    return s.wrapped("So the final result is ", ".") if s.form in (Form.TAG, Form.BOXED) else None


def _after(text: str) -> Style:
    """`text` behind all of it, where tags or a box say which answer is meant."""
    return lambda s, _: s.text + text if s.form in (Form.TAG, Form.BOXED) else None


def _minerva(s: Statement, _: Kind) -> str | None:
    """The last line that the prompts of Minerva, and of lm-eval after it, ask for."""
    if s.form is not Form.BOXED:
        return None
    return f"{s.head}Final Answer: The final answer is ${s.said}$. I hope it is correct.{s.tail}"


def _twice(s: Statement, _: Kind) -> str | None:
    return f"{s.text}\n\n{s.text}" if _marked(s) else None


def _said_twice(s: Statement, _: Kind) -> str | None:
    return s.wrapped("", f"\n\n{s.said}") if _marked(s) else None


def _plain_first(s: Statement, _: Kind) -> str | None:
    return s.beginning(f"I get {s.answer} here.\n\n") if _marked(s) else None


def _bold_marker(s: Statement, _: Kind) -> str | None:
    match = re.fullmatch(r"(\s*)(\w[\w ]*:)(\s*)", s.opening) if s.form is Form.LINE else None
    return None if match is None else s.head + f"{match[1]}**{match[2]}**{match[3]}{s.answer}{s.closing}{s.tail}"


def _marker(case: Callable[[str], str]) -> Style:
    def style(s: Statement, _: Kind) -> str | None:
        if s.form is not Form.LINE or not re.fullmatch(r"\s*\w[\w ]*:\s*", s.opening):
            return None
        return s.head + case(s.opening) + s.answer + s.closing + s.tail

    return style


def _line(before: str, after: str) -> Style:
    """Something around an answer that stands behind a colon, in its line."""

    def style(s: Statement, kind: Kind) -> str | None:
        ends = s.form is Form.LINE and s.opening.rstrip().endswith(":") and not s.closing.strip()
        return s.answering(f"{before}{s.answer}{after}") if ends and kind in _MATHS else None

    return style


def _marked(s: Statement) -> bool:
    """Whether something marks the answer, so that other text may stand beside it."""
    return bool(s.answer) and s.form is not Form.BARE and not (s.form is Form.CODE and not s.head)


def _thousands(answer: str) -> str | None:
    if not PLAIN.fullmatch(answer):
        return None
    whole, dot, decimals = answer.partition(".")
    return f"{int(whole):,}{dot}{decimals}" if len(whole.strip("-")) > 3 and whole.strip("-")[0] != "0" else None


def _spaced_thousands(answer: str) -> str | None:
    grouped = _thousands(answer)
    return grouped and grouped.replace(",", " ")


def _decimal_comma(answer: str) -> str | None:
    """Not before exactly three digits, which would be thousands."""
    return answer.replace(".", ",") if re.fullmatch(r"-?[0-9]+\.(?![0-9]{3}\Z)[0-9]+", answer) else None


def _whole(after: str, before: str = "") -> Callable[[str], str | None]:
    return lambda answer: f"{before}{answer}{after}" if re.fullmatch(r"-?(?:0|[1-9][0-9]*)", answer) else None


def _plain(after: str, before: str = "") -> Callable[[str], str | None]:
    return lambda answer: f"{before}{answer}{after}" if PLAIN.fullmatch(answer) else None


def _cased(change: Callable[[str], str]) -> Callable[[str], str | None]:
    """Of words, not of a letter: whether that is a variable or a choice, its case may count."""
    return lambda answer: change(answer) if len(answer.strip("()")) > 1 else None


def _equation(answer: str) -> str | None:
    value = value_of(answer)
    return f"{answer} = {value}" if value is not None and value.denominator == 1 else None


def _operators(signs: dict[str, str]) -> Callable[[str], str | None]:
    return lambda answer: answer.translate(str.maketrans(signs)) if "\\" not in answer else None


def _spaced(answer: str) -> str:
    tight = re.sub(r"\s+", "", answer)
    return re.sub(r"(?<=[\d)])([-+*/×÷−·])", r" \1 ", tight)


def _dfrac(answer: str) -> str | None:
    return answer.replace(r"\frac", r"\dfrac") if r"\frac" in answer else None


def _full_stop(kinds: tuple[Kind, ...]) -> Style:
    def style(s: Statement, kind: Kind) -> str | None:
        ends = s.form is Form.TAG or (s.form in (Form.LINE, Form.BARE) and not s.closing.strip())
        plain = kind is Kind.WORD or PLAIN.fullmatch(s.answer)
        return s.answering(f"{s.answer}.") if ends and plain and kind in kinds else None

    return style


def _unicode_minus(s: Statement, kind: Kind) -> str | None:
    if kind not in (Kind.NUMBER, Kind.EXPRESSION) or s.form is Form.CODE:
        return None
    return s.answering(s.answer.replace("-", "−"))


def _grown(words: int, separator: str = " ") -> Style:
    return lambda s, _: s.beginning(prose.reasoning(words, separator) + "\n\n")


RESTYLINGS: tuple[Restyling, ...] = (
    Restyling("leading-newlines", "edges", _add("\n\n")),
    Restyling("trailing-newline", "edges", _add("", "\n")),
    Restyling("trailing-newlines", "edges", _add("", "\n\n\n")),
    Restyling("surrounding-spaces", "edges", _add("  ", " \t ")),
    Restyling("trailing-nbsp", "edges", _add("", "\u00a0")),
    Restyling("form-feed", "edges", _add("\f", "\f"), arguable=True),
    Restyling("byte-order-mark", "edges", _add("\ufeff"), arguable=True),
    Restyling("zero-width-space", "edges", _add("\u200b"), arguable=True),
    Restyling("im-end-token", "edges", _add("", "<|im_end|>"), arguable=True),
    Restyling("endoftext-token", "edges", _add("", "<|endoftext|>"), arguable=True),
    Restyling("eos-token", "edges", _add("", "</s>"), arguable=True),
    Restyling("crlf", "lines", _crlf),
    Restyling("blank-lines", "lines", _blank_lines),
    Restyling("own-line", "lines", _own_line),
    Restyling("padded-answer", "lines", _padded),
    Restyling("sure", "before", _begin(prose.SURE), around=True),
    Restyling("step-by-step", "before", _begin(prose.STEPS), around=True),
    Restyling("typography", "before", _begin(prose.TYPOGRAPHY), around=True),
    Restyling("plain-answer-first", "before", _plain_first, around=True),
    Restyling("in-a-sentence", "before", _in_sentence, around=True),
    Restyling("hope-this-helps", "after", _add("", prose.HOPE), around=True),
    Restyling("any-questions", "after", _add("", prose.ASK), around=True),
    Restyling("remark-with-numbers", "after", _add("", prose.CHECKED), growth=True, around=True),
    Restyling("verbose-summary", "after", _add("", prose.SUMMARY), growth=True, around=True),
    Restyling("long-closing", "after", _add("", prose.CLOSING), growth=True, around=True),
    Restyling("sure-of-answer", "after", _after(prose.SURE_OF_ANSWER), growth=True, around=True),
    Restyling("answer-above", "after", _after("\n\nAnswer: see above."), around=True),
    Restyling("thought", "thought", _think(prose.THOUGHT), around=True),
    Restyling("thought-with-numbers", "thought", _think(prose.THOUGHT_NUMBERS), around=True),
    Restyling("thought-with-drafts", "thought", _drafts, around=True),
    Restyling("thought-unopened", "thought", _unopened, around=True),
    Restyling("thought-empty", "thought", _empty_thought, around=True),
    Restyling("thought-long", "thought", _think(prose.reasoning(2000)), growth=True, around=True),
    Restyling("said-twice", "repeated", _said_twice, around=True),
    Restyling("all-twice", "repeated", _twice, around=True),
    Restyling("heading", "markdown", _begin("## Solution\n\n"), around=True),
    Restyling("answer-heading", "markdown", _ahead("\n\n### Final answer\n\n"), around=True),
    Restyling("rule", "markdown", _ahead("\n\n---\n\n"), around=True),
    Restyling("separator", "markdown", _ahead("\n\n==========\n\n"), around=True),
    Restyling("code-before", "markdown", _begin(prose.CODE), around=True),
    Restyling("bold", "markdown", _wrap("**", "**")),
    Restyling("bullet", "markdown", _wrap("- ")),
    Restyling("quote", "markdown", _wrap("> ")),
    Restyling("bold-answer", "markdown", _inner(lambda a: f"**{a}**", _LOOSE, _UNBOXED)),
    Restyling("code-answer", "markdown", _inner(lambda a: f"`{a}`", _LOOSE, _UNBOXED), arguable=True),
    Restyling("bold-marker", "markdown", _bold_marker),
    Restyling("marker-title-case", "marker", _marker(str.title), arguable=True),
    Restyling("marker-lower-case", "marker", _marker(str.lower), arguable=True),
    Restyling("marker-upper-case", "marker", _marker(str.upper), arguable=True),
    Restyling("line-remark", "marker", _line("", " (I checked it)"), arguable=True),
    Restyling("line-because", "marker", _line("", " because I checked it."), arguable=True),
    Restyling("line-placeholder", "marker", _line("<", ">"), arguable=True),
    Restyling("minerva", "latex", _minerva),
    Restyling("dollars", "latex", _inner(lambda a: f"${a}$", _MATHS, _MARKED)),
    Restyling("parentheses", "latex", _inner(lambda a: rf"\({a}\)", _MATHS, _MARKED)),
    Restyling("boxed-inside", "latex", _inner(lambda a: rf"\boxed{{{a}}}", _MATHS, _UNBOXED)),
    Restyling("display", "latex", _wrap("\\[\n", "\n\\]", (Form.BOXED,))),
    Restyling("inline-box", "latex", _wrap("$", "$", (Form.BOXED,))),
    Restyling("dfrac", "latex", _inner(_dfrac, _MATHS)),
    Restyling("unicode-minus", "unicode", _unicode_minus),
    Restyling("thousands-separators", "number", _inner(_thousands, _NUMERIC)),
    Restyling("thousands-spaces", "number", _inner(_spaced_thousands, _NUMERIC), arguable=True),
    Restyling("decimal-comma", "number", _inner(_decimal_comma, (Kind.NUMBER,)), arguable=True),
    Restyling("decimal-zero", "number", _inner(_whole(".0"), (Kind.NUMBER,)), arguable=True),
    Restyling("full-stop", "number", _full_stop((Kind.NUMBER, Kind.MATH))),
    Restyling("unit", "number", _inner(_plain(" units"), (Kind.NUMBER,)), arguable=True),
    Restyling("currency", "number", _inner(_plain("", "$"), (Kind.NUMBER,)), arguable=True),
    Restyling("variable", "number", _inner(_plain("", "x = "), (Kind.NUMBER,)), arguable=True),
    Restyling("spaces", "expression", _inner(_spaced, (Kind.EXPRESSION,))),
    Restyling("no-spaces", "expression", _inner(lambda a: re.sub(r"\s+", "", a), (Kind.EXPRESSION,))),
    Restyling("unicode-operators", "expression", _inner(_operators({"*": "×", "/": "÷"}), (Kind.EXPRESSION,))),
    Restyling(
        "latex-operators", "expression", _inner(_operators({"*": r"\times "}), (Kind.EXPRESSION,)), arguable=True
    ),
    Restyling("equals-value", "expression", _inner(_equation, (Kind.EXPRESSION,))),
    Restyling("outer-brackets", "expression", _inner(lambda a: f"({a})", (Kind.EXPRESSION,)), arguable=True),
    Restyling("upper-case", "word", _inner(_cased(str.upper), (Kind.WORD,))),
    Restyling("lower-case", "word", _inner(_cased(str.lower), (Kind.WORD,))),
    Restyling("title-case", "word", _inner(str.title, (Kind.WORD,))),
    Restyling("word-full-stop", "word", _full_stop((Kind.WORD,)), arguable=True),
    Restyling("quoted", "word", _inner(lambda a: f'"{a}"', (Kind.WORD,)), arguable=True),
    Restyling("reasoning-100", "length", _grown(100), growth=True, around=True),
    Restyling("reasoning-1000", "length", _grown(1000), growth=True, around=True),
    Restyling("reasoning-4000", "length", _grown(4000), growth=True, around=True),
    Restyling("reasoning-16000", "length", _grown(16000), growth=True, around=True),
    Restyling("many-lines", "length", _grown(2000, "\n"), growth=True, around=True),
    Restyling("paragraphs", "length", _grown(2000, "\n\n"), growth=True, around=True),
)
