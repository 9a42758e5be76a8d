"""Tasksets of verifiers v1 (https://github.com/PrimeIntellect-ai/verifiers), by the id `verifiers:TASKSET`.

    hone eval verifiers:my-taskset -m hone/tiny -n 20 -a '{"split": "train"}'

A taskset is scored by its own `task.score(trace)`, on a trace of the prompt and the one answer. Each reward function is
a component with its own weight. verifiers and the taskset run in a process of their own, without network once the tasks
are loaded and under a limit of processor time, in hone's environment or in `.venv-verifiers`. What needs more than a
prompt and an answer is refused: a runtime, a container, tools, a simulated user, a judge, an environment of its own.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hone
from hone.environments.data import DataSource, Row, Rows, hold_out, indexed_rows
from hone.environments.environment import SingleTurnEnv
from hone.environments.parsers import completion_text
from hone.environments.rubric import RewardFunc, Rubric, inline
from hone.errors import UserError
from hone.grading import GraderFailure
from hone.grading.pool import NoVerdict, Worker
from hone.types import Message

OWN_ENVIRONMENT = Path(".venv-verifiers/bin/python")
CHECKOUT = Path(hone.__file__).resolve().parents[2]
SCORE_SECONDS, LOAD_SECONDS = 5, 600
"""Processor time for scoring an answer, and for importing verifiers or loading a taskset."""
SCORE_CLOCK, LOAD_CLOCK = 60.0, 3600.0
"""The backstops by the clock: a download may take long."""


class Served:
    """A taskset in its process: it is loaded when its tasks are asked for, and again in a process that lacks them, for
    the one before it has ended.

    Raises UserError for a taskset that is refused.
    """

    def __init__(self, env_id: str, taskset_id: str, config: dict[str, Any], limit: int) -> None:
        self._env_id, self._limit = env_id, limit
        script = Path(__file__).with_name("verifiers_worker.py")
        arguments = [taskset_id, config, os.getcwd()]
        self._worker = Worker(script, arguments, f"scoring by {env_id}", str(_python(env_id)))
        self._keys: list[str] | None = None
        reply = self._admitted(["describe"])
        self.weights: dict[str, float] = reply["weights"]
        """Of each reward function, in the order they run."""
        self.sources: dict[str, str] = reply["sources"]
        """A digest of the taskset's source, and the version of verifiers."""

    def keys(self) -> list[str]:
        """Load the tasks; return a digest of each prompt. Raises UserError if a reload gives other tasks."""
        self._admitted(["describe"])
        keys = self._admitted(["load", self._limit])["keys"]
        if self._keys is not None and self._keys != keys:
            raise UserError(
                f"{self._env_id} has other tasks than when it was loaded first, which would score the wrong answers: "
                "its load() must give the same tasks in the same order each time"
            )
        self._keys = keys
        return keys

    def row(self, index: int) -> dict[str, Any]:
        """Return prompt, answer and key of a task."""
        return self._about_tasks(lambda: self._ask(["row", index]))

    def score(self, index: int, text: str, stop_reason: str) -> dict[str, float] | GraderFailure:
        """Return the score of each reward function."""
        question = ["score", index, text, stop_reason]
        try:
            return self._about_tasks(lambda: self._worker.ask(question, SCORE_SECONDS, SCORE_CLOCK))
        except NoVerdict as nothing:
            return nothing.failure

    def _about_tasks(self, ask: Callable[[], Any]) -> Any:
        """Return the answer to a question about the tasks. If it is null, they are loaded, and asked about again."""
        answer = ask()
        if answer is None:
            self.keys()
            answer = ask()
        return answer

    def _admitted(self, question: list[Any]) -> dict[str, Any]:
        reply = self._ask(question)
        if "refused" in reply:
            raise UserError(f"{self._env_id} {reply['refused']}")
        return reply

    def _ask(self, question: list[Any]) -> Any:
        try:
            return self._worker.ask(question, LOAD_SECONDS, LOAD_CLOCK)
        except NoVerdict as nothing:
            raise UserError(
                f"{self._env_id} cannot be loaded: {nothing.failure.detail.splitlines()[-1]}; its package must be "
                "installed beside verifiers, or lie in the current directory"
            ) from None


