"""Processes that run a task's functions: each loads the task by its id and arguments.

Functions run in hone's process if they are marked `inline`, or if no worker can load this task (it was made in a
notebook, or changed after it was loaded).
"""

from __future__ import annotations

import base64
import math
import os
import pickle
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hone.environments.rubric import Measured, Rubric, Sample, in_group
from hone.errors import UserError
from hone.grading import GraderFailure
from hone.grading.inline import MAX_DETAIL, cut
from hone.grading.pool import Pool, Process, RequestBatch
from hone.types import Message, Outcome

if TYPE_CHECKING:
    from hone.environments.environment import Limits, Origin, Progress

CHUNK = 64
"""Maximum number of samples in a question to async functions. The functions wait at the same time."""
_FAILURES = {outcome.value for outcome in Outcome if outcome.is_failure}
_NO_ANSWER = GraderFailure(Outcome.GRADER_ERROR, "the process sent what is no answer to the question it was asked")


class Workers:
    """The processes of one environment, started when they are needed, or by `pool.start`."""

    def __init__(
        self,
        origin: Origin,
        limits: Limits,
        progress: Progress = lambda words: None,
        process: Callable[..., Any] | None = None,
    ) -> None:
        self.limits, self._progress = limits, progress
        self.pool = Pool(
            Path(__file__).with_name("worker_main.py"),
            [origin.env_id, origin.kwargs, origin.folder, origin.path, origin.sources, limits.timeout],
            "grading",
            workers=limits.workers or cores(),
            memory_bytes=int(limits.memory_gib * 2**30),
            environment={"PYTHONHASHSEED": str(limits.hash_seed)},
            process=process or Process,
        )

    def grade(
        self, samples: Sequence[Sample], groups: Sequence[Sequence[Sample]], rubric: Rubric
    ) -> tuple[list[Measured], list[list[Measured]]]:
        ones = self._ask("grade", samples, rubric.num_async(of_groups=False), "grading")
        wholes = self._ask("group", groups, rubric.num_async(of_groups=True), "grading") if groups else []
        return (
            [_measured(answer, rubric.sample_funcs) for answer in ones],
            [_group_measured(*pair, rubric) for pair in zip(wholes, groups, strict=True)],
        )

    def put(self, round: RequestBatch, kind: str, item: Any) -> None:
        round.put(question(kind, [item]), times=[times_of(kind, [item])])

    def answers(
        self, round: RequestBatch, asked: Sequence[tuple[str, Any]], rubric: Rubric
    ) -> tuple[list[Measured], list[list[Measured]]]:
        found = self._ask_chunks([(kind, [item]) for kind, item in asked], 0, "grading", round)
        ones, wholes = [], []
        for answer, (kind, item) in zip(found, asked, strict=True):
            one = answer if isinstance(answer, GraderFailure) else answer[0]
            if kind == "grade":
                ones.append(_measured(one, rubric.sample_funcs))
            else:
                wholes.append(_group_measured(one, item, rubric))
        return ones, wholes

    def open_round(self) -> AbstractContextManager[RequestBatch]:
        """Open a batch for questions about samples and groups (see `put`). No function may be async."""
        return self.pool.open_round(*self.limits.seconds(0), "grading")

    def respond(
        self, turns: Sequence[tuple[list[Message], dict[str, Any]]], waits: bool
    ) -> list[tuple[list[Message], dict[str, Any]] | GraderFailure]:
        return [_responded(answer) for answer in self._ask("respond", turns, int(waits), "answering the model")]

    def _ask(self, kind: str, items: Sequence[Any], waits: int, doing: str) -> list[Any]:
        """Return an answer for each item. If functions are async (`waits` > 0), one question has many items.

        If a question fails, each of its items is sent again alone, so that only the cause fails.
        """
        size = max(1, min(CHUNK, math.ceil(len(items) / self.pool.workers))) if waits else 1
        chunks = [(kind, items[start : start + size]) for start in range(0, len(items), size)]
        answers: list[Any] = []
        again: list[int] = []
        for (_, chunk), answer in zip(chunks, self._ask_chunks(chunks, waits, doing), strict=True):
            if isinstance(answer, GraderFailure) and len(chunk) > 1:
                again += range(len(answers), len(answers) + len(chunk))
            answers += [answer] * len(chunk) if isinstance(answer, GraderFailure) else answer
        alone = self._ask_chunks([(kind, [items[i]]) for i in again], waits, doing) if again else []
        for index, answer in zip(again, alone, strict=True):
            answers[index] = answer if isinstance(answer, GraderFailure) else answer[0]
        return answers

    def _ask_chunks(
        self, chunks: Sequence[tuple[str, Sequence[Any]]], waits: int, doing: str, round: RequestBatch | None = None
    ) -> list[Any]:
        """Return for each chunk (kind, items) a list of answers or a failure. `round`: a batch with these questions."""
        cpu, clock = self.limits.seconds(waits)
        allowed = f"{clock:g} s" if cpu is None else f"{cpu:g} s of the processor, {clock:g} s by the clock"
        times = [times_of(*chunk) for chunk in chunks]

        def on_answer(done: int, answer: Any) -> None:
            self._progress(f"{doing}: {done} of {len(chunks)} done")

        if round is None:
            questions = [question(*chunk) for chunk in chunks]
            answers = self.pool.ask_all(questions, cpu, clock, doing, on_answer, times)
        else:
            answers = round.answers(on_answer)
        self._progress("")
        for i, (answer, (kind, chunk)) in enumerate(zip(answers, chunks, strict=True)):
            if isinstance(answer, GraderFailure):
                if answer.outcome is Outcome.GRADER_TIMEOUT:
                    each = " for each completion" if kind == "group" else ""
                    answers[i] = replace(answer, detail=f"{answer.detail} (grading.timeout allows {allowed}{each})")
            elif not isinstance(answer, list) or len(answer) != len(chunk):
                answers[i] = _NO_ANSWER
        return answers


