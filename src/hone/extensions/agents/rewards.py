"""Limits of a program's rollout, and the rewards that it may give."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hone.errors import UserError
from hone.types import BOUND, LARGEST_REWARD, Outcome

MOST_REWARDS = 64
"""Maximum number of rewards that a program may give a rollout."""


@dataclass(frozen=True)
class AgentLimits:
    """Limits of a rollout: calls, tokens in all (None: no limit), seconds; `concurrency` limits rollouts at a time."""

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
        """Return, in words, the limit that a rollout with these numbers of calls and tokens has reached, or None."""
        if calls >= self.max_calls:
            return f"the rollout has made its {self.max_calls} calls (max_calls)"
        if self.max_tokens is not None and tokens >= self.max_tokens:
            return f"the rollout has sampled its {self.max_tokens} tokens (max_tokens)"
        return None

    @classmethod
    def of(cls, limits: Any) -> AgentLimits:
        """Return the limits of a config's `agent_limits`. Raises UserError if a key or value is wrong."""
        known = cls.__dataclass_fields__
        if limits is not None and not (isinstance(limits, Mapping) and limits.keys() <= known.keys()):
            raise UserError(f"agent_limits is {limits!r}: give a table of {', '.join(known)}")
        return cls(**(limits or {}))


@dataclass(frozen=True)
class Rewarded:
    """The scores of a rollout by name, and their weights (by default 1).

    `right` says if the answer is right; if None, it is right if the first score is at least 1. Calls with a session id
    in `untrained` are not trained. `gave_up` is true if the program failed because the model had used up a limit.
    `calls` has a reward for each call, in order; if None, all calls share the rollout's reward.
    """

    scores: Mapping[str, float]
    weights: Mapping[str, float] | None = None
    right: bool | None = None
    untrained: frozenset[str] = frozenset()
    gave_up: bool = False
    calls: tuple[float, ...] | None = None

    def state(self, limit: str, calls: int) -> dict[str, Any]:
        state = {"rewards": dict(self.scores), "limit": limit, "gave_up": self.gave_up, "calls": calls}
        return state if self.weights is None else state | {"weights": dict(self.weights), "right": self.right}

    def miscounted(self, answered: int) -> tuple[Outcome, str] | None:
        if self.calls is None or len(self.calls) == answered:
            return None
        return Outcome.GRADER_ERROR, f"the program gave {len(self.calls)} rewards of calls; {answered} were answered"


class ProgramFailed(Exception):
    """Raised with the reason if a rollout gets no reward. `untrained` is as in `Rewarded`."""

    def __init__(
        self, words: str, outcome: Outcome = Outcome.GRADER_ERROR, untrained: frozenset[str] = frozenset()
    ) -> None:
        super().__init__(words)
        self.outcome, self.untrained = outcome, untrained


def checked_rollout(given: Any) -> Rewarded:
    """Return the rewards in a program's answer. Its key `calls` may have a reward per call. Raises ValueError."""
    given_calls = given.get("calls") if isinstance(given, dict) else None
    if not (isinstance(given_calls, list | tuple) or (isinstance(given_calls, np.ndarray) and given_calls.ndim == 1)):
        return Rewarded(checked_rewards(given))
    if len(given) == 1:
        raise ValueError(
            "the program gave rewards of its calls alone; give the rollout a reward as well, such as "
            '{"correct": 1.0, "calls": […]}'
        )
    calls = tuple(finite(f"calls[{i}]", value) for i, value in enumerate(given_calls))
    return Rewarded(checked_rewards({name: x for name, x in given.items() if name != "calls"}), calls=calls)


def checked_rewards(given: Any) -> dict[str, float]:
    """Return a program's rewards by name; a number gets the name `reward`. Raises ValueError with the reason."""
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
    try:
        number = math.nan if value is None or isinstance(value, str) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not abs(number) <= LARGEST_REWARD:
        raise ValueError(f"the program gave {value!r:.120} as {name}; a reward is a number within {BOUND}")
    return number
