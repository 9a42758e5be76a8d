"""Texts whose grading says something about a task, and what grading made of them.

prober = Prober(env, subjects_of(env, 32, seed=0))
probes = prober.grade([Text(subject, "empty", "") for subject in prober.subjects])
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hone import rng
from hone.audit.report import Evidence, Finding, Verdict, listed
from hone.environments import Environment, MultiTurnEnv
from hone.environments.multi_turn import settled
from hone.environments.parsers import completion_text
from hone.errors import UserError
from hone.grading import last_line
from hone.types import Example, Message, Outcome, Reply, Score

Script = str | Sequence[Message]
"""The model's output: a text, or messages, of which only the assistant's count."""
AT_ONCE = 8
"""Names of texts that are tried at a time."""
MOST_HUNG = 4
"""Most names of texts at which a grader may hang; then no more are tried."""
_SHOWN = 3
"""Texts that a finding keeps."""


@dataclass(frozen=True)
class Subject:
    """An example, and a completion of it that deserves full marks: None if the task declares none.

    `text` is the last message of that completion, the one that is graded; `answer` is its answer as it stands in
    `text`, by the task's own parser; None if it is not there word for word.
    """

    example: Example
    reference: Script | None
    text: str = ""
    answer: str | None = None

    def render(self, text: str) -> Script:
        """Return the reference with another last message."""
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
    def example_id(self) -> str:
        return self.text.subject.example.id

    @property
    def correct(self) -> bool:
        return self.score.outcome is Outcome.CORRECT

    @property
    def failed(self) -> bool:
        """True if the grader failed, so that there is no reward."""
        return self.score.outcome.is_failure

    @property
    def model_texts(self) -> list[str]:
        """The texts of the model's messages."""
        messages = messages_of(self.text.completion)
        return [str(message.get("content") or "") for message in messages if message.get("role") == "assistant"]

    def evidence(self, expected: str) -> Evidence:
        completion = self.text.completion
        completion = completion if isinstance(completion, str) else [dict(message) for message in completion]
        reward = None if self.failed else self.score.reward
        return Evidence(self.example_id, completion, str(self.score.outcome), reward, expected, self.score.detail)


