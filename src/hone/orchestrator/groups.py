"""From examples to scored groups: draw, sample, grade, advantage; and from groups to the step's batch and metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from hone.algorithms.advantages import group_advantages, has_signal
from hone.config.rl import AdvantageConfig, RLConfig
from hone.environments import Environment
from hone.environments.environment import EarlyGrading, Split
from hone.errors import UserError
from hone.inference.types import SamplingParams
from hone.model.chat import ChatRenderer
from hone.orchestrator.conversations import RequestMaker, roll_out
from hone.orchestrator.curriculum import Curriculum
from hone.orchestrator.ledger import Entry, Ledger, State
from hone.orchestrator.types import Policy
from hone.trainer.packing import Sequence as Packed
from hone.types import Example, Group, Outcome, Score, Trajectory


class GroupSampler:
    """Makes the groups of a step: draws examples, samples a group of completions each, grades them, takes advantages.

    A group is a function of (config, draw, step, weights of `policy`), so it can be made again.
    """

    def __init__(
        self, config: RLConfig, env: Environment, renderer: ChatRenderer, policy: Policy, curriculum: Curriculum
    ) -> None:
        orch = config.orchestrator
        self.config, self.env, self.policy, self.curriculum = config, env, policy, curriculum
        self.prompts = orch.batch_size // orch.rollouts_per_example
        self.rows = env.split("train")
        self.sampling = SamplingParams(temperature=orch.sampling.temperature)
        limits = orch.rollouts_per_example, config.seq_len, orch.sampling.max_tokens
        self.maker = RequestMaker(renderer, *limits, config.seed, "rollout", env.tool_schemas)

    def draw(self) -> tuple[list[int], list[Example]]:
        """Return the next step's draws that are to be sampled, and their examples."""
        draws = [draw for draw in self.curriculum.draw(self.prompts) if not draw.retired]
        return [draw.number for draw in draws], [self.rows[draw.index] for draw in draws]

    def first(self, count: int) -> list[Example]:
        """Return the examples of the run's first draws: those of its first step, at most `count`."""
        return [self.rows[index] for index in self.curriculum.first(min(self.prompts, count))]

    def early_grading(self) -> AbstractContextManager[EarlyGrading | None]:
        """Return, for `sample` and `grade` of a step, what grades completions while others are sampled; None if
        `grading.overlap` is off, or has no effect for this task.
        """
        overlaps = self.config.orchestrator.grading.overlap
        return self.env.early_grading(self.config.seed) if overlaps else nullcontext()

    def sample(
        self, examples: Sequence[Example], draws: Sequence[int], step: int, early: EarlyGrading | None = None
    ) -> list[Trajectory]:
        """Sample a group of rollouts for each example, group by group; `early` gets each when it has ended."""
        finished = early and (lambda i, rollout: early.add(examples[i // self.maker.rollouts], rollout))
        return roll_out(self.env, self.policy, self.maker, examples, draws, step, self.sampling, finished)

    def grade(
        self,
        examples: Sequence[Example],
        draws: Sequence[int],
        trajectories: Sequence[Trajectory],
        early: EarlyGrading | None = None,
    ) -> list[Group]:
        """Return the completions with their scores and advantages."""
        advantage, seed = self.config.orchestrator.advantage, self.config.seed
        return grade_groups(self.env, examples, draws, trajectories, advantage, seed, early)


def grade_groups(
    env: Environment,
    examples: Sequence[Example],
    draws: Sequence[int],
    trajectories: Sequence[Trajectory],
    advantage: AdvantageConfig,
    seed: int = 0,
    early: EarlyGrading | None = None,
) -> list[Group]:
    """Score the trajectories, given group by group, and compute the advantages of each group.

    The random numbers of a reward function derive from `seed`. `early` has graded the trajectories meanwhile.
    """
    size, groups = len(trajectories) // len(examples), []
    if early is None:
        all_scores = env.grade_many(((examples[i // size], t) for i, t in enumerate(trajectories)), seed)
    else:
        early_scores = early.scores()
        all_scores = [early_scores[trajectory.sample_id] for trajectory in trajectories]
    for index, (example, draw) in enumerate(zip(examples, draws, strict=True)):
        members = slice(index * size, (index + 1) * size)
        scores = all_scores[members]
        advantages_G = group_advantages(rewards(scores), valid(scores), **advantage.model_dump())
        groups.append(Group(example, draw, list(trajectories[members]), scores, advantages_G))
    return groups


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
    """Raise UserError, naming the row, if an example leaves no room for a completion in `seq_len` tokens.

    `limit` is what the user knows `seq_len` as, `remedy` what to do. Of generated examples the first 64 are enough.
    `advance` gets how many are done. `tools` are the environment's.
    """
    for done, index in enumerate(indices[:64] if split.generated else indices):
        advance(done)
        tokens = len(renderer.prompt_ids(split[index].prompt, tools))
        if tokens >= seq_len:
            raise UserError(
                f"{split.where(index)}: the prompt has {tokens} tokens and leaves no room for a completion in {limit}; "
                f"{remedy}"
            )


def rewards(scores: Sequence[Score]) -> np.ndarray:
    """Return the rewards `[G]` float64, NaN where grading failed."""
    return np.array([score.reward for score in scores], dtype=np.float64)


def valid(scores: Sequence[Score]) -> np.ndarray:
    """Return bool `[G]`: False where grading failed."""
    return np.array([not score.outcome.is_failure for score in scores], dtype=np.bool_)


def group_state(group: Group) -> State:
    """Return how the group's draw ends: `failed` with fewer than two graded samples, `filtered` without variance."""
    mask_G = valid(group.scores)
    if mask_G.sum() < 2:
        return "failed"
    return "trained" if has_signal(rewards(group.scores)[mask_G]) else "filtered"


def trainable(groups: Sequence[Group], truncated: str) -> list[Packed]:
    """Return the completions that a step is trained on, in the order of the groups.

    Left out: groups that are filtered or failed, samples whose grading failed, and, with `truncated` = "mask",
    completions that were stopped by length. Every token that the policy sampled carries loss, the stop token included.
    """
    return [
        Packed(
            token_ids=trajectory.token_ids,
            loss_mask=trajectory.sampled_mask,
            logprobs=trajectory.logprobs,
            advantage=float(group.advantages[index]),
            group=group.draw,
            sample=index,
        )
        for group in groups
        if group_state(group) == "trained"
        for index, (trajectory, score) in enumerate(zip(group.trajectories, group.scores, strict=True))
        if not score.outcome.is_failure and not (truncated == "mask" and trajectory.truncated)
    ]


def close_draws(ledger: Ledger, curriculum: Curriculum, groups: Sequence[Group], step: int) -> None:
    """Tell the curriculum how the draws of a step ended, of its groups and those passed over.

    It goes by that from then on.
    """
    waiting, entries = iter(groups), []
    for draw in curriculum.draw(len(groups)):
        if draw.retired:
            entries.append(Entry(draw.number, step, curriculum.ids[draw.index], "retired", 0))
            continue
        group = next(waiting)
        tokens = sum(len(trajectory.token_ids) for trajectory in group.trajectories)
        entry = Entry(draw.number, step, group.example.id, group_state(group), tokens)
        if curriculum.config.measures:
            outcomes = [score.outcome for score in group.scores]
            graded = sum(not outcome.is_failure for outcome in outcomes)
            entry = replace(entry, solved=outcomes.count(Outcome.CORRECT), graded=graded)
        entries.append(entry)
    curriculum.advance(entries)
    for entry in entries:
        ledger.close(entry)


def step_metrics(groups: Sequence[Group], version: int, lag: int = 0) -> dict[str, float]:
    """Compute metrics over all sampled completions of a step; failures of grading are counted, and leave the means.

    A task of several turns also has their number, and the environment's tokens between them. With `lag`, the versions
    that the sampler may be behind, the staleness of the stalest token, in versions, is added.
    """
    scores = [score for group in groups for score in group.scores]
    trajectories = [t for group in groups for t in group.trajectories]
    graded = rewards(scores)[valid(scores)]
    states = [group_state(group) for group in groups]
    metrics: dict[str, float] = {}
    if len(graded):
        metrics["reward/mean"] = float(graded.mean())
        metrics["reward/std"] = float(graded.std())
        metrics |= component_means([score.components for score in scores if not score.outcome.is_failure])
    metrics["frac_reward_zero_std"] = states.count("filtered") / len(groups)
    metrics |= outcome_shares([score.outcome for score in scores])
    metrics["completion/length/mean"] = float(np.array([t.num_sampled for t in trajectories]).mean())
    metrics["completion/truncated"] = float(np.mean([t.truncated for t in trajectories]))
    metrics |= _identical_shares(groups)
    if any(t.state is not None for t in trajectories):
        metrics["turns/mean"] = float(np.mean([t.turns for t in trajectories]))
        metrics["tokens/environment"] = sum(t.num_environment for t in trajectories)
    staleness = np.concatenate([version - t.versions[t.sampled_mask] for t in trajectories])
    metrics["staleness/mean"] = float(staleness.mean())
    if lag:
        metrics["staleness/max"] = float(staleness.max())
    return metrics | {f"groups/{state}": states.count(state) for state in ("trained", "filtered", "failed")}


def _identical_shares(groups: Sequence[Group]) -> dict[str, float]:
    """Compute the shares of completions with the same sampled tokens as another: an earlier one of the same prompt
    (`completion/repeated`), or any of another prompt in the step (`completion/identical`).
    """
    texts = [[t.token_ids[t.sampled_mask].tobytes() for t in group.trajectories] for group in groups]
    total = sum(map(len, texts))
    prompts_with = Counter(text for group in texts for text in set(group))
    return {
        "completion/repeated": sum(len(group) - len(set(group)) for group in texts) / total,
        "completion/identical": sum(prompts_with[text] > 1 for group in texts for text in group) / total,
    }


def component_means(components: Sequence[dict[str, float]]) -> dict[str, float]:
    """Compute `reward/<component>/mean` over the samples in which the component did not abstain."""
    names = dict.fromkeys(name for sample in components for name in sample)
    return {f"reward/{n}/mean": float(np.mean([sample[n] for sample in components if n in sample])) for n in names}


def outcome_shares(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Compute `outcome/<name>`: the share of the samples, for each of the six outcomes; they add up to 1."""
    return {f"outcome/{outcome}": sum(o == outcome for o in outcomes) / len(outcomes) for outcome in Outcome}
