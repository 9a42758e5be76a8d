"""Texts whose grading says something about a task, and what grading made of them.

prober = Prober(env, subjects_of(env, 32, seed=0))
probes = prober.grade([Text(subject, "empty", "") for subject in prober.subjects])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hone import rng
from hone.audit.playing import Script, play_many
from hone.audit.report import Shown
from hone.environments import Environment, MultiTurnEnv
from hone.environments.parsers import completion_text
from hone.errors import UserError
from hone.types import Example, Message, Outcome, Score

AT_ONCE = 8
"""Names of texts that are tried at a time."""
MOST_HUNG = 4
"""Names of texts at which a grader may hang before no more are tried."""


@dataclass(frozen=True)
class Subject:
    """An example, and a completion of it that deserves full marks: None if the task declares none.

    `text` is the last message of that completion, the one that is graded; `answer` is its answer as it stands in
    `text`, by the task's own parser; None if it does not stand there word for word.
    """

    example: Example
    reference: Script | None
    text: str = ""
    answer: str | None = None

    def saying(self, text: str) -> Script:
        """The reference with another last message."""
        if self.reference is None or isinstance(self.reference, str):
            return text
        last = max(i for i, message in enumerate(self.reference) if message.get("role") == "assistant")
        return [*self.reference[:last], {"role": "assistant", "content": text}]


@dataclass(frozen=True)
class Text:
    """A completion to be graded. `name` says how it was made, such as "crlf" or "empty"."""

    subject: Subject
    name: str
    completion: Script


@dataclass(frozen=True)
class Probe:
    """A graded text."""

    text: Text
    score: Score

    @property
    def name(self) -> str:
        return self.text.name

    @property
    def correct(self) -> bool:
        return self.score.outcome is Outcome.CORRECT

    @property
    def failed(self) -> bool:
        """Whether the grader failed, so that there is no reward."""
        return self.score.outcome.is_failure

    def shown(self, expected: str) -> Shown:
        completion = self.text.completion
        return Shown(
            example_id=self.text.subject.example.id,
            completion=completion if isinstance(completion, str) else [dict(message) for message in completion],
            outcome=str(self.score.outcome),
            reward=None if self.failed else self.score.reward,
            expected=expected,
            detail=self.score.detail,
        )


@dataclass
class Prober:
    """Grades texts by the task's real path. `hung` are the names of texts at which the grader was ended; `unsteady`:
    a text was found to be graded in two ways.
    """

    env: Environment
    subjects: Sequence[Subject]
    seed: int = 0
    hung: set[str] = field(default_factory=set)
    unsteady: bool = False

    @property
    def distinct(self) -> list[Subject]:
        """The subjects, each example once: a data set may repeat one, and says nothing more by it."""
        return list({subject.example.id: subject for subject in self.subjects}.values())

    def grade(self, texts: Sequence[Text]) -> list[Probe]:
        """The probes of the texts, in order. One at which the grader hangs costs its whole deadline: texts of its name
        are tried with one example first, and left out for the others if that hangs. A grader that has hung at
        `MOST_HUNG` names is known well enough: what was not tried by then is left out.
        """
        first: dict[str, int] = {}
        for index, text in enumerate(texts):
            first.setdefault(text.name, index)
        ahead = sorted(first.values())
        probes: dict[int, Probe] = {}
        for start in range(0, len(ahead), AT_ONCE):
            if len(self.hung) < MOST_HUNG:
                self._try(texts, ahead[start : start + AT_ONCE], probes)
        if len(self.hung) < MOST_HUNG:
            self._try(texts, [i for i, t in enumerate(texts) if i not in probes and t.name not in self.hung], probes)
        return [probes[i] for i in sorted(probes)]

    def _try(self, texts: Sequence[Text], indices: Sequence[int], probes: dict[int, Probe]) -> None:
        """Adds the probes of these texts."""
        made = self._grade([texts[i] for i in indices])
        probes |= zip(indices, made, strict=True)
        self.hung |= {probe.name for probe in made if probe.score.outcome is Outcome.GRADER_TIMEOUT}

    def _grade(self, texts: Sequence[Text]) -> list[Probe]:
        scripts = [(text.subject.example, text.completion) for text in texts]
        pairs: list[tuple[Example, Any]] = list(scripts)
        if isinstance(self.env, MultiTurnEnv):
            replies = play_many(self.env, scripts)
            pairs = [(example, reply) for (example, _), reply in zip(scripts, replies, strict=True)]
        scores = self.env.grade_many(pairs, self.seed)
        return [Probe(text, score) for text, score in zip(texts, scores, strict=True)]


def subjects_of(env: Environment, count: int, seed: int, split: str = "train") -> list[Subject]:
    """`count` examples of a split, drawn by the seed, each with its reference if the task declares one."""
    examples = env.split(split)
    chosen = rng.stream(seed, "audit", split).permutation(len(examples))[:count]
    return [subject_of(env, examples[int(index)]) for index in sorted(chosen)]


def subject_of(env: Environment, example: Example) -> Subject:
    """The example with its reference, if the task declares one."""
    try:
        reference = env.reference(example)
    except UserError:
        return Subject(example, None)
    messages: list[Message] = [] if isinstance(reference, str) else list(reference)
    text = reference if isinstance(reference, str) else completion_text(messages)
    answer = env.parser.parse_answer(text)
    return Subject(example, reference, text, answer if isinstance(answer, str) and answer and answer in text else None)
