"""Reading completions leniently: answers that are found in them, in the task's own form, by the task's own grader.

An answer that `candidates` finds is put where the answer stands in the example's reference, with what marks it there
as such; so what is judged is whether it is right, not how it is written. Whether that works for a task is tried first:
right answers in that form must be correct, and wrong ones must not be.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from hone import rng
from hone.audit.answers import Form, answer_of, kind_of, statement_of, wrong_answer
from hone.audit.probes import Subject, subject_of
from hone.config.shared import EnvConfig, GradingConfig
from hone.environments import Environment, MultiTurnEnv
from hone.environments.loading import configured
from hone.environments.parsers import completion_text
from hone.environments.task_files import refuse_other_task
from hone.errors import UserError
from hone.runs.settings import moved
from hone.runs.summary import Summary
from hone.types import Example, Outcome, Score
from hone.viewer.card.candidates import candidates
from hone.viewer.card.evaluations import Evaluated, Row, is_correct
from hone.viewer.card.leniency import Answer, Leniency, Place

MOST = 4_096
"""Completions that are read, at most."""
TRIED = 16
"""Examples by which it is tried whether a task can be read leniently."""
AT_ONCE = 256
"""Texts that are graded in one call, at most."""
AT_FIRST = 2
"""In the first call; each has four times as many as the one before, so that a grader that hangs costs few texts."""
HUNG = 2
"""Texts at which a grader may hang before no more are graded."""
GRADER_SECONDS = 1.0
"""Of processor time, for one text."""
Clock = Callable[[], float]


class CannotSay(Exception):
    """Why a task's completions can't be read leniently, as the end of a sentence."""


def read_recorded(
    run: Summary, evaluated: Sequence[Evaluated], grading: GradingConfig, seconds: float, trust_local_task: bool = False
) -> Leniency:
    """Read the evaluations of a run with the task that its config names; in `seconds`, once the task is loaded."""
    try:
        env = _task_of(run, trust_local_task)
    except (UserError, CannotSay) as error:
        return Leniency(f"the task can't be had ({error})" if isinstance(error, UserError) else str(error))
    env.use_workers(grading)
    try:
        return read(env, evaluated, run.info.get("seed") or 0, seconds)
    finally:
        env.close_workers()


def _task_of(run: Summary, trust_local_task: bool) -> Environment:
    """Return the run's task, as it was. CannotSay if it has changed since; a local file that has is not executed."""
    config = moved(run.config, run.config.get("output_dir", ""), run.path)
    if run.kind == "eval":
        name = "template"
        task = EnvConfig(id=config["env"], args=config.get("env_args") or {}, template=config.get("template"))
    else:
        task = EnvConfig.model_validate(config.get("orchestrator", {}).get("env", {}))
        name = "orchestrator.env.template"
    recorded = run.info.get("sources", {}).get("environment")
    refuse_other_task(task.id, task.args, recorded, trust_local_task)
    env = configured(task.id, task.args, task.template, name)
    if recorded and not trust_local_task and env.digests([]).get("environment") not in (None, recorded):
        raise CannotSay("the task's file has changed since the run")
    return env


def read(
    env: Environment, evaluated: Sequence[Evaluated], seed: int, seconds: float, clock: Clock = time.monotonic
) -> Leniency:
    """Read all completions of these evaluations of `env`, example by example in random order, until `seconds`
    are over or `MOST` are read. What the task called correct is not graded again.
    """
    try:
        reader = Reader(env, evaluated, seed, seconds, clock)
        with _quick(env):
            reader.try_out()
            reader.read_all()
    except CannotSay as reason:
        return Leniency(str(reason))
    if not reader.done:
        return Leniency("no example was read in the time that there was")
    return Leniency("", frozenset(reader.done), reader.found, reader.asked)


@dataclass(frozen=True)
class Asked:
    """A text to be graded: the answer that was found in a completion of an evaluation, in the task's form. `paid` is
    the completion's own reward.
    """

    key: str
    place: Place
    paid: float
    kind: str
    example: Example
    text: str


