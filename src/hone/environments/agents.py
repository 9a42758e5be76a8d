"""A task whose rollouts a program makes: it calls the model as often as it likes, and gives the reward itself.

    async def agent(client: AsyncOpenAI, example: Example) -> float | dict[str, float]: ...

    rl --agent my_agent:agent --data problems.jsonl
    rl --agent-command "python my_agent.py" --data problems.jsonl

The program runs in `hone.environments.programs`; this module has what such a task is, and what a reward may be;
`functions.py` makes one of a data set.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hone.environments.environment import Completion, SingleTurnEnv
from hone.environments.rubric import inline
from hone.errors import UserError
from hone.types import BOUND, LARGEST_REWARD, TOO_LARGE, Example, Outcome, Rollout, Score
from hone.web import without_local_proxy

if TYPE_CHECKING:
    from hone.environments.driver import Model

MOST_REWARDS = 64
"""Rewards that a program may give a rollout."""
REWARDED_BY_PROGRAM = "a program rewards its own rollouts"
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR")
"""Variables of hone's environment that a command gets."""
NOT_REGRADED = "a program made these rollouts and their rewards, so nothing else can grade them"


@dataclass(frozen=True)
class AgentLimits:
    """The bounds of one rollout, and how many run at the same time.

    `max_calls` of the model, `max_tokens` sampled in all of them (None: any number), `timeout` in seconds.
    """

    max_calls: int = 64
    max_tokens: int | None = None
    timeout: float = 600.0
    concurrency: int = 64

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            kind, what = (float | int, "number") if name == "timeout" else (int, "whole number")
            if name == "max_tokens" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, kind) or not 0 < value < math.inf:
                raise UserError(f"{name} of an agent is {value!r}; it must be a {what} above 0")

    def reached(self, calls: int, tokens: int) -> str | None:
        """Return the bound that a rollout with so many calls and sampled tokens has used up, in words; None if none."""
        if calls >= self.max_calls:
            return f"the rollout has made its {self.max_calls} calls (max_calls)"
        if self.max_tokens is not None and tokens >= self.max_tokens:
            return f"the rollout has sampled its {self.max_tokens} tokens (max_tokens)"
        return None

    @classmethod
    def of(cls, limits: Any) -> AgentLimits:
        """Return the limits of a config's `agent_limits`. Raises UserError if they are not right."""
        known = cls.__dataclass_fields__
        if limits is not None and not (isinstance(limits, Mapping) and limits.keys() <= known.keys()):
            raise UserError(f"agent_limits is {limits!r}; its keys are {', '.join(known)}")
        return cls(**(limits or {}))


@dataclass(frozen=True)
class Rewarded:
    """What a rollout was worth: scores by name, and their weights (by default 1).

    `right` says if its answer is; by default it is if the first score is at least 1. Calls of the model under one of
    the session ids `untrained` are not the policy's part, and are not trained. `gave_up`: the program failed for a
    bound that the model used up. `calls` are the rewards of its calls, in their order; None: they share the rollout's.
    """

    scores: Mapping[str, float]
    weights: Mapping[str, float] | None = None
    right: bool | None = None
    untrained: frozenset[str] = frozenset()
    gave_up: bool = False
    calls: tuple[float, ...] | None = None

    def state(self, limit: str, calls: int) -> dict[str, Any]:
        """Return what a rollout's trajectory keeps of it, for `AgentEnv.grade_many`."""
        kept = {"rewards": dict(self.scores), "limit": limit, "gave_up": self.gave_up, "calls": calls}
        return kept if self.weights is None else kept | {"weights": dict(self.weights), "right": self.right}

    def miscounted(self, answered: int) -> tuple[Outcome, str] | None:
        """Return the failure of a program that rewards another number of calls than were answered; None if it fits."""
        if self.calls is None or len(self.calls) == answered:
            return None
        return Outcome.GRADER_ERROR, f"the program gave {len(self.calls)} rewards of calls; {answered} were answered"


class ProgramFailed(Exception):
    """Why a rollout has no reward, in words, and what kind of failure that is. `untrained` as in `Rewarded`."""

    def __init__(
        self, words: str, outcome: Outcome = Outcome.GRADER_ERROR, untrained: frozenset[str] = frozenset()
    ) -> None:
        super().__init__(words)
        self.outcome, self.untrained = outcome, untrained


