"""From examples to scored groups: request, sample, grade, advantage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hone.algorithms.advantages import group_advantages, has_signal
from hone.config.rl import AdvantageConfig, RLConfig
from hone.environments import Environment
from hone.environments.environment import Split
from hone.errors import UserError
from hone.inference.types import SamplingParams
from hone.model.chat import ChatRenderer
from hone.orchestrator.conversations import roll_out
from hone.orchestrator.curriculum import Curriculum
from hone.orchestrator.ledger import Entry, Ledger, State
from hone.orchestrator.requests import RequestMaker
from hone.orchestrator.retelling import RecordedPolicy
from hone.orchestrator.types import Policy, Sampler
from hone.types import Example, Group, Outcome, Score, Trajectory


class GroupSampler:
    """Makes the groups of a step: draws examples, samples a group of completions each, grades them, takes advantages.

    A group is a function of (config, draw, step, weights of `policy`), so it can be made again. Which example a draw
    takes is the curriculum's to say, which goes by the draws before.
    """

    def __init__(
        self, config: RLConfig, env: Environment, renderer: ChatRenderer, policy: Policy, curriculum: Curriculum
    ) -> None:
        orch = config.orchestrator
        self.prompts = orch.batch_size // orch.rollouts_per_example
        self.env, self.policy = env, policy
        self.rows = env.split("train")
        self.curriculum = curriculum
        self._lag = orch.max_async_level
        self._sampling = SamplingParams(temperature=orch.sampling.temperature)
        self._advantage, self._seed = orch.advantage, config.seed
        self.maker = RequestMaker(
            renderer,
            orch.rollouts_per_example,
            config.seq_len,
            orch.sampling.max_tokens,
            config.seed,
            "rollout",
            env.tool_schemas,
        )

    def draw(self) -> tuple[list[int], list[Example]]:
        """The next step's draws that are to be sampled, and their examples."""
        draws = [draw for draw in self.curriculum.draw(self.prompts) if not draw.retired]
        return [draw.number for draw in draws], [self.rows[draw.index] for draw in draws]

    def first(self, count: int) -> list[Example]:
        """The examples of the run's first draws: those of its first step, at most `count`."""
        return [self.rows[index] for index in self.curriculum.first(min(self.prompts, count))]

    def sample(self, examples: Sequence[Example], draws: Sequence[int], step: int) -> list[Trajectory]:
        """A group of rollouts for each example, group by group."""
        return self._roll_out(self.policy, examples, draws, step)

    def retell(
        self, examples: Sequence[Example], draws: Sequence[int], step: int, recorded: Sequence[Trajectory]
    ) -> list[Trajectory]:
        """What `sample` gives if the policy is version `step` and chooses the tokens that it chose in `recorded`: where
        versions may change meanwhile, each by the one that is recorded.

        ValueError if `recorded` are not as many.
        """
        requests = self.maker.requests(examples, draws, step)
        rollouts = {r.sample_id: t for r, t in zip(requests, recorded, strict=True)}
        return self._roll_out(RecordedPolicy(rollouts, self.maker.renderer, step, self._lag), examples, draws, step)

    def _roll_out(
        self, sampler: Sampler, examples: Sequence[Example], draws: Sequence[int], step: int
    ) -> list[Trajectory]:
        return roll_out(self.env, sampler, self.maker, examples, draws, step, self._sampling)

    def grade(
        self, examples: Sequence[Example], draws: Sequence[int], trajectories: Sequence[Trajectory]
    ) -> list[Group]:
        """The completions with their scores and advantages."""
        return grade_groups(self.env, examples, draws, trajectories, self._advantage, self._seed)


def check_prompts(
    split: Split,
    indices: Sequence[int],
    renderer: ChatRenderer,
    seq_len: int,
    limit: str,
    remedy: str,
    advance: Callable[[int], None] = lambda done: None,
    tools: list[dict[str, Any]] | None = None,
) -> None:
    """UserError naming the row if one of these examples leaves no room for a completion in `seq_len` tokens.

    `limit` is what the user knows `seq_len` as, `remedy` what to do. Of generated examples the first 64 are enough.
    `advance` is told how many are done. `tools` are the environment's.
    """
    for done, index in enumerate(indices[:64] if split.generated else indices):
        advance(done)
        tokens = len(renderer.prompt_ids(split[index].prompt, tools))
        if tokens >= seq_len:
            raise UserError(
                f"{split.where(index)}: the prompt has {tokens} tokens and leaves no room for a completion in {limit}; "
                f"{remedy}"
            )


def grade_groups(
    env: Environment,
    examples: Sequence[Example],
    draws: Sequence[int],
    trajectories: Sequence[Trajectory],
    advantage: AdvantageConfig,
    seed: int = 0,
) -> list[Group]:
    """Scores the trajectories (given group by group) and computes each group's advantages.

    What a reward function draws derives from `seed`.
    """
    size = len(trajectories) // len(examples)
    all_scores = env.grade_many(((examples[i // size], t) for i, t in enumerate(trajectories)), seed)
    groups = []
    for index, (example, draw) in enumerate(zip(examples, draws, strict=True)):
        of_group = slice(index * size, (index + 1) * size)
        members, scores = list(trajectories[of_group]), all_scores[of_group]
        advantages = group_advantages(rewards(scores), valid(scores), **advantage.model_dump())
        groups.append(Group(example, draw, members, scores, advantages))
    return groups


def rewards(scores: Sequence[Score]) -> np.ndarray:
    """Rewards `[G]` float64, NaN where grading failed."""
    return np.array([score.reward for score in scores], dtype=np.float64)


def valid(scores: Sequence[Score]) -> np.ndarray:
    """Bool `[G]`: False where grading failed."""
    return np.array([not score.outcome.is_failure for score in scores], dtype=np.bool_)


def group_state(group: Group) -> State:
    """How the group's draw ends: `failed` if fewer than two samples could be graded, `filtered` without variance."""
    mask_G = valid(group.scores)
    if mask_G.sum() < 2:
        return "failed"
    return "trained" if has_signal(rewards(group.scores)[mask_G]) else "filtered"


def oldest_version(group: Group, step: int) -> int:
    """The oldest version of which a token of the group was sampled; `step` if none was."""
    versions = [int(t.versions[t.sampled_mask].min()) for t in group.trajectories if t.num_sampled]
    return min(versions, default=step)


def close_draws(ledger: Ledger, curriculum: Curriculum, groups: Sequence[Group], step: int) -> None:
    """Enters how the draws of a step ended: those of its groups, and those that were passed over.

    The curriculum goes by it from then on.
    """
    waiting = iter(groups)
    entries = [
        curriculum.passed_over(draw, step) if draw.retired else _entry(draw.number, step, next(waiting))
        for draw in curriculum.draw(len(groups))
    ]
    curriculum.advance(entries)
    for entry in entries:
        ledger.close(entry if curriculum.config.measures else replace(entry, solved=None, graded=None))


def _entry(draw: int, step: int, group: Group) -> Entry:
    tokens = sum(len(trajectory.token_ids) for trajectory in group.trajectories)
    outcomes = [score.outcome for score in group.scores]
    solved, graded = outcomes.count(Outcome.CORRECT), sum(not outcome.is_failure for outcome in outcomes)
    return Entry(draw, step, group.example.id, group_state(group), tokens, solved, graded)
