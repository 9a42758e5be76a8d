"""The processes that an environment's functions run in: each loads the environment by its id and arguments.

`environments/worker.py` is what runs there. Where none can stand in for this environment (it was made in a notebook, or
changed after it was loaded), and where nothing can go wrong (`inline`), functions run in hone's own process.
"""

from __future__ import annotations

import base64
import json
import math
import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hone.errors import UserError
from hone.grading import GraderFailure, last_line
from hone.grading.pool import Pool
from hone.types import Example, Message, Outcome, Score

if TYPE_CHECKING:
    from hone.config.shared import GradingConfig

Progress = Callable[[str], None]
"""Is told what the processes are at, in words; "" when they have nothing more to do."""
CHUNK = 64
"""Most samples of one question, where functions wait and do so together."""
BACKSTOP = 6.0
"""By the clock, a sample of a run may take this many times its processor time."""
_SCRIPT = Path(__file__).with_name("worker.py")


@dataclass(frozen=True)
class Sample:
    """What a reward function is asked about: a completion of an example, and what the environment kept of it."""

    example: Example
    completion: list[Message]
    stop_reason: str
    seed: int
    sample_id: str
    state: dict[str, Any] | None = None


@dataclass(frozen=True)
class Limits:
    """The processes and what a sample may take: `GradingConfig` as it is used here.

    `timeout` is processor time if `deterministic`, so that no busy machine changes a verdict, else time of the clock;
    by the clock, a sample may then take `backstop` times as long. `hash_seed` decides in which order sets are run
    through.
    """

    workers: int | None = None
    timeout: float = 10.0
    memory_gib: float = 4.0
    deterministic: bool = True
    backstop: float = BACKSTOP
    hash_seed: int = 0

    @classmethod
    def of(cls, config: GradingConfig, deterministic: bool) -> Limits:
        return cls(config.workers, config.timeout, config.memory_gib, deterministic)

    def seconds(self, waits: int) -> tuple[float | None, float]:
        """(processor time, time by the clock) of a question whose functions may wait so many times, one by one."""
        clock = self.timeout * (waits + 1)
        return (self.timeout, max(self.backstop * self.timeout, clock)) if self.deterministic else (None, clock)


@dataclass(frozen=True)
class Origin:
    """How an environment was loaded. `sources` are the digests of the task files there were (`loading.sources`)."""

    env_id: str
    kwargs: dict[str, Any]
    folder: str
    path: list[str]
    sources: dict[str, str]

    @property
    def repeatable(self) -> bool:
        """Whether another process can be told the arguments."""
        try:
            return json.loads(json.dumps(self.kwargs)) == self.kwargs
        except (TypeError, ValueError):
            return False


