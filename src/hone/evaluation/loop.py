"""Evaluation: sample completions of held-out examples, grade them, and say how sure the averages are.

    result = evaluate(policy, env, num_examples=100, rollouts_per_example=4, ...)
    result.metrics()["eval/reverse-text/reward/mean"]

The examples are the first of the eval split, so that every model and seed meets the same ones and results can be
compared in pairs. Completions whose grading failed leave the averages and are counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from hone.environments import Environment
from hone.evaluation.result import EvalResult, EvalSample
from hone.inference.types import SamplingParams
from hone.model.chat import ChatRenderer
from hone.orchestrator.conversations import RolloutSettings, roll_out
from hone.orchestrator.types import Policy

BATCH = 256
"""Completions per call of the policy. Fixed: the rounding of a batched product may depend on the batch."""


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
) -> EvalResult:
    """Evaluate on the first `num_examples` of the eval split, or of another one (all of it, if it has fewer).

    A completion gets min(`max_tokens`, what its prompt leaves of `seq_len`) tokens; its randomness is keyed by
    (seed, "eval", policy version, example, rollout). `progress(done, total)` counts examples, after each batch. Raises
    UserError if the environment has no such split, or a prompt leaves no room.
    """
    split = env.split(split_name)
    count = min(num_examples, len(split))
    settings = RolloutSettings(renderer, rollouts_per_example, seq_len, max_tokens, seed, "eval", env.tool_schemas)
    per_batch = max(1, BATCH // rollouts_per_example)
    samples: list[EvalSample] = []
    seconds = {"sample": 0.0, "grade": 0.0}
    version = policy.version
    for start in range(0, count, per_batch):
        indices = range(start, min(start + per_batch, count))
        examples = [split[i] for i in indices]
        began = time.perf_counter()
        rollouts = roll_out(env, policy, settings, examples, indices, version, sampling)
        sampled = time.perf_counter()
        places = [divmod(position, rollouts_per_example) for position in range(len(rollouts))]
        pairs = [(examples[member], rollout) for (member, _), rollout in zip(places, rollouts, strict=True)]
        scores = env.grade_many(pairs, seed, [member for member, _ in places])
        for (member, number), rollout, score in zip(places, rollouts, scores, strict=True):
            samples.append(EvalSample(indices[member], number, examples[member], rollout, score))
        seconds["sample"] += sampled - began
        seconds["grade"] += time.perf_counter() - sampled
        progress(indices.stop, count)
    return EvalResult(
        env.id, version, rollouts_per_example, samples, seconds, ranges=env.rubric.ranges, label=env.label
    )


def shortage(env: Environment, split_name: str, asked: int) -> str:
    """Say that a split has fewer examples than are asked for; "" if it has enough."""
    available, what = len(env.split(split_name)), "training" if split_name == "train" else "held-out"
    words = f"{env.label} has {available} {what} examples: all are used ({asked} asked for)"
    return "" if available >= asked else words
