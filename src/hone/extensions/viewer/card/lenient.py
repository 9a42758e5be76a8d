r"""Strict and lenient reading: separates skill from format in a gain.

The strict score is the task's verdict on a completion. If the completion is not correct, lenient reading looks for an
answer in its text, and the task grades this answer in the form of the example's reference. The change of the lenient
score is skill; the rest of the strict score's change is format. A task is not read if its grader can't tell right from
wrong answers in this form.

An answer can be in a tag (`<answer>…</answer>`), a box (`\boxed{…}`), a statement (`the answer is …`, `x = …`), or at
the end (the last number, or line). Only the last place of each kind counts, and only if it has a single answer, so
that guessing does not pay.

    candidates("So <answer>41</answer>. No, it is 42", Kind.NUMBER)  # {"tag": "41", "end": "42"}
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hone import rng
from hone.config.shared import EnvConfig, GradingConfig
from hone.config.tasks import TaskConfig
from hone.environments import Environment
from hone.environments.loading import configured
from hone.environments.parsers import AnswerParser, completion_text, visible_text
from hone.errors import UserError
from hone.extensions.audit.answers import OPPOSITES, Form, Kind, answer_of, kind_of, statement_of, wrong_answer
from hone.extensions.audit.probes import Subject, subject_of
from hone.extensions.viewer.card.measures import Answer, Evaluated, Leniency, Row, is_correct
from hone.runs.reader import Run
from hone.runs.summary import Summary
from hone.types import Example, Outcome, Score

TRIED = 16
"""Examples used to test if a task can be read leniently."""
AT_ONCE = 8
"""Number of examples to read, or of texts to grade, between checks of the clock."""
LONGEST = 2_000
"""Most characters of an answer."""
END = 4 * LONGEST
"""Only this number of characters at the end of a text is read, so that any text takes milliseconds."""


class CannotSay(Exception):
    """Raised with the reason if a task can't be read leniently."""


def read_recorded(
    run: Summary, evaluated: Sequence[Evaluated], grading: GradingConfig, seconds: float, trust_local_task: bool = False
) -> Leniency:
    """Read a run's evaluations leniently with the task of its config, for about `seconds` after the task is loaded.

    Call it within `trust.opened_run`. With `trust_local_task`, the task may have changed since the run.
    """
    config = Run(run.path).config
    recorded = run.info.get("sources", {}).get("environment")
    try:
        if run.kind == "eval":
            task = EnvConfig(id=config["env"], args=config.get("env_args") or {}, template=config.get("template"))
        elif (orch := config["orchestrator"]).get("envs") or orch.get("eval", {}).get("envs"):
            return Leniency("the run has several tasks")
        else:
            task = TaskConfig.model_validate(config["orchestrator"]["env"])
        env = configured(task.id, task.args, task.template, "template")
    except UserError as error:
        return Leniency(f"the task can't be loaded ({error})")
    if recorded and not trust_local_task and env.digests([]).get("environment") not in (None, recorded):
        return Leniency("the task's file has changed since the run")
    env.use_workers(grading)
    try:
        return read(env, evaluated, run.info.get("seed") or 0, seconds)
    finally:
        env.close_workers()


