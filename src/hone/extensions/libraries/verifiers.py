"""Tasksets of verifiers v1 (https://github.com/PrimeIntellect-ai/verifiers), by the id `verifiers:TASKSET`.

    hone eval verifiers:my-taskset -m hone/tiny -n 20 -a '{"split": "train"}'

- **Text**: if a taskset has only prompts and answers, its `task.score(trace)` scores the answers. Each reward function
  is a component with its weight. verifiers and the taskset run in a separate process, with limited processor time, and
  without network once the tasks are loaded.
- **Episodes**: verifiers runs any other taskset (`verifiers_driver.py`). The taskset's agents call the policy, as in
  `hone.extensions.agents`. Its rewards are components of the reward, its metrics are components with weight 0.

The processes use hone's Python environment or `.venv-verifiers`.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import hone
from hone.environments.data import DataSource, Row, Rows, hold_out, indexed_rows
from hone.environments.environment import SingleTurnEnv
from hone.environments.parsers import completion_text
from hone.environments.rubric import RewardFunc, Rubric, inline
from hone.errors import UserError
from hone.extensions.agents.environment import AgentEnv, reward
from hone.extensions.agents.rewards import AgentLimits, ProgramFailed, Rewarded, checked_rewards
from hone.extensions.libraries.verifiers_process import LOAD_CLOCK, Driver
from hone.grading import GraderFailure
from hone.grading.pool import NoVerdict, Worker
from hone.types import Example, Message, Outcome

OWN_ENVIRONMENT = Path(".venv-verifiers/bin/python")
CHECKOUT = Path(hone.__file__).resolve().parents[2]
SCORE_SECONDS, LOAD_SECONDS = 5, 600
"""Processor seconds to score an answer, and to import verifiers or load a taskset."""
SCORE_CLOCK = 60.0
"""Clock seconds to score an answer."""


class TasksetProcess:
    """A taskset in a separate process, which loads it again after a restart. UserError if the taskset is refused."""

    worker = Path(__file__).with_name("verifiers_worker.py")
    driver = Path(__file__).with_name("verifiers_driver.py")  # makes rollouts, in a separate process

    def __init__(
        self, env_id: str, python: Path, config: dict[str, Any], limit: int, env: dict[str, Any] | None
    ) -> None:
        self.env_id, self.python, self.limit = env_id, python, limit
        arguments = [env_id.partition(":")[2], config, os.getcwd(), env]
        self._worker = Worker(self.worker, arguments, f"scoring by {env_id}", str(python))
        self._keys: list[str] | None = None
        reply = self._admitted(["describe"])
        self.weights: dict[str, float] = reply.get("weights", {})
        """Weights of the reward functions, in the order they run; empty if verifiers makes the rollouts."""
        self.env: dict[str, Any] | None = reply.get("env")
        """Config of verifiers' environment; None if text is scored."""
        self.sources: dict[str, str] = reply["sources"]
        """A digest of the taskset's source, and the version of verifiers."""

    def keys(self) -> list[str]:
        """Load the tasks; return each prompt's digest. Raises UserError if a reload gives other tasks."""
        self._admitted(["describe"])
        keys = self._admitted(["load", self.limit])["keys"]
        if self._keys is not None and self._keys != keys:
            raise UserError(
                f"{self.env_id} loaded other tasks the second time, so answers would be scored for the wrong task: "
                "its load() must give the same tasks in the same order each time"
            )
        self._keys = keys
        return keys

    def row(self, index: int) -> dict[str, Any]:
        return self._about_tasks(lambda: self._ask(["row", index]))

    def score(self, index: int, text: str, stop_reason: str) -> dict[str, float] | GraderFailure:
        question = ["score", index, text, stop_reason]
        try:
            return self._about_tasks(lambda: self._worker.ask(question, SCORE_SECONDS, SCORE_CLOCK))
        except NoVerdict as nothing:
            return nothing.failure

    def _about_tasks(self, ask: Callable[[], Any]) -> Any:
        answer = ask()
        if answer is None:
            self.keys()
            answer = ask()
        return answer

    def _admitted(self, question: list[Any]) -> dict[str, Any]:
        reply = self._ask(question)
        if "refused" in reply:
            raise UserError(f"{self.env_id} {reply['refused']}")
        return reply

    def _ask(self, question: list[Any]) -> Any:
        try:
            return self._worker.ask(question, LOAD_SECONDS, LOAD_CLOCK)
        except NoVerdict as nothing:
            raise UserError(
                f"{self.env_id} cannot be loaded: {nothing.failure.detail.splitlines()[-1]}. Install its package "
                "beside verifiers, or put it into the current directory"
            ) from None


class Tasks(SingleTurnEnv):
    """Rows have the column `index`, a task's number in the taskset: `env.example(index=3)`."""

    def __init__(self, served: TasksetProcess, **kwargs: Any) -> None:
        self._served = served
        self._row = functools.lru_cache(maxsize=4096)(served.row)
        super().__init__(**kwargs)

    def format_row(self, row: Row) -> Row:
        index = row["index"]
        if isinstance(index, bool) or not isinstance(index, int) or index < 0:
            raise UserError(f"{self.id}: index is {index!r}; it must be a whole number from 0")
        task = self._row(index)
        return {"prompt": task["prompt"], "answer": task["answer"], "info": {"index": index, "key": task["key"]}}

    def digests(self, splits: Sequence[str]) -> dict[str, str]:
        return super().digests(splits) | self._served.sources


