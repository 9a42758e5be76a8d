"""The result of an evaluation: its graded completions and their statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from hone.environments.rubric import Range
from hone.evaluation.intervals import Interval, bounded_interval, pass_at_ks, share_interval
from hone.runs.metrics import component_means, outcome_shares
from hone.types import Example, Message, Outcome, Rollout, Score

Place = tuple[int, int]
"""(example, rollout)"""
STOPPED = "stopped by Ctrl-C before it ended"


@dataclass(frozen=True)
class EvalSample:
    """The graded completion with number `rollout` for example `index` of the eval split."""

    index: int
    rollout: int
    example: Example
    trajectory: Rollout
    score: Score

    @property
    def graded(self) -> bool:
        return not self.score.outcome.is_failure

    @property
    def prompt_tokens(self) -> int | None:
        """Number of tokens before the first sampled token; None if not counted."""
        return self.trajectory.prompt_tokens

    @property
    def completion_tokens(self) -> int | None:
        return self.trajectory.completion_tokens

    def row(self) -> dict[str, Any]:
        """Return the sample's line in `results.jsonl`. The reward is None if grading failed."""
        trajectory, score = self.trajectory, self.score
        row = _row(self, trajectory.messages[len(self.example.prompt) :]) | {
            "reward": score.reward if self.graded else None,
            "components": score.components,
            "outcome": str(score.outcome),
            "detail": score.detail,
            "stop_reason": trajectory.stop_reason,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
        }
        if trajectory.state is not None:
            row["turns"] = trajectory.turns
        if trajectory.usage is not None:
            row["seconds"] = round(trajectory.usage.seconds, 4)
        return row


@dataclass(frozen=True)
class FailedRollout:
    """A failed rollout: its number `rollout`, the example's `index`, and the reason."""

    index: int
    rollout: int
    example: Example
    reason: str

    def row(self) -> dict[str, Any]:
        return _row(self, []) | {"outcome": "rollout_failed", "detail": self.reason, "seconds": None}


def _row(one: EvalSample | FailedRollout, completion: list[Message]) -> dict[str, Any]:
    return {
        "example": one.index,
        "rollout": one.rollout,
        "example_id": one.example.id,
        "prompt": one.example.prompt,
        "completion": completion,
        "answer": one.example.answer,
        "info": one.example.info,
        "reward": None,
        "components": {},
        "outcome": "",
        "detail": "",
        "stop_reason": None,
        "prompt_tokens": None,
        "completion_tokens": None,
    }


@dataclass(frozen=True)
class RequestStats:
    """The requests to a server: seconds of each answered request, number of retries, and most requests at one time."""

    seconds: list[float]
    retries: int
    concurrency: int

    def summary(self) -> dict[str, float]:
        if not self.seconds:
            return {}
        median, p95 = (float(value) for value in np.quantile(self.seconds, (0.5, 0.95)))
        return {"mean": float(np.mean(self.seconds)), "median": median, "p95": p95, "max": max(self.seconds)}


