"""What an evaluation found: its graded completions, and what they amount to."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hone.evaluation.intervals import Interval, mean_interval, share_interval
from hone.evaluation.passk import pass_at_ks
from hone.orchestrator.metrics import component_means, outcome_shares
from hone.types import Example, Outcome, Score, Trajectory


@dataclass(frozen=True)
class EvalSample:
    """One graded completion: `rollout` counts the completions of example `index` of the eval split."""

    index: int
    rollout: int
    example: Example
    trajectory: Trajectory
    score: Score

    @property
    def graded(self) -> bool:
        return not self.score.outcome.is_failure

    def row(self) -> dict[str, Any]:
        """What `results.jsonl` says about it. The reward is None if grading failed."""
        trajectory, score = self.trajectory, self.score
        prompt = len(self.example.prompt)
        return {
            "example": self.index,
            "rollout": self.rollout,
            "example_id": self.example.id,
            "prompt": self.example.prompt,
            "completion": trajectory.messages[prompt:],
            "answer": self.example.answer,
            "info": self.example.info,
            "reward": score.reward if self.graded else None,
            "components": score.components,
            "outcome": str(score.outcome),
            "detail": score.detail,
            "stop_reason": trajectory.stop_reason,
            "prompt_tokens": len(trajectory.token_ids) - trajectory.num_sampled,
            "completion_tokens": trajectory.num_sampled,
        }


@dataclass(frozen=True)
class EvalResult:
    """The samples of one evaluation, example by example, and what they amount to. `seconds` by phase: sample, grade."""

    env_id: str
    version: int
    rollouts_per_example: int
    samples: list[EvalSample]
    seconds: dict[str, float]

    @cached_property
    def by_example(self) -> list[list[EvalSample]]:
        """The graded samples of each example; empty where all failed."""
        groups: dict[int, list[EvalSample]] = {}
        for sample in self.samples:
            members = groups.setdefault(sample.index, [])
            if sample.graded:
                members.append(sample)
        return list(groups.values())

    @cached_property
    def rewards(self) -> np.ndarray:
        """The rewards of the graded samples, float64."""
        return np.array([s.score.reward for s in self.samples if s.graded], dtype=np.float64)

    @property
    def failures(self) -> list[EvalSample]:
        """The samples whose grading failed."""
        return [s for s in self.samples if not s.graded]

    @cached_property
    def reward_interval(self) -> Interval | None:
        """95 % interval of the mean reward, clustered by example; None with fewer than two graded examples."""
        return mean_interval([np.array([s.score.reward for s in group]) for group in self.by_example])

    @cached_property
    def exact(self) -> float | None:
        """Share of correct completions among the graded ones; None if there are none."""
        hits = np.concatenate(self._hits())
        return float(hits.mean()) if len(hits) else None

    @cached_property
    def exact_interval(self) -> Interval | None:
        """95 % interval of `exact`: see `share_interval`."""
        return share_interval(self._hits())

    @cached_property
    def pass_at(self) -> dict[int, float]:
        """pass@k for k = 1, 2, 4, … up to the completions per example."""
        return pass_at_ks([(len(hits), int(hits.sum())) for hits in self._hits()], self.rollouts_per_example)

    def _hits(self) -> list[np.ndarray]:
        """1 for each correct and 0 for each other graded sample, by example."""
        return [np.array([s.score.outcome is Outcome.CORRECT for s in g], dtype=np.float64) for g in self.by_example]

    def metrics(self) -> dict[str, float]:
        """Everything as `eval/<env>/…`. What is undefined, such as the mean if all gradings failed, is absent."""
        metrics: dict[str, float] = {}
        if len(self.rewards):
            metrics["reward/mean"] = float(self.rewards.mean())
            metrics["reward/std"] = float(self.rewards.std())
            metrics |= component_means([s.score.components for s in self.samples if s.graded])
        if self.reward_interval is not None:
            metrics |= {"ci95/low": self.reward_interval.low, "ci95/high": self.reward_interval.high}
        if self.exact is not None:
            metrics["exact"] = self.exact
        if self.exact_interval is not None:
            metrics |= {"exact/ci95/low": self.exact_interval.low, "exact/ci95/high": self.exact_interval.high}
        metrics |= {f"pass@{k}": value for k, value in self.pass_at.items()}
        metrics |= outcome_shares([s.score.outcome for s in self.samples])
        metrics["completion/length/mean"] = float(np.mean([s.trajectory.num_sampled for s in self.samples]))
        metrics["completion/truncated"] = float(np.mean([s.trajectory.truncated for s in self.samples]))
        return {f"eval/{self.env_id}/{name}": value for name, value in metrics.items()}