class Verifiers(Tasks):
    """Tasks with text answers, scored by the taskset."""

    has_own_process = True

    def __init__(self, served: TasksetProcess, correctness: str, **kwargs: Any) -> None:
        weights = served.weights
        funcs = [self._component(name, first=i == 0) for i, name in enumerate(weights)]
        super().__init__(served, rubric=Rubric(funcs, list(weights.values()), correctness=correctness), **kwargs)

    def _component(self, name: str, first: bool) -> RewardFunc:
        """Return the reward function `name`. The `first` function makes the taskset compute all functions' scores."""

        @inline
        def component(completion: list[Message], info: dict[str, Any], state: dict[str, Any]) -> float | GraderFailure:
            if first:
                text = completion_text(completion)
                state["scores"] = self._served.score(info["index"], text, state["stop_reason"])
            scores = state["scores"]
            return scores if isinstance(scores, GraderFailure) else scores[name]

        component.__name__ = name
        return component


class Episodes(AgentEnv, Tasks):
    """Tasks with rollouts and rewards by verifiers. The first rollout starts verifiers in a separate process."""

    def __init__(self, served: TasksetProcess, correctness: str | None, limits: AgentLimits, **kwargs: Any) -> None:
        super().__init__(served, rubric=Rubric([reward], [1.0], correctness="reward"), **kwargs)
        self.agent_limits, self.max_turns = limits, limits.max_calls
        self._correctness = correctness
        order = {"env": served.env, "folder": os.getcwd(), "tasks": served.limit}
        self._driver = Driver(served.python, served.driver, order, served.env_id)

    def check_rollouts(self) -> None:
        self._driver.start()

    async def program(self, calls: Any, example: Example) -> Rewarded:
        place = {"index": example.info["index"], "task": example.info["key"]}
        found = await self._driver.episode({**place, "url": await calls.url(), "key": calls.api_key})
        untrained = frozenset(found["untrained"])
        if (failed := found.get("failed")) is not None:
            late = Outcome.GRADER_TIMEOUT if found["timeout"] else Outcome.GRADER_ERROR
            raise ProgramFailed(failed, late, untrained)
        weights = dict(sorted(found["weights"].items(), key=lambda item: -item[1]))
        try:
            scores = checked_rewards({name: found["scores"][name] for name in weights})
        except ValueError as error:
            raise ProgramFailed(str(error), untrained=untrained) from None
        decides = self._correctness or next(iter(scores))
        if decides not in scores:
            raise ProgramFailed(f"correctness {decides!r} is not one of {', '.join(scores)}")
        return Rewarded(scores, weights, scores[decides] >= 1.0, untrained)

    def close_workers(self) -> None:
        super().close_workers()
        self._driver.close()


def load(
    name: str,
    /,
    *,
    correctness: str | None = None,
    held_out: float = 0.1,
    max_tasks: int = 100_000,
    env: dict[str, Any] | None = None,
    agent_limits: dict[str, Any] | None = None,
    **config: Any,
) -> Tasks:
    """Load the taskset `name` of verifiers; `config` are fields of the taskset's configuration.

    An answer is right if the reward function `correctness`, by default the function of largest weight, returns at least
    1. `held_out` is the share of prompts for evaluation. `max_tasks` limits an endless taskset. verifiers makes the
    rollouts, within `agent_limits`, if the text of an answer is not enough to score it, or if `env` is given. `env` is
    the config of a verifiers environment, where `{}` means the taskset's defaults. Raises UserError if verifiers is
    missing, or if the taskset is refused.
    """
    env_id = f"verifiers:{name}"
    if not 0 < held_out < 1:
        raise UserError(f"{env_id}: held_out is {held_out}; it must be a share between 0 and 1")
    if max_tasks < 2:
        raise UserError(f"{env_id}: max_tasks is {max_tasks}; it must be at least 2")
    served = TasksetProcess(env_id, _python(env_id), config, max_tasks, env)

    @functools.cache
    def halves() -> tuple[Rows, Rows]:
        keys = served.keys()
        rows = indexed_rows(lambda i: {"index": i, "key": keys[i]}, len(keys), env_id)
        return hold_out(rows, lambda row: row["key"], held_out)

    data: dict[str, Any] = {
        "dataset": DataSource(lambda _: halves()[0], reads=False),
        "eval_dataset": DataSource(lambda _: halves()[1], reads=False),
        "id": env_id,
    }
    if served.env is not None:
        limits = AgentLimits.of(agent_limits)
        if "concurrency" not in (agent_limits or {}):  # each agent is a separate Python process
            limits = replace(limits, concurrency=max(4, 2 * (os.cpu_count() or 1)))
        return Episodes(served, correctness, limits, **data)
    if agent_limits is not None:
        raise UserError(
            f'{env_id}: agent_limits need rollouts by verifiers: add "env": {{}}, or leave agent_limits out'
        )
    weights = served.weights
    correctness = correctness or max(weights, key=lambda reward: weights[reward])
    if correctness not in weights:
        raise UserError(f"{env_id}: correctness {correctness!r} is not one of its rewards {', '.join(weights)}")
    return Verifiers(served, correctness, **data)


def _python(env_id: str) -> Path:
    """Return a Python with verifiers: this one, or `.venv-verifiers` here or in hone's checkout."""
    if importlib.util.find_spec("verifiers") is not None:
        return Path(sys.executable)
    for candidate in (OWN_ENVIRONMENT.absolute(), CHECKOUT / OWN_ENVIRONMENT):
        if candidate.is_file():
            return candidate
    raise UserError(
        f"{env_id} needs verifiers, which is not installed: `make verifiers-env` in a checkout of hone makes "
        ".venv-verifiers, or pip install 'verifiers>=0.3.1,<0.5'"
    )