class Verifiers(SingleTurnEnv):
    """Rows have the column `index`, the number of a task of the taskset: `env.example(index=3)`."""

    has_own_process = True

    def __init__(self, served: Served, correctness: str, **kwargs: Any) -> None:
        self._served, weights = served, served.weights
        self._row = functools.lru_cache(maxsize=4096)(served.row)
        funcs = [self._component(name, first=i == 0) for i, name in enumerate(weights)]
        super().__init__(rubric=Rubric(funcs, list(weights.values()), correctness=correctness), **kwargs)

    def format_row(self, row: Row) -> Row:
        index = row["index"]
        if isinstance(index, bool) or not isinstance(index, int) or index < 0:
            raise UserError(f"{self.id}: index is {index!r}; it must be a whole number from 0")
        task = self._row(index)
        return {"prompt": task["prompt"], "answer": task["answer"], "info": {"index": index, "key": task["key"]}}

    def digests(self, splits: Sequence[str]) -> dict[str, str]:
        """Return the digests of any environment, with the taskset's source and the version of verifiers."""
        return super().digests(splits) | self._served.sources

    def _component(self, name: str, first: bool) -> RewardFunc:
        """Return the reward function `name`. The first one has the taskset score the answer, for all."""

        @inline
        def component(completion: list[Message], info: dict[str, Any], state: dict[str, Any]) -> float | GraderFailure:
            if first:
                text = completion_text(completion)
                state["scores"] = self._served.score(info["index"], text, state["stop_reason"])
            scores = state["scores"]
            return scores if isinstance(scores, GraderFailure) else scores[name]

        component.__name__ = name
        return component


def load(
    name: str,
    /,
    *,
    correctness: str | None = None,
    held_out: float = 0.1,
    max_tasks: int = 100_000,
    **config: Any,
) -> Verifiers:
    """Load the taskset `name` of verifiers; `config` are fields of its configuration.

    `correctness` names the reward function that decides whether an answer is right (≥ 1), by default the one of the
    largest weight. `held_out` is the share of the prompts, by content, that is for evaluation. Of a taskset without end
    the first `max_tasks` tasks are taken. UserError without verifiers, and for a taskset that is refused.
    """
    env_id = f"verifiers:{name}"
    if not 0 < held_out < 1:
        raise UserError(f"{env_id}: held_out is {held_out}; it must be a share between 0 and 1")
    if max_tasks < 2:
        raise UserError(f"{env_id}: max_tasks is {max_tasks}; it must be at least 2")
    served = Served(env_id, name, config, max_tasks)
    weights = served.weights
    correctness = correctness or max(weights, key=lambda reward: weights[reward])
    if correctness not in weights:
        raise UserError(f"{env_id}: correctness is {correctness!r}; its reward functions are {', '.join(weights)}")

    @functools.cache
    def halves() -> tuple[Rows, Rows]:
        keys = served.keys()
        rows = indexed_rows(lambda i: {"index": i, "key": keys[i]}, len(keys), env_id)
        return hold_out(rows, lambda row: row["key"], held_out)

    return Verifiers(
        served,
        correctness,
        dataset=DataSource(lambda _: halves()[0], reads=False),
        eval_dataset=DataSource(lambda _: halves()[1], reads=False),
        id=env_id,
    )


def _python(env_id: str) -> Path:
    """Return the interpreter that has verifiers: this one, or `.venv-verifiers`' here or in hone's checkout."""
    if importlib.util.find_spec("verifiers") is not None:
        return Path(sys.executable)
    for candidate in (OWN_ENVIRONMENT.absolute(), CHECKOUT / OWN_ENVIRONMENT):
        if candidate.is_file():
            return candidate
    raise UserError(
        f"{env_id} needs verifiers, which is not installed: `make verifiers-env` in a checkout of hone makes "
        ".venv-verifiers, or pip install 'verifiers>=0.3.1,<0.5'"
    )