@dataclass(frozen=True)
class EvalResult:
    """The samples of one evaluation, example by example. `seconds`: the duration of each phase ("sample", "grade").

    `failed`: rollouts that the server did not deliver, or that Ctrl-C ended (`stopped`); no average includes them.
    """

    env_id: str
    version: int
    rollouts_per_example: int
    samples: list[EvalSample]
    seconds: dict[str, float]
    failed: list[FailedRollout] = field(default_factory=list)
    requests: RequestStats | None = None
    ranges: Mapping[str, Range] = field(default_factory=dict)
    label: str = ""
    stopped: bool = False

    def __repr__(self) -> str:
        """Return the figures without the samples, for a notebook."""
        reward = f"reward {self.rewards.mean():.3f}" if len(self.rewards) else "no reward"
        if self.reward_interval is not None:
            reward += f" (95 % interval {self.reward_interval.low:.3f} to {self.reward_interval.high:.3f})"
        correct = "" if self.correct is None else f", correct {self.correct:.1%}"
        return f"<EvalResult {self.label or self.env_id}: {reward}{correct}, {len(self.samples)} completions>"

    def rows(self) -> list[dict[str, Any]]:
        return [r.row() for r in sorted([*self.samples, *self.failed], key=lambda r: (r.index, r.rollout))]

    def tokens(self) -> tuple[list[int], list[int]] | None:
        """Return the token counts of the prompts and of the completions; None if the server did not count them all."""
        prompts = [s.prompt_tokens for s in self.samples if s.prompt_tokens is not None]
        completions = [s.completion_tokens for s in self.samples if s.completion_tokens is not None]
        counted = 0 < len(self.samples) == len(prompts) == len(completions)
        return (prompts, completions) if counted else None

    def turns(self) -> list[int]:
        """Return the model's turns in each rollout; empty for a task of a single turn."""
        return [s.trajectory.turns for s in self.samples if s.trajectory.state is not None]

    @cached_property
    def by_example(self) -> list[list[EvalSample]]:
        """The graded samples of each example; [] if all samples of an example failed."""
        indices = sorted({r.index for r in (*self.samples, *self.failed)})
        groups: dict[int, list[EvalSample]] = {index: [] for index in indices}
        for sample in self.samples:
            if sample.graded:
                groups[sample.index].append(sample)
        return list(groups.values())

    @cached_property
    def rewards(self) -> np.ndarray:
        return np.array([s.score.reward for s in self.samples if s.graded], dtype=np.float64)

    @property
    def failures(self) -> list[EvalSample]:
        return [s for s in self.samples if not s.graded]

    @cached_property
    def reward_interval(self) -> Interval | None:
        """95 % interval of the mean reward, clustered by example; None with fewer than two graded examples."""
        rewards = [np.array([s.score.reward for s in group], dtype=np.float64) for group in self.by_example]
        return bounded_interval(rewards, *self.reward_range)

    @property
    def reward_range(self) -> tuple[float, float]:
        """(Least, largest) possible reward, by the declared ranges (default: 0 to 1) and the observed values."""
        scores = [s.score for s in self.samples if s.graded]
        low = high = 0.0
        for name, weight in (scores[0].weights if scores else {}).items():
            declared = self.ranges.get(name)
            values = [0.0, *((*declared.right, *declared.wrong) if declared else (1.0,))]
            values += [score.components[name] for score in scores if name in score.components]
            ends = sorted((weight * min(values), weight * max(values)))
            low, high = low + ends[0], high + ends[1]
        return low, high

    @cached_property
    def correct(self) -> float | None:
        """Share of correct completions among graded completions; None if no completion is graded."""
        hits = np.concatenate(self._hits())
        return float(hits.mean()) if len(hits) else None

    @cached_property
    def correct_interval(self) -> Interval | None:
        return share_interval(self._hits())

    @cached_property
    def pass_at(self) -> dict[int, float]:
        return pass_at_ks([(len(hits), int(hits.sum())) for hits in self._hits()], self.rollouts_per_example)

    def _hits(self) -> list[np.ndarray]:
        return [np.array([s.score.outcome is Outcome.CORRECT for s in g], dtype=np.float64) for g in self.by_example]

    def metrics(self) -> dict[str, float]:
        """Return the metrics as `eval/<env>/…`, without undefined metrics, such as the mean if all gradings failed."""
        metrics: dict[str, float] = {}
        if len(self.rewards):
            metrics |= {"reward/mean": float(self.rewards.mean()), "reward/std": float(self.rewards.std())}
            metrics |= component_means([s.score.components for s in self.samples if s.graded])
        metrics |= _ends("ci95", self.reward_interval)
        if self.correct is not None:
            metrics["correct"] = self.correct
        metrics |= _ends("correct/ci95", self.correct_interval)
        metrics |= {f"pass@{k}": value for k, value in self.pass_at.items()}
        if self.samples:
            metrics |= outcome_shares([s.score.outcome for s in self.samples])
            metrics["completion/truncated"] = float(np.mean([s.trajectory.truncated for s in self.samples]))
        if tokens := self.tokens():
            metrics["completion/length/mean"] = float(np.mean(tokens[1]))
        if turns := self.turns():
            metrics["turns/mean"] = float(np.mean(turns))
        return {f"eval/{self.env_id}/{name}": value for name, value in metrics.items()}


def _ends(name: str, interval: Interval | None) -> dict[str, float]:
    return {} if interval is None else {f"{name}/low": interval.low, f"{name}/high": interval.high}