class AgentEnv(SingleTurnEnv):
    """An environment whose rollouts something else drives: it calls the model, and rewards what came of it.

    It is `run` (an async function of a client and an example), `command` (a command line), or what `program` does else.
    """

    run: Callable[..., Any] | None = None
    command: str | None = None
    agent_limits: AgentLimits
    agent_env: tuple[str, ...] = ()
    """Variables that `command` gets beside `PASSED_ON`."""
    patience = 0.02
    why_not_graded = REWARDED_BY_PROGRAM

    @property
    def concurrency(self) -> int:  # type: ignore[override]
        return self.agent_limits.concurrency

    async def rollout(self, model: Model, example: Example) -> Rollout:
        from hone.environments.programs import roll_out

        return await roll_out(self, model, example)

    def environ(self, url: str, key: str) -> dict[str, str]:
        """Return the whole environment of the command of one rollout."""
        env = {name: os.environ[name] for name in (*PASSED_ON, *self.agent_env) if name in os.environ}
        return env | without_local_proxy(env) | {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": key}

    async def program(self, calls: Any, example: Example) -> Rewarded:
        """Make a rollout with these calls of the model; return what it was worth. Raises ProgramFailed."""
        from hone.environments.programs import run_program

        return await run_program(self, calls, example)

    def grade_many(
        self, pairs: Iterable[tuple[Example, Completion]], seed: int = 0, groups: Iterable[Hashable] | None = None
    ) -> list[Score]:
        """Return the scores that the program gave. Raises UserError for completions that it did not make."""
        return [self._score(completion) for _, completion in pairs]

    def _score(self, completion: Completion) -> Score:
        if not isinstance(completion, Rollout):
            raise UserError(NOT_REGRADED)
        if completion.failure is not None:
            return Score(math.nan, {}, {}, *completion.failure)
        state = completion.state or {}
        if "rewards" not in state:
            raise UserError(NOT_REGRADED)
        rewards = dict(state["rewards"])
        weights = state.get("weights") or dict.fromkeys(rewards, 1.0)
        total = sum(weights[name] * score for name, score in rewards.items())
        if not abs(total) <= LARGEST_REWARD:
            return Score(math.nan, {}, {}, Outcome.GRADER_ERROR, f"the weighted sum of {rewards} {TOO_LARGE}")
        detail = "; ".join(
            [*([state["limit"]] if state["limit"] else []), *(f"{k} {v:.3g}" for k, v in rewards.items())]
        )
        if state["gave_up"]:
            return Score(total, rewards, weights, Outcome.TRUNCATED, detail)
        right = state.get("right")
        right = next(iter(rewards.values())) >= 1.0 if right is None else right
        return Score(total, rewards, weights, Outcome.CORRECT if right else Outcome.WRONG, detail)


@inline
def reward(completion: Any) -> float:
    """Stand in for the program's rewards, which no function can compute."""
    raise UserError(NOT_REGRADED)


def checked_rollout(given: Any) -> Rewarded:
    """Return what a program gave: rewards, and under `calls` maybe those of its calls. Raises ValueError."""
    own = given.get("calls") if isinstance(given, dict) else None
    if not (isinstance(own, list | tuple) or (isinstance(own, np.ndarray) and own.ndim == 1)):
        return Rewarded(checked_rewards(given))
    if len(given) == 1:
        raise ValueError(
            "the program gave rewards of its calls alone; give the rollout a reward as well, such as "
            '{"correct": 1.0, "calls": […]}'
        )
    calls = tuple(finite(f"calls[{i}]", value) for i, value in enumerate(own))
    return Rewarded(checked_rewards({name: x for name, x in given.items() if name != "calls"}), calls=calls)


def checked_rewards(given: Any) -> dict[str, float]:
    """Return what a program gave as rewards by name; a number is `reward`. Raises ValueError, with the reason."""
    rewards = given if isinstance(given, dict) else {"reward": given}
    if not 0 < len(rewards) <= MOST_REWARDS:
        raise ValueError(f"the program gave {len(rewards)} rewards; give 1 to {MOST_REWARDS}")
    checked: dict[str, float] = {}
    for name, value in rewards.items():
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= 100:
            raise ValueError(f"the program gave a reward of the name {name!r:.120}; a name is a short text")
        checked[name] = finite(name, value)
    return checked


def finite(name: str, value: Any) -> float:
    """Return a reward as a number. Raises ValueError if it is none, or too large."""
    try:
        number = math.nan if value is None or isinstance(value, str) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not abs(number) <= LARGEST_REWARD:
        raise ValueError(f"the program gave {value!r:.120} as {name}; a reward is a number within {BOUND}")
    return number