def times_of(kind: str, items: Sequence[Any]) -> int:
    """Return the factor of a question's time limit: the number of completions in a group, else 1."""
    return max(map(len, items)) if kind == "group" else 1


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def question(kind: str, items: Sequence[Any]) -> list[str]:
    """Return a question about these items, pickled: `info` may hold dates, bytes and tuples, which JSON lacks."""
    try:
        return [kind, base64.b64encode(pickle.dumps(list(items))).decode()]
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise UserError(
            f"a completion can't be sent to a grading process ({error}): keep plain values in info and state, or set "
            "grading.workers = 0"
        ) from None


def _measured(answer: Any, names: Collection[str]) -> Measured:
    """Read a worker's answer about one sample. Accept only finite numbers, as the task's code may forge an answer."""
    match answer:
        case {"components": dict(values), "answer": None | str() as found, "seconds": float(seconds)}:
            numbers = all(type(value) is float and math.isfinite(value) for value in values.values())
            if numbers and values.keys() <= set(names):
                return Measured(values, found and cut(found, MAX_DETAIL), _failure(answer), seconds)
    return Measured({}, None, _failure(answer) or _NO_ANSWER, 0.0)


def _group_measured(answer: Any, group: Sequence[Sample], rubric: Rubric) -> list[Measured]:
    if isinstance(answer, list) and len(answer) == len(group):
        return [_measured(one, rubric.group_funcs) for one in answer]
    failure = in_group(_failure(answer) or _NO_ANSWER, rubric.group_funcs, len(group))
    return [Measured({}, None, failure, 0.0) for _ in group]


def _responded(answer: Any) -> tuple[list[Message], dict[str, Any]] | GraderFailure:
    match answer:
        case [list(messages), dict(state)]:
            return messages, state
    return _failure(answer) or _NO_ANSWER


def _failure(answer: Any) -> GraderFailure | None:
    match answer:
        case GraderFailure():
            return answer
        case {"failure": [str(outcome), str(detail), bool(killed)]} if outcome in _FAILURES:
            return GraderFailure(Outcome(outcome), cut(detail, MAX_DETAIL), killed=killed)
        case {"failure": None}:
            return None
    return _NO_ANSWER