def read(
    env: Environment,
    evaluated: Sequence[Evaluated],
    seed: int,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> Leniency:
    """Read evaluations leniently, example by example in random order, for about `seconds`."""
    examples = sorted(set.intersection(*(set(one.by_example) for one in evaluated)))
    order = [examples[i] for i in rng.stream(seed, "card", "lenient").permutation(len(examples))]
    try:
        return _Reader(env, evaluated, order, seed, clock, clock() + seconds).read()
    except CannotSay as reason:
        return Leniency(str(reason))


@dataclass
class _Reader:
    env: Environment
    evaluated: Sequence[Evaluated]
    order: Sequence[int]
    seed: int
    clock: Callable[[], float]
    end: float

    def read(self) -> Leniency:
        self.try_out()
        found: dict[str, list[Answer]] = {one.key: [] for one in self.evaluated}
        done: list[int] = []
        for start in range(0, len(self.order), AT_ONCE):
            members = self.order[start : start + AT_ONCE]
            asked = [
                (one.key, row, *candidate)
                for one in self.evaluated
                for example in members
                for row in one.by_example[example]
                if not is_correct(row)
                for candidate in self.candidates(row)
            ]
            scores = self.scores([(subject, answer) for *_, subject, answer in asked])
            if len(scores) < len(asked):
                break
            done += members
            for (key, row, kind, *_), score in zip(asked, scores, strict=True):
                correct = score.outcome is Outcome.CORRECT
                if correct or (not score.outcome.is_failure and score.reward > row["reward"]):
                    found[key].append(Answer(row["example"], row["rollout"], kind, score.reward, correct))
        if not done:
            raise CannotSay("no example was read within the time limit")
        return Leniency("", sorted(done), found, len(self.order))

    def try_out(self) -> None:
        """Raise CannotSay unless the grader tells right from wrong answers in the task's form."""
        if self.env.max_turns > 1 or self.env.keeps_state:
            raise CannotSay("a conversation of several turns is not read leniently: its state is not recorded")
        if self.env.rubric.needs_ids:
            raise CannotSay("its reward needs the completion's tokens, which a rewritten answer lacks")
        subjects = [self.subject(self.evaluated[0].by_example[example][0]) for example in self.order[:TRIED]]
        right = [(one, answer_of(one)) for one in subjects]
        wrong = [(one, other) for one in subjects if (other := wrong_answer(one, subjects))]
        correct = [score.outcome is Outcome.CORRECT for score in self.scores([*right, *wrong])]
        if len(correct) < len(right) + len(wrong):
            raise CannotSay("grading takes too long for that")
        if not wrong or correct != [True] * len(right) + [False] * len(wrong):
            raise CannotSay("this task's grader doesn't tell right from wrong answers in the form of its references")

    def scores(self, answers: Sequence[tuple[Subject, str]]) -> list[Score]:
        """Grade answers in the task's form. Stop at the time limit, or if the grader hangs."""
        pairs = [(subject.example, statement_of(subject).stating(answer)) for subject, answer in answers]
        scores: list[Score] = []
        while len(scores) < len(pairs) and self.clock() < self.end:
            scores += self.env.grade_many(pairs[len(scores) :][:AT_ONCE], self.seed)
            if any(score.outcome is Outcome.GRADER_TIMEOUT for score in scores):
                self.end = 0.0
        return scores

    def candidates(self, row: Row) -> list[tuple[str, Subject, str]]:
        subject = self.subject(row)
        kind = kind_of(subject, self.env.answer_is_exact)
        found = candidates(completion_text(list(row["completion"])), kind, answer_of(subject))
        return [(name, subject, answer) for name, answer in found.items()]

    def subject(self, row: Row) -> Subject:
        """Return a row's example and reference. Raises CannotSay if the reference is missing, or is code or JSON."""
        example = Example(list(row["prompt"]), str(row["answer"]), dict(row["info"] or {}), row["example_id"])
        subject = subject_of(self.env, example)
        if not isinstance(subject.reference, str):
            raise CannotSay("the task declares no reference text, which would show the form of its answers")
        if statement_of(subject).form is Form.CODE:
            raise CannotSay("its answers are code or JSON, which can't be found in a text")
        return subject


_TEXTS = (Kind.TEXT, Kind.EXACT, Kind.UNKNOWN)
_TAG = re.compile(r"<(/?)(?!(?:think|thinking|reasoning|thought|scratchpad)>)([A-Za-z]\w*)>")
_BOX = AnswerParser(forms=["boxed"])
_STATED = re.compile(
    r"\b(?:answer|result|solution|total|value|word|number)\b[\s*_]*(?:is|are|was|be|equals|:|=)[\s:]*([^\n]*)"
    r"|=\s*(?=\S)([^=\n]+?)(?=$|\n|[.,;]\s)",
    re.IGNORECASE,
)
_ANSWER_IS = re.compile(r"\banswer\b[\s*_]*(?:is|are|be|:|=)[\s:]*([^\n]*)", re.IGNORECASE)
_NUMBER = re.compile(
    r"-?\\[dt]?frac\s*\{\d+\}\s*\{\d+\}|(?<![\w.])-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:\s?/\s?\d+)?(?!\d)"
    r"|(?<![\w.])-?\.\d+"
)
_OPERAND = r"[-(\s]*+\d++[)\s]*+"
_EXPRESSION = re.compile(rf"(?<!\d){_OPERAND}(?:(?:[-+*/×÷−·]|\\times|\\cdot|\\div){_OPERAND})+")
_WORD = re.compile(r"[^\W\d_]+")
_LETTER = re.compile(r"(?<![^\W_])\(?[a-z]\)?(?![^\W_])")
_CAPITAL = re.compile(r"(?<![^\W_])\(?[A-HJ-Z]\)?(?![^\W_])")
_PARTED = re.compile(r"(?<!\d)\d++(?:[-/.:–]\d++)+")
_QUOTED = re.compile(r"""\s*(?:\*\*|["“'‘`])(.+?)(?:\*\*|["”'’`])[.!]?\s*""", re.DOTALL)
_MATH = re.compile(r"\$([^$\n]+)\$|\\\(((?:(?!\\[()]).)+)\\\)")


def candidates(text: str, kind: Kind, like: str = "") -> dict[str, str]:
    """Return distinct answers by kind of place, the most reliable place first.

    `kind` is the kind of the task's answers. The reference `like` shows if they are words, letters of a choice, or
    dates. If few answers are possible (a letter, yes or no), only the most reliable place counts.
    """
    text, pattern = visible_text(text)[-END:], _pattern(kind, like)
    few = kind is Kind.WORD and (pattern in (_LETTER, _CAPITAL) or any(like.lower() in pair for pair in OPPOSITES))
    stated = [*(_ANSWER_IS if kind in (*_TEXTS, Kind.EXPRESSION, Kind.WORD) else _STATED).finditer(text)]
    statement = next(filter(None, stated[-1].groups()), None) if stated else None
    answers: dict[str, str] = {}
    for name, place in {"tag": _tagged(text), "box": _BOX.parse(text), "statement": statement}.items():
        if place and len(place) <= LONGEST:
            place = place.rpartition("=")[2] if kind is Kind.NUMBER else place
            if len(there := set(_answers(place, kind, pattern))) == 1:
                answers[name] = there.pop()
    lines = [line for line in text.splitlines() if line.strip()]
    end = "".join(lines[-1:]) if kind in (*_TEXTS, Kind.MATH) else text
    answers["end"] = (_answers(end, kind, pattern) or [""])[-1]
    found: dict[str, str] = {}
    for name, answer in answers.items():
        if 0 < len(answer) <= LONGEST and answer not in found.values() and not (few and found):
            found[name] = answer
    return found


def _pattern(kind: Kind, like: str) -> re.Pattern[str]:
    if kind in (Kind.NUMBER, Kind.EXPRESSION):
        return _NUMBER if kind is Kind.NUMBER else _EXPRESSION
    letter = like.strip("()")
    if len(letter) == 1 and letter.isalpha():
        return _CAPITAL if letter.isupper() else _LETTER
    return _PARTED if _PARTED.search(like) else _WORD


def _tagged(text: str) -> str | None:
    """Return the text after the last opening tag that has text; else, if the first tag closes, the text before that."""
    tags = [*_TAG.finditer(text)]
    ends = [tag.start() for tag in tags[1:]] + [len(text)]
    inside = [text[tag.end() : end].strip() for tag, end in zip(tags, ends, strict=False) if not tag[1]]
    before = text[: tags[0].start()] if tags and tags[0][1] else None
    return next(filter(None, reversed(inside)), before)


def _answers(place: str, kind: Kind, pattern: re.Pattern[str]) -> list[str]:
    if kind in _TEXTS and (quoted := _QUOTED.fullmatch(place)):
        return [quoted[1]]
    place = re.sub(r"</?[A-Za-z]\w*>?", " ", place).replace("**", "").strip()
    if kind in _TEXTS:
        return [place]
    if kind is Kind.MATH:
        return [match[1] or match[2] for match in _MATH.finditer(place)] or [place.strip(" $.")]
    return [_balanced(match.group()) for match in pattern.finditer(place)]


def _balanced(expression: str) -> str:
    text = expression.strip()
    while text.count(")") > text.count("(") and text.endswith(")"):
        text = text[:-1].rstrip()
    while text.count("(") > text.count(")") and text.startswith("("):
        text = text[1:].lstrip()
    return text