@dataclass
class Prober:
    """Grades texts by the task's real path.

    `hung`: names of texts at which the grader was ended. `unsteady`: a text was graded in two ways.
    """

    env: Environment
    subjects: Sequence[Subject]
    seed: int = 0
    hung: set[str] = field(default_factory=set)
    unsteady: bool = False

    @property
    def distinct(self) -> list[Subject]:
        """The subjects, each example once: a data set may repeat one."""
        return list({subject.example.id: subject for subject in self.subjects}.values())

    def grade(self, texts: Sequence[Text]) -> list[Probe]:
        """Grade the texts; return their probes in order.

        A text at which the grader hangs costs its whole deadline. So the first text of each name is tried first; if it
        hangs, the others of its name are left out, and after `MOST_HUNG` such names all the rest.
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
        scripts = [(texts[i].subject.example, texts[i].completion) for i in indices]
        pairs: list[tuple[Example, Any]] = list(scripts)
        if isinstance(self.env, MultiTurnEnv):
            replies = play_many(self.env, scripts)
            pairs = [(example, reply) for (example, _), reply in zip(scripts, replies, strict=True)]
        for index, score in zip(indices, self.env.grade_many(pairs, self.seed), strict=True):
            probes[index] = Probe(texts[index], score)
            if score.outcome is Outcome.GRADER_TIMEOUT:
                self.hung.add(texts[index].name)

    def is_steady(self, probes: Sequence[Probe], most: int = 8) -> bool:
        """Return True if texts get the same score again: the first of each name, up to `most`."""
        firsts = {probe.name: probe for probe in reversed([probe for probe in probes if not probe.failed])}
        before = list(firsts.values())[-most:]
        again = self.grade([probe.text for probe in before])
        return all(
            (old.score.outcome, old.score.reward) == (new.score.outcome, new.score.reward)
            for old, new in zip(before, again, strict=False)
        )

    def unsteady_findings(self, probes: Sequence[Probe]) -> list[Finding]:
        """Return the finding that texts are graded in two ways; once for all that this prober grades."""
        if self.unsteady:
            return []
        self.unsteady = True
        title = "the same text was graded in two ways, so nothing is known about what is paid for what"
        remedy = "let the reward depend on the completion and the example alone: no clock, no draws, no memory"
        return [Finding("unsteady", Verdict.WARN, title, remedy, (), examples_of(probes, "the same reward each time"))]


def subjects_of(env: Environment, count: int, seed: int, split: str = "train") -> list[Subject]:
    """Draw `count` examples of a split by the seed, each with its reference if the task declares one."""
    examples = env.split(split)
    chosen = rng.stream(seed, "audit", split).permutation(len(examples))[:count]
    return [subject_of(env, examples[int(index)]) for index in sorted(chosen)]


def subject_of(env: Environment, example: Example) -> Subject:
    """Return the example with its reference, if the task declares one."""
    try:
        reference = env.reference(example)
    except UserError:
        return Subject(example, None)
    text = completion_text(reference)
    answer = env.parser.parse_answer(text)
    return Subject(example, reference, text, answer if isinstance(answer, str) and answer and answer in text else None)


def examples_of(probes: Sequence[Probe], expected: str) -> tuple[Evidence, ...]:
    """Return up to three of the probes to show: short texts first, of different names where there are."""
    ordered = sorted(probes, key=lambda probe: len(str(probe.text.completion)))
    firsts: dict[str, Probe] = {}
    for probe in ordered:
        firsts.setdefault(probe.name, probe)
    rest = [probe for probe in ordered if firsts[probe.name] is not probe]
    return tuple(probe.evidence(expected) for probe in [*firsts.values(), *rest][:_SHOWN])


def failures(probes: Sequence[Probe]) -> list[Finding]:
    """Return at most one finding `raises` and one `hangs` for all of the probes."""
    found = []
    raised = [probe for probe in probes if probe.score.outcome is Outcome.GRADER_ERROR]
    hung = [probe for probe in probes if probe.score.outcome is Outcome.GRADER_TIMEOUT]
    if raised:
        names = tuple(dict.fromkeys(probe.name for probe in raised))
        reason = last_line(raised[0].score.detail)
        title = f"the grader fails on {len(raised)} of {len(probes)} texts ({listed(names)}): {reason}"
        remedy = "return 0.0 for what cannot be read, whatever a model writes; such a sample has no reward and is lost"
        found.append(Finding("raises", Verdict.FAIL, title, remedy, names, examples_of(raised, "a reward, be it 0")))
    if hung:
        names = tuple(dict.fromkeys(probe.name for probe in hung))
        seconds = max(probe.score.seconds for probe in hung)
        took = f", after {seconds:.1f} s" if seconds else ""
        texts = "text" if len(names) == 1 else "texts"
        reason = last_line(hung[0].score.detail)
        title = f"the grader was stopped at {len(names)} {texts}{took}: {listed(names)}; {reason}"
        remedy = (
            "limit what the grader computes: no eval of a model's text, no powers of powers, no regular expression "
            "that tries all ways to split a text"
        )
        expected = "a reward within milliseconds"
        found.append(Finding("hangs", Verdict.FAIL, title, remedy, names, examples_of(hung, expected)))
    return found


def play_many(env: MultiTurnEnv, scripts: Sequence[tuple[Example, Script]]) -> list[Reply]:
    """Let `env` answer the scripts, all in lock-step. A conversation ends where the environment or the script ends."""
    turns = [
        [dict(turn) for turn in messages_of(script) if turn.get("role") == "assistant"][: env.max_turns]
        for _, script in scripts
    ]
    messages: list[list[Message]] = [[dict(message) for message in example.prompt] for example, _ in scripts]
    states = [env.initial_state(example, seed=0) for example, _ in scripts]
    failures: list[tuple[Outcome, str] | None] = [None] * len(scripts)
    taken = [0] * len(scripts)
    live = list(range(len(scripts)))
    while live:
        for i in live:
            messages[i].append(turns[i][taken[i]])
            taken[i] += 1
        live = [i for i in live if taken[i] < env.max_turns]
        if not live:
            break
        # Conversations that are the same so far are asked about once: a tool may be slow.
        keys = {i: json.dumps((messages[i], states[i]), sort_keys=True, default=str) for i in live}
        asked = {key: (messages[i], states[i]) for i, key in keys.items()}
        answers = dict(zip(asked, env.respond_many(list(asked.values())), strict=True))
        for i in list(live):
            answer = copy.deepcopy(answers[keys[i]])
            answered, states[i], failures[i] = settled(answer, env, messages[i], states[i])
            if answered and failures[i] is None and taken[i] < len(turns[i]):
                messages[i] += answered
            else:
                live.remove(i)
    return [
        Reply(messages[i], "stop", "audit", turns=taken[i], state=states[i], failure=failures[i])
        for i in range(len(scripts))
    ]


def messages_of(script: Script) -> Sequence[Message]:
    """Return a completion as messages."""
    return [{"role": "assistant", "content": script}] if isinstance(script, str) else script
