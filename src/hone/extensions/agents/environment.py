"""Tasks where a program makes the rollouts: it calls the model any number of times, and gives the reward.

    async def agent(client: AsyncOpenAI, example: Example) -> float | dict[str, float]: ...

    rl --agent my_agent:agent --data problems.jsonl
    rl --agent-command "python my_agent.py" --data problems.jsonl

`programs.py` runs the program, `rewards.py` checks its rewards, and `task.py` makes a task of a data set.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any

from hone.environments.environment import NOT_REGRADED, Completion, SingleTurnEnv
from hone.environments.rubric import inline
from hone.errors import UserError
from hone.extensions.agents.rewards import AgentLimits, Rewarded
from hone.types import LARGEST_REWARD, TOO_LARGE, Example, Outcome, Rollout, Score
from hone.web import without_local_proxy

if TYPE_CHECKING:
    from hone.environments.driver import Model

REWARDED_BY_PROGRAM = "a program rewards its own rollouts"
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR")
"""Environment variables of hone's process that a `command` gets."""


class AgentEnv(SingleTurnEnv):
    """An environment where a program makes the rollouts: it calls the model and gives the reward. The program is `run`
    (an async function of a client and an example), `command` (a command line) or an overridden `program`.
    """

    run: Callable[..., Any] | None = None
    command: str | None = None
    agent_limits: AgentLimits
    agent_env: tuple[str, ...] = ()
    """Further environment variables that `command` gets."""
    patience = 0.02
    why_not_graded = REWARDED_BY_PROGRAM

    @property
    def concurrency(self) -> int:  # type: ignore[override]
        return self.agent_limits.concurrency

    async def rollout(self, model: Model, example: Example) -> Rollout:
        from hone.extensions.agents.programs import roll_out

        return await roll_out(self, model, example)

    def environ(self, url: str, key: str) -> dict[str, str]:
        env = {name: os.environ[name] for name in (*PASSED_ON, *self.agent_env) if name in os.environ}
        return env | without_local_proxy(env) | {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": key}

    async def program(self, calls: Any, example: Example) -> Rewarded:
        """Run the program, which calls the model through `calls`. Return its rewards. Raises ProgramFailed."""
        from hone.extensions.agents.programs import run_program

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
    """Placeholder for the program's reward: no function can compute it."""
    raise UserError(NOT_REGRADED)
