"""Texts to grade for an audit, and their scores.

prober = Prober(env, subjects_of(env, 32, seed=0))
probes = prober.grade([Text(subject, "empty", "") for subject in prober.subjects])
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hone import rng
from hone.environments import Environment
from hone.environments.driver import Driver, Model, NoRoom, Tools, Turn
from hone.environments.parsers import completion_text
from hone.environments.references import forms, reference_of
from hone.errors import UserError
from hone.extensions.audit.report import Evidence, Finding, Verdict, listed
from hone.grading import last_line
from hone.types import BOUND, Example, Message, Outcome, Rollout, Score, Usage

Script = str | Sequence[Message]
"""The model's output: a text, or messages; only assistant messages are used."""
AT_ONCE = 8
"""Number of texts with new names to grade at a time."""
MOST_HUNG = 4
"""After a grader hung at texts of this many names, no more texts are tried."""
DERIVED_FROM = 4
"""Number of examples on which the forms of a derived reference are tried."""
TOO_LARGE = "too-large"
"""Name of the finding that a reward is beyond BOUND, which always stops a run."""
_SHOWN = 3
"""Number of texts that a finding stores."""


@dataclass(frozen=True)
class Subject:
    """An example, and a reference completion (None if the task declares no reference).

    `text` is the last message of the reference. `answer` is what the task's parser returns for `text`; it is None if
    `text` does not contain that answer word for word.
    """

    example: Example
    reference: Script | None
    text: str = ""
    answer: str | None = None

    def render(self, text: str) -> Script:
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
    text: Text
    score: Score

    @property
    def name(self) -> str:
        return self.text.name

    @property
    def example_id(self) -> str:
        return self.text.subject.example.id

    @property
    def correct(self) -> bool:
        return self.score.outcome is Outcome.CORRECT

    @property
    def failed(self) -> bool:
        return self.score.outcome.is_failure

    def evidence(self, expected: str) -> Evidence:
        completion = self.text.completion
        completion = completion if isinstance(completion, str) else [dict(message) for message in completion]
        reward = None if self.failed else self.score.reward
        return Evidence(self.example_id, completion, str(self.score.outcome), reward, expected, self.score.detail)


@dataclass
class Prober:
    """Grades texts as in training. Texts of one example that are graded together are one group.

    `graded` holds all probes so far, and `hung` the names of texts at which the grader hung and was stopped.
    """

    env: Environment
    subjects: Sequence[Subject]
    seed: int = 0
    form: str = ""
    """The template that `with_derived` made the references with; "" if the task declares them."""
    tried: tuple[str, ...] = ()
    graded: list[Probe] = field(default_factory=list)
    hung: set[str] = field(default_factory=set)

    @property
    def distinct(self) -> list[Subject]:
        """The subjects, each example once: a data set may repeat examples."""
        return list({subject.example.id: subject for subject in self.subjects}.values())

    @property
    def references(self) -> list[Probe]:
        return list({probe.example_id: probe for probe in self.graded if probe.name == "reference"}.values())

    def grade(self, texts: Sequence[Text]) -> list[Probe]:
        """Grade the texts; return their probes in order.

        A grader that hangs uses up its time limit. So one text of each name is graded first; if the grader hangs at
        it, other texts of that name are left out. After `MOST_HUNG` such names, all further texts are left out.
        """
        firsts: dict[str, int] = {}
        for index, text in enumerate(texts):
            firsts.setdefault(text.name, index)
        ahead = list(firsts.values())
        batches = [ahead[start : start + AT_ONCE] for start in range(0, len(ahead), AT_ONCE)]
        batches.append(sorted(set(range(len(texts))) - set(ahead)))
        probes: dict[int, Probe] = {}
        for batch in batches:
            indices = [i for i in batch if texts[i].name not in self.hung]
            if indices and len(self.hung) < MOST_HUNG:
                graded = self._grade([texts[i] for i in indices])
                probes |= zip(indices, graded, strict=True)
        made = [probes[i] for i in sorted(probes)]
        self.graded += made
        return made

    def _grade(self, texts: Sequence[Text]) -> list[Probe]:
        pairs: list[tuple[Example, Any]] = [(text.subject.example, text.completion) for text in texts]
        replies = play_many(self.env, pairs)
        pairs = [(example, reply) for (example, _), reply in zip(pairs, replies, strict=True)]
        keys = [example.id for example, _ in pairs]
        scores = self.env.grade_many(pairs, self.seed, keys)
        if self.env.rubric.group_funcs:
            # A text that makes the call for its group fail costs the others nothing here: each is tried alone.
            failed = [i for i, score in enumerate(scores) if score.outcome.is_failure and keys.count(keys[i]) > 1]
            for i, score in zip(failed, self.env.grade_many([pairs[i] for i in failed], self.seed), strict=True):
                scores[i] = score
        probes = [Probe(text, score) for text, score in zip(texts, scores, strict=True)]
        self.hung |= {probe.name for probe in probes if probe.score.outcome is Outcome.GRADER_TIMEOUT}
        return probes


def with_derived(prober: Prober) -> Prober:
    """Return a prober with references made from answers of the data, in the form that is correct most often.

    The forms are tried on a few examples. The prober keeps its subjects if the task declares references or has several
    turns, if no form is correct, or if correctness does not depend on the answer.
    """
    env, subjects = prober.env, [subject for subject in prober.distinct if subject.example.answer]
    declared = any(subject.reference is not None for subject in prober.subjects)
    if declared or not subjects or not env.reads_answer or env.max_turns > 1:
        return prober
    few, tried = subjects[:DERIVED_FROM], forms(subjects[0].example)
    texts = [Text(subject, form, reference_of(subject.example, form)) for form in tried for subject in few]
    probes = replace(prober, graded=[]).grade(texts)
    right = Counter(probe.name for probe in probes if probe.correct or probe.score.too_large)
    form = max(tried, key=lambda one: right[one])
    if not right[form]:
        return replace(prober, tried=tuple(tried))
    made = [subject_with(env, one.example, reference_of(one.example, form)) for one in prober.subjects]
    return replace(prober, subjects=made, form=form, tried=tuple(tried))


