"""Evaluation: sample completions of held-out examples, grade them, and compute averages with intervals.

    result = evaluate(policy, env, num_examples=100, rollouts_per_example=4, ...)
    result.metrics()["eval/reverse-text/reward/mean"]

The examples are the first of the eval split, so every model and seed gets the same examples, and results can be paired.
Completions that could not be graded are counted, but left out of averages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from hone.environments import Environment
from hone.evaluation.result import STOPPED, EvalResult, EvalSample, FailedRollout, Place
from hone.inference.conversations import RolloutSettings, roll_out
from hone.inference.policy import Policy
from hone.inference.types import SamplingParams
from hone.model.chat import ChatRenderer
from hone.types import Example, Rollout

BATCH = 256
"""Completions per call of the policy. Fixed, because the rounding of a batched product may depend on its size."""

STOPPING = "Ctrl-C: grading the ended rollouts; press it again to stop at once"


def evaluate(
    policy: Policy,
    env: Environment,
    *,
    num_examples: int,
    rollouts_per_example: int,
    sampling: SamplingParams,
    max_tokens: int | None,
    seq_len: int,
    seed: int,
    renderer: ChatRenderer,
    split_name: str = "eval",
    progress: Callable[[int, int], None] = lambda done, total: None,
    keeps_ended: bool = False,
) -> EvalResult:
    """Evaluate on the first `num_examples` examples of a split (all, if there are fewer).

    A completion gets min(`max_tokens`, `seq_len` minus its prompt) tokens. Its randomness is keyed by (seed, "eval",
    policy version, example, rollout). `progress(done, total)` counts examples after each batch. If `keeps_ended`,
    Ctrl-C returns a result with the finished rollouts. Raises UserError for a missing split, or a prompt without room.
    """
    split = env.split(split_name)
    count, stopped = min(num_examples, len(split)), False
    settings = RolloutSettings(renderer, rollouts_per_example, seq_len, max_tokens, seed, "eval", env.tool_schemas)
    per_batch = max(1, BATCH // rollouts_per_example)
    samples: list[EvalSample] = []
    ended: dict[int, Rollout] = {}
    examples, places = dict[int, Example](), list[Place]()
    seconds = {"sample": 0.0, "grade": 0.0}
    version = policy.version
    try:
        for start in range(0, count, per_batch):
            indices = range(start, min(start + per_batch, count))
            examples = {i: split[i] for i in indices}
            places = [(i, r) for i in indices for r in range(rollouts_per_example)]
            early = ended.__setitem__ if keeps_ended else None
            with timed(seconds, "sample"):
                made = roll_out(env, policy, settings, [*examples.values()], indices, version, sampling, early)
            ended |= enumerate(made)
            with timed(seconds, "grade"):
                samples += graded(env, examples, places, ended, seed)
            ended.clear()
            progress(indices.stop, count)
    except KeyboardInterrupt:
        if not keeps_ended or not (samples or ended):
            raise
        stopped = True
        env.progress(STOPPING)
        try:
            with timed(seconds, "grade"):
                samples += graded(env, examples, places, ended, seed)
        except KeyboardInterrupt:
            if not samples:
                raise
    done = {(sample.index, sample.rollout) for sample in samples}
    left = [(i, r) for i in range(count) for r in range(rollouts_per_example) if (i, r) not in done]
    failed = [FailedRollout(*place, split[place[0]], STOPPED) for place in left]
    ranges, label = env.rubric.ranges, env.label
    return EvalResult(env.id, version, rollouts_per_example, samples, seconds, failed, None, ranges, label, stopped)


@contextmanager
def timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    began = time.perf_counter()
    try:
        yield
    finally:
        seconds[phase] += time.perf_counter() - began


def graded(
    env: Environment, examples: Mapping[int, Example], places: Sequence[Place], ended: Mapping[int, Any], seed: int
) -> list[EvalSample]:
    """Grade the finished rollouts in `ended` (by position in `places`); return samples in the order of `places`."""
    done = {places[n]: one for n, one in sorted(ended.items()) if isinstance(one, Rollout)}
    pairs = [(examples[index], one) for (index, _), one in done.items()]
    scores = env.grade_many(pairs, seed, [index for index, _ in done])
    return [EvalSample(*place, *pair, score) for place, pair, score in zip(done, pairs, scores, strict=True)]


def shortage(env: Environment, split_name: str, asked: int) -> str:
    """Return a warning if a split has fewer examples than asked for; else ""."""
    available, what = len(env.split(split_name)), "training" if split_name == "train" else "held-out"
    words = f"{env.label} has {available} {what} examples: all are used ({asked} asked for)"
    return "" if available >= asked else words
