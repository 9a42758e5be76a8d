"""What a step's groups amount to, in the names of the run's metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from hone.orchestrator.groups import group_state, rewards, valid
from hone.types import Group, Outcome


def step_metrics(groups: Sequence[Group], version: int, lag: int = 0) -> dict[str, float]:
    """Metrics over all sampled completions of a step; samples whose grading failed are counted, and leave the means.

    Of a task of several turns also how many they were, and the tokens between them, which are the environment's. With
    `lag`, the versions that the sampler may be behind, also the staleness of the stalest token, in versions.
    """
    scores = [score for group in groups for score in group.scores]
    trajectories = [t for group in groups for t in group.trajectories]
    graded = rewards(scores)[valid(scores)]
    states = [group_state(group) for group in groups]
    lengths = np.array([t.num_sampled for t in trajectories])
    metrics: dict[str, float] = {}
    if len(graded):
        metrics["reward/mean"] = float(graded.mean())
        metrics["reward/std"] = float(graded.std())
        metrics |= component_means([score.components for score in scores if not score.outcome.is_failure])
    metrics["frac_reward_zero_std"] = states.count("filtered") / len(groups)
    metrics |= outcome_shares([score.outcome for score in scores])
    metrics["completion/length/mean"] = float(lengths.mean())
    metrics["completion/truncated"] = float(np.mean([t.truncated for t in trajectories]))
    metrics |= identical_shares(groups)
    if any(t.state is not None for t in trajectories):
        metrics["turns/mean"] = float(np.mean([t.turns for t in trajectories]))
        metrics["tokens/environment"] = sum(t.num_environment for t in trajectories)
    staleness = np.concatenate([version - t.versions[t.sampled_mask] for t in trajectories])
    metrics["staleness/mean"] = float(staleness.mean())
    if lag:
        metrics["staleness/max"] = float(staleness.max())
    for state in ("trained", "filtered", "failed"):
        metrics[f"groups/{state}"] = states.count(state)
    return metrics


def identical_shares(groups: Sequence[Group]) -> dict[str, float]:
    """Shares of the completions whose sampled tokens are those of another: an earlier one of the same prompt
    (`completion/repeated`), or any of another prompt in the step (`completion/identical`).
    """
    texts = [[t.token_ids[t.sampled_mask].tobytes() for t in group.trajectories] for group in groups]
    total = sum(map(len, texts))
    prompts_with = Counter(text for of_prompt in texts for text in set(of_prompt))
    return {
        "completion/repeated": sum(len(of_prompt) - len(set(of_prompt)) for of_prompt in texts) / total,
        "completion/identical": sum(prompts_with[text] > 1 for of_prompt in texts for text in of_prompt) / total,
    }


def gained(before: float | None, now: float | None) -> float | None:
    """By how much a counter of a server grew; one that was started anew counts from 0. None if it does not tell."""
    if before is None or now is None or now < before:
        return now
    return now - before


def component_means(components: Sequence[dict[str, float]]) -> dict[str, float]:
    """`reward/<component>/mean` over the samples in which the component did not abstain."""
    names = dict.fromkeys(name for sample in components for name in sample)
    return {f"reward/{n}/mean": float(np.mean([sample[n] for sample in components if n in sample])) for n in names}


def outcome_shares(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """`outcome/<name>`: share of the samples, for each of the six outcomes; they add up to 1."""
    return {f"outcome/{outcome}": sum(o == outcome for o in outcomes) / len(outcomes) for outcome in Outcome}