class Reader:
    """Reads the completions of some evaluations of a task, in about `seconds`: no more texts are graded in one call
    than there seems to be time for.
    """

    def __init__(
        self, env: Environment, evaluated: Sequence[Evaluated], seed: int, seconds: float, clock: Clock
    ) -> None:
        if isinstance(env, MultiTurnEnv):
            raise CannotSay("a conversation of several turns is not read generously: its state is not recorded")
        self.env, self.evaluated, self.seed = env, evaluated, seed
        self.found: dict[str, dict[Place, Answer]] = {one.key: {} for one in evaluated}
        self.done: list[int] = []
        self._hung = 0
        self._clock, self._end = clock, clock() + seconds
        self._started, self._each = False, 0.0
        examples = set.intersection(*(set(one.by_example) for one in evaluated)) if evaluated else set()
        order = sorted(examples)
        self.order = [order[i] for i in rng.stream(seed, "card", "lenient").permutation(len(order))]
        self.asked = len(order)

    def try_out(self) -> None:
        """Raise CannotSay unless right answers in the task's form are correct, and wrong ones are not."""
        rows = {row["example"]: row for row in self.evaluated[0].rows}
        subjects = [self._subject(rows[example]) for example in self.order[:TRIED]]
        if not subjects:
            raise CannotSay("no example of the evaluation was graded")
        right = [(one.example, statement_of(one).stating(answer_of(one))) for one in subjects]
        wrong = [
            (one.example, statement_of(one).stating(other))
            for one in subjects
            if (other := wrong_answer(one, subjects))
        ]
        pairs, outcomes = [*right, *wrong], []
        for first, stop in ((0, 1), (1, 4), (4, len(pairs))):  # the first starts the processes, the next tell the pace
            if (stop - first) * self._each > self._left:
                raise CannotSay(f"grading takes {self._each:.1f} s for each text, too long for that")
            outcomes += [score.outcome for score in self._scored(pairs[first:stop])]
        if any(outcome is not Outcome.CORRECT for outcome in outcomes[: len(right)]):
            raise CannotSay("this task's right answers can't be told apart from the form around them")
        if not wrong or any(outcome is Outcome.CORRECT for outcome in outcomes[len(right) :]):
            raise CannotSay("this task calls wrong answers in its form correct, or none can be made to try")

    @property
    def _left(self) -> float:
        """Seconds that there still are."""
        return self._end - self._clock()

    def _scored(self, pairs: Sequence[tuple[Example, str]]) -> list[Score]:
        """Grade, and keep how long each took."""
        if not pairs:
            return []
        began = self._clock()
        scores = self.env.grade_many(pairs, self.seed)
        self._each = (self._clock() - began) / len(pairs) if self._started else 0.0
        self._started = True
        return scores

    def read_all(self) -> None:
        """Read example after example until the time is over, or no more may be read."""
        read, size = 0, AT_FIRST
        batch: list[Asked] = []
        members: list[int] = []
        for example in self.order:
            if self._left <= 0 or read >= MOST:
                break
            asked, count = self._asked(example)
            if batch and (len(batch) + len(asked)) * self._each > self._left:
                break
            read += count
            batch += asked
            members.append(example)
            if len(batch) >= size:
                if not self._grade(batch, members):
                    return
                batch, members, size = [], [], min(4 * size, AT_ONCE)
        if len(batch) * self._each <= max(self._left, 0.0):
            self._grade(batch, members)

    def _grade(self, batch: Sequence[Asked], members: Sequence[int]) -> bool:
        """Grade the texts; the examples are done then. False if the grader hangs too often to go on."""
        scores = self._scored([(one.example, one.text) for one in batch])
        for one, score in zip(batch, scores, strict=True):
            if not score.outcome.is_failure:
                self._note(one, Answer(one.kind, score.reward, score.outcome is Outcome.CORRECT))
        self._hung += sum(score.outcome is Outcome.GRADER_TIMEOUT for score in scores)
        self.done += members
        return self._hung < HUNG

    def _note(self, asked: Asked, found: Answer) -> None:
        """Keep what is worth more than the completion got, and than what was found in it before."""
        known = self.found[asked.key].get(asked.place)
        least = (known.correct, known.reward) if known else (False, asked.paid)
        if (found.correct, found.reward) > least:
            self.found[asked.key][asked.place] = found

    def _asked(self, example: int) -> tuple[list[Asked], int]:
        """Return the texts of an example's completions that were not called correct, and how many those are."""
        asked, count, subject = [], 0, None
        for one in self.evaluated:
            for row in one.by_example[example]:
                if is_correct(row):
                    continue
                count += 1
                subject = subject or self._subject(row)
                like = answer_of(subject)
                kind = kind_of(subject, self.env.answer_is_exact)
                for name, answer in candidates(completion_text(list(row["completion"])), kind, like).items():
                    place = (example, row["rollout"])
                    text = statement_of(subject).stating(answer)
                    asked.append(Asked(one.key, place, row["reward"], name, subject.example, text))
        return asked, count

    def _subject(self, row: Row) -> Subject:
        """Return the example of a row, with its reference. CannotSay without one, or one whose answer is fixed."""
        example = Example(list(row["prompt"]), str(row["answer"]), dict(row["info"] or {}), row["example_id"])
        subject = subject_of(self.env, example)
        if subject.reference is None:
            raise CannotSay("the task declares no reference completion, which would say what its answers look like")
        if not isinstance(subject.reference, str):
            raise CannotSay("the task's reference is a conversation")
        if statement_of(subject).form is Form.CODE:
            raise CannotSay("its answers are code, or JSON, which can't be found in other words")
        return subject


@contextmanager
def _quick(env: Environment) -> Iterator[None]:
    """Let a text, in the block, at which a grader hangs cost a second of processor time."""
    before = env.limits
    if env.rubric.inline or before.timeout <= GRADER_SECONDS:  # nothing in an inline one can hang
        yield
        return
    env.limits = replace(before, timeout=min(before.timeout, GRADER_SECONDS))
    try:
        yield
    finally:
        env.limits = before