class Workers:
    """The processes of one environment. They are started when they are needed, or by `start`."""

    def __init__(self, origin: Origin, limits: Limits, progress: Progress = lambda words: None) -> None:
        self._limits = limits
        self.pool = Pool(
            _SCRIPT,
            [origin.env_id, origin.kwargs, origin.folder, origin.path, origin.sources, limits.timeout],
            "grading",
            workers=limits.workers or cores(),
            memory_bytes=int(limits.memory_gib * 2**30),
            environment={"PYTHONHASHSEED": str(limits.hash_seed)},
        )
        self._progress = progress

    def grade(self, samples: Sequence[Sample], waits: int) -> list[dict[str, Any] | GraderFailure]:
        """What `grade` of worker.py says of each sample; `waits` is how many of the reward functions are async."""
        return self._ask("grade", [_packed(sample) for sample in samples], waits, "grading")

    def respond(
        self, turns: Sequence[tuple[list[Message], dict[str, Any]]], waits: bool
    ) -> list[tuple[list[Message], dict[str, Any]] | GraderFailure]:
        """What the environment says to each conversation, and its state then. UserError for a state that is no JSON."""
        for _, state in turns:
            _check_json(state)
        answers = self._ask("respond", [list(turn) for turn in turns], int(waits), "answering the model")
        return [answer if isinstance(answer, GraderFailure) else (answer[0], answer[1]) for answer in answers]

    def _ask(self, kind: str, items: list[Any], waits: int, doing: str) -> list[Any]:
        """The answers about the items: one question each, or where functions wait, many in one.

        Of a chunk without an answer each item is asked about once more by itself, so that only the guilty one fails.
        """
        size = max(1, min(CHUNK, math.ceil(len(items) / self.pool.workers))) if waits else 1
        answers: list[Any] = []
        again: list[int] = []
        for chunk in self._asked(kind, _chunks(items, size), waits, doing):
            here = min(size, len(items) - len(answers))
            if isinstance(chunk, GraderFailure) and here > 1:
                again += range(len(answers), len(answers) + here)
            answers += [chunk] * here if isinstance(chunk, GraderFailure) else chunk
        alone = self._asked(kind, [[items[i]] for i in again], waits, doing) if again else []
        for index, chunk in zip(again, alone, strict=True):
            answers[index] = chunk if isinstance(chunk, GraderFailure) else chunk[0]
        return [_failure(answer) or answer for answer in answers]

    def _asked(self, kind: str, chunks: list[list[Any]], waits: int, doing: str) -> list[Any]:
        cpu, clock = self._limits.seconds(waits)
        failures: list[str] = []

        def heard(done: int, answer: Any) -> None:
            lost = isinstance(answer, GraderFailure)
            failures.extend([answer.detail] if lost else [why for item in answer if (why := _why(item)) is not None])
            words = f"{doing}: {done} of {len(chunks)} done"
            if failures:
                words += f", {len(failures)} failed, the latest: {last_line(failures[-1]):.100}"
            self._progress(words)

        answers = self.pool.ask_all([[kind, chunk] for chunk in chunks], cpu, clock, doing, heard)
        self._progress("")
        allowed = f"{clock:g} s" if cpu is None else f"{cpu:g} s of the processor, {clock:g} s by the clock"
        return [_with_setting(answer, allowed) for answer in answers]


def score(answer: dict[str, Any] | GraderFailure, weights: dict[str, float]) -> Score:
    """The score that a worker gave, or the failure for one."""
    if isinstance(answer, GraderFailure):
        return Score(math.nan, {}, weights, answer.outcome, answer.detail)
    reward = math.nan if answer["reward"] is None else answer["reward"]
    return Score(reward, answer["components"], weights, Outcome(answer["outcome"]), answer["detail"], answer["seconds"])


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def unpacked(text: str) -> Sample:
    """A sample as a worker got it."""
    return pickle.loads(base64.b64decode(text))


def _packed(sample: Sample) -> str:
    """Pickled, for `info` may hold what JSON does not: dates, bytes, tuples. What comes back is JSON."""
    try:
        return base64.b64encode(pickle.dumps(sample)).decode()
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise UserError(
            f"example {sample.example.id} can't be sent to a grading process ({error}): keep plain values in its info, "
            "or set grading.workers = 0"
        ) from None


def _check_json(state: dict[str, Any]) -> None:
    try:
        json.dumps(state)
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(
            f"the state of a conversation is no JSON, so it can't be sent to the processes that answer ({error}): let "
            "initial_state keep numbers, texts, lists and tables in it, or set grading.workers = 0"
        ) from None


def _failure(answer: Any) -> GraderFailure | None:
    """The failure that a worker reported for one item."""
    failed = answer.get("failure") if isinstance(answer, dict) else None
    return None if failed is None else GraderFailure(Outcome(failed[0]), failed[1])


def _why(answer: Any) -> str | None:
    """Why a worker reported a failure for one item, if it did."""
    if (failed := _failure(answer)) is not None:
        return failed.detail
    return answer["detail"] if isinstance(answer, dict) and Outcome(answer["outcome"]).is_failure else None


def _with_setting(answer: Any, allowed: str) -> Any:
    """A failure that took too long, with the setting that says how long it may take."""
    if not isinstance(answer, GraderFailure) or answer.outcome is not Outcome.GRADER_TIMEOUT:
        return answer
    return replace(answer, detail=f"{answer.detail} (grading.timeout allows {allowed})")


def _chunks(items: list[Any], size: int) -> list[list[Any]]:
    return [items[start : start + size] for start in range(0, len(items), size)]
