"""A run's records, step by step. Needs no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from hone.extensions.reproduce.compare import Row, StepRecord
from hone.runs.reader import Run
from hone.types import Example, Message, Outcome, Score

EVALUATIONS = ("eval/", "val/")
"""Prefixes of the metrics of an evaluation. Some steps N evaluate version N before training."""
CANARY = ("canary/",)
"""Prefix of metrics that compare the logprobs of sampler and trainer for version N, before step N trains."""
SENT_BACK = ("staleness/returned",)
"""Metrics about discarded samples, which only a split run has."""


class Records:
    """The records of a run. Each log is read only once, even if the run goes on."""

    def __init__(self, run: Run) -> None:
        self.run = run

    @cached_property
    def hashes(self) -> dict[int, dict[str, Any]]:
        return {line["step"]: line for line in self.run.hashes()}

    @cached_property
    def metrics(self) -> dict[int, dict[str, Any]]:
        """The lines of metrics.jsonl by step, without the key `step`."""
        return {line["step"]: {n: v for n, v in line.items() if n != "step"} for line in self.run.metric_lines()}

    @cached_property
    def rollout_steps(self) -> frozenset[int]:
        return frozenset(self.run.rollout_steps())

    @cached_property
    def updates(self) -> list[int]:
        """Steps with a recorded update, ascending. Steps with only an evaluation are left out."""
        return [step for step in sorted(self.metrics) if self.is_update(step)]

    def is_update(self, step: int) -> bool:
        return "lr" in self.metrics.get(step, {})

    @cached_property
    def evaluations(self) -> frozenset[int]:
        return frozenset(self.run.evals())

    @cached_property
    def last_evaluation(self) -> int | None:
        """The version after the last step, if the run recorded an evaluation of it."""
        last = max(self.metrics.keys() | self.evaluations, default=-1)
        began = self.is_update(last) or last in self.rollout_steps
        return last if not began and self.was_evaluated(last) else None

    def was_evaluated(self, version: int) -> bool:
        metrics = self.metrics.get(version, {})
        return version in self.evaluations or any(name.startswith(EVALUATIONS) for name in metrics)

    def rows(self, step: int) -> list[Row] | None:
        return self.run.rollouts(step).to_pylist() if step in self.rollout_steps else None

    def record(self, step: int, without: tuple[str, ...] = (), samples: bool = True) -> StepRecord:
        """Return a step's record, without metrics that have a prefix in `without`; completions only if `samples`."""
        metrics = self.metrics.get(step)
        if metrics is not None:
            metrics = {name: value for name, value in metrics.items() if not name.startswith(without)}
        before, after = (self.hashes.get(version, {}).get("weights") for version in (step, step + 1))
        evaluated = samples and step in self.evaluations and not set(EVALUATIONS) <= set(without)
        evals = self.run.eval_rows(step) if evaluated else None
        return StepRecord(step, self.rows(step) if samples else None, metrics, before, after, evals)


def plain_rows(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Convert rows of `hone.runs.rollouts.group_rows` to the values that a reader of the file gets."""

    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value.tolist()
        return list(value.items()) if isinstance(value, dict) else value

    return [{name: plain(value) for name, value in row.items()} for row in rows]


def example_of(row: Row) -> Example:
    return Example(json.loads(row["prompt"]), row["answer"] or "", json.loads(row["info"] or "{}"), row["example_id"])


def messages_of(row: Row) -> list[Message]:
    several_turns = row.get("completion") is not None
    turns = json.loads(row["completion"]) if several_turns else [{"role": "assistant", "content": row["text"]}]
    return [*json.loads(row["prompt"]), *turns]


def score_of(row: Row) -> Score:
    """Return the score of a recorded completion; its reward is NaN if grading failed."""
    outcome = Outcome(row["outcome"])
    reward = math.nan if outcome.is_failure or row["reward"] is None else row["reward"]
    return Score(reward, dict(row["components"]), dict(row["weights"]), outcome, row["detail"] or "")