def subjects_of(env: Environment, count: int, seed: int, split: str = "train") -> list[Subject]:
    """Draw `count` examples of a split with the seed. Raises UserError if completions can't be graded."""
    if env.why_not_graded:
        raise UserError(f"{env.label} can't be audited: {env.why_not_graded}")
    examples = env.split(split)
    chosen = rng.stream(seed, "audit", split).permutation(len(examples))[:count]
    return [subject_of(env, examples[int(index)]) for index in sorted(chosen)]


def subject_of(env: Environment, example: Example) -> Subject:
    """Return the example with its reference, if the task declares one."""
    try:
        reference = env.reference(example)
    except UserError:
        if env.given_reference is not None:
            raise
        return Subject(example, None)
    return subject_with(env, example, reference)


def subject_with(env: Environment, example: Example, reference: Script) -> Subject:
    text = completion_text(reference)
    answer = env.parser.parse_answer(text)
    return Subject(example, reference, text, answer if isinstance(answer, str) and answer and answer in text else None)


def examples_of(probes: Sequence[Probe], expected: str) -> tuple[Evidence, ...]:
    """Return the evidence of up to three probes: short texts first, with different names if possible."""
    ordered = sorted(probes, key=lambda probe: len(str(probe.text.completion)))
    firsts: dict[str, Probe] = {}
    for probe in ordered:
        firsts.setdefault(probe.name, probe)
    rest = [probe for probe in ordered if firsts[probe.name] is not probe]
    return tuple(probe.evidence(expected) for probe in [*firsts.values(), *rest][:_SHOWN])


# Failures of a grader: the name of the finding, a verb, and the remedy.
_FAILURES = {
    Outcome.GRADER_ERROR: (
        "raises",
        "fails",
        "return 0.0 for what cannot be read, whatever a model writes; such a sample has no reward and is lost",
    ),
    Outcome.GRADER_TIMEOUT: (
        "hangs",
        "was stopped",
        "limit what the grader computes: no eval of a model's text, no powers of powers, no regular expression that "
        "tries all ways to split a text",
    ),
}


def failures(probes: Sequence[Probe]) -> list[Finding]:
    """Return the findings `raises`, `hangs` and `too-large`, at most one of each for all probes."""
    findings = []
    if large := [probe for probe in probes if probe.score.too_large]:
        names = tuple(dict.fromkeys(probe.name for probe in large))
        title = f"the reward is beyond {BOUND} at {len(large)} of {len(probes)} texts ({listed(names)}): "
        title += str(large[0].score.components)
        shown = examples_of(large, f"a reward within {BOUND}")
        findings.append(Finding(TOO_LARGE, Verdict.FAIL, title, "scale the rewards or weights down", names, shown))
    for outcome, (name, verb, remedy) in _FAILURES.items():
        if failed := [probe for probe in probes if probe.score.outcome is outcome and not probe.score.too_large]:
            names = tuple(dict.fromkeys(probe.name for probe in failed))
            reason = last_line(failed[0].score.detail)
            title = f"the grader {verb} at {len(failed)} of {len(probes)} texts ({listed(names)}): {reason}"
            if len(failed) == len(probes):
                remedy = "make it give a reward at all, or start the service that it asks: it fails whatever is written"
            shown = examples_of(failed, "a reward, be it 0")
            findings.append(Finding(name, Verdict.FAIL, title, remedy, names, shown))
    return findings


def play_many(env: Environment, scripts: Sequence[tuple[Example, Script]]) -> list[Rollout]:
    """Play the scripts as the model's turns. A conversation ends when the environment or the script ends."""
    driver = ScriptDriver(env)
    return driver.run([ScriptedModel(driver, i, *script) for i, script in enumerate(scripts)])


class ScriptDriver(Driver):
    """Asks the environment once for all equal conversations, because tools may be slow."""

    def respond(self, conversations: list[Any]) -> list[Any]:
        keys = [json.dumps(one, sort_keys=True, default=str) for one in conversations]
        asked = dict(zip(keys, conversations, strict=True))
        answers = dict(zip(asked, super().respond(list(asked.values())), strict=True))
        return [copy.deepcopy(answers[key]) for key in keys]


class ScriptedModel(Model):
    def __init__(self, driver: Driver, index: int, example: Example, script: Script) -> None:
        super().__init__(driver, index, example, "audit")
        self._turns = [dict(turn) for turn in messages_of(script) if turn.get("role") == "assistant"]
        self._messages = example.prompt

    def key(self, *purpose: str | int) -> int:
        return 0

    async def sample(self, messages: list[Message], tools: Tools = None) -> Turn:
        if self.asked == len(self._turns):
            raise NoRoom("the script ends here")
        self._messages, self.asked = [*messages, self._turns[self.asked]], self.asked + 1
        return Turn(self._messages[-1], "stop")

    def rollout(self, turn_rewards: Sequence[float] | None = None) -> Rollout:
        return Rollout(self.sample_id, self._messages, "stop", usage=Usage(turns=self.asked))


def messages_of(script: Script) -> Sequence[Message]:
    return [{"role": "assistant", "content": script}] if isinstance(script, str) else script
