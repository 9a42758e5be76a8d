"""Checks before training that a model is sometimes right, and that its completions fit max_tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hone.evaluation.result import EvalResult, EvalSample
from hone.extensions.audit.report import Check, Evidence, Finding, Verdict
from hone.types import Outcome

LOW_RATE, HIGH_RATE = 0.01, 0.9
TRUNCATED_WARN, TRUNCATED_FAIL, UNPARSABLE = 0.05, 0.30, 0.5
_SAME = 1e-6
"""Largest difference of a group's rewards that counts as no variance."""


def policy_check(result: EvalResult, max_tokens: int | None) -> Check:
    """Judge by an evaluation if the model can be trained on the task."""
    samples, groups = result.samples, [group for group in result.by_example if group]
    rewards = [np.array([sample.score.reward for sample in group]) for group in groups]
    rates = [float(np.mean([sample.score.outcome is Outcome.CORRECT for sample in group])) for group in groups]
    interval = result.correct_interval
    figures = {
        "examples": len(result.by_example),
        "rollouts_per_example": result.rollouts_per_example,
        "graded": len(result.rewards),
        "groups": len(groups),
        "pass_rate": result.correct,
        "pass_rate_ci95": interval and [interval.low, interval.high],
        "pass_rates": rates,
        "reward_std_within_groups": _mean([row.std() for row in rewards]),
        "zero_std_groups": _mean([row.max() - row.min() <= _SAME for row in rewards]),
        "all_right_groups": _mean([rate == 1.0 for rate in rates]),
        "all_wrong_groups": _mean([rate == 0.0 for rate in rates]),
        "outcomes": dict(Counter(str(sample.score.outcome) for sample in samples)),
        "unparsable": _mean([_without_answer(sample) for sample in samples]),
        "truncated": _mean([sample.trajectory.truncated for sample in samples]),
        "mean_tokens": _mean([sample.completion_tokens or 0 for sample in samples]),
        "max_tokens": max_tokens,
    }
    summary = "no completion could be graded"
    if result.correct is not None:
        between = f" (95 % from {interval.low:.1%} to {interval.high:.1%})" if interval else ""
        summary = (
            f"{result.correct:.1%} of {figures['graded']} completions are right{between}, "
            f"{figures['zero_std_groups']:.0%} of {len(groups)} groups have rewards without variance, "
            f"{figures['truncated']:.1%} are truncated, {figures['mean_tokens']:.0f} tokens on average"
        )
    return Check("policy", summary, tuple(_findings(samples, figures)), figures)


def _findings(samples: Sequence[EvalSample], figures: dict[str, Any]) -> Iterator[Finding]:
    count = len(samples)
    for outcome, name in ((Outcome.GRADER_ERROR, "raises"), (Outcome.GRADER_TIMEOUT, "hangs")):
        failed = [sample for sample in samples if sample.score.outcome is outcome]
        if failed:
            title = f"grading fails ({outcome}) for {len(failed)} of {count} completions of the model"
            yield Finding(name, Verdict.FAIL, title, "make the grader take any text", (), _evidence(failed, "a reward"))
    if figures["pass_rate"] is None:
        return
    rate, zero = figures["pass_rate"], figures["zero_std_groups"]
    words = f"{rate:.1%} of {figures['graded']} completions are right"
    if rate < LOW_RATE:
        remedy = "begin with SFT, a stronger model, or easier examples"
        yield Finding("pass-rate", Verdict.WARN, f"{words}: there is nothing right to reinforce", remedy, ("low",))
    elif rate > HIGH_RATE:
        remedy = "take harder examples, or another task"
        yield Finding("pass-rate", Verdict.WARN, f"{words}: there is little left to learn", remedy, ("high",))
    elif zero > UNPARSABLE:
        title = (
            f"{zero:.0%} of {figures['groups']} groups have rewards without variance and teach nothing "
            f"({figures['all_right_groups']:.0%} are all right, {figures['all_wrong_groups']:.0%} all wrong)"
        )
        remedy = "filter examples by their pass rate, or sample more rollouts per example"
        yield Finding("zero-variance", Verdict.WARN, title, remedy)
    share = figures["truncated"]
    if share > TRUNCATED_WARN:
        room = f"max_tokens = {figures['max_tokens']}" if figures["max_tokens"] else "the sequence length"
        without = figures["outcomes"].get(str(Outcome.TRUNCATED), 0)
        title = f"{share:.0%} of the completions are cut off by {room}, {without} of {count} before there is an answer"
        shown = _evidence([sample for sample in samples if sample.trajectory.truncated], "a complete text")
        verdict = Verdict.FAIL if share > TRUNCATED_FAIL else Verdict.WARN
        yield Finding("length", verdict, title, "raise max_tokens, or ask for shorter completions", (), shown)
    if figures["unparsable"] > UNPARSABLE and share <= UNPARSABLE:
        title = f"{figures['unparsable']:.0%} of the completions have no answer that the parser reads"
        remedy = "say in the prompt which form the answer takes, or teach it by SFT first"
        shown = _evidence([sample for sample in samples if _without_answer(sample)], "an answer that the parser reads")
        yield Finding("unparsable", Verdict.WARN, title, remedy, (), shown)


def _without_answer(sample: EvalSample) -> bool:
    return sample.score.outcome in (Outcome.UNPARSABLE, Outcome.TRUNCATED)


def _evidence(samples: Sequence[EvalSample], expected: str) -> tuple[Evidence, ...]:
    shown = []
    for sample in samples[:2]:
        messages = [dict(message) for message in sample.trajectory.messages[len(sample.example.prompt) :]]
        reward, outcome = sample.score.reward if sample.graded else None, str(sample.score.outcome)
        shown.append(Evidence(sample.example.id, messages, outcome, reward, expected, sample.score.detail))
    return tuple(shown)


def _mean(values: Sequence[Any]) -> float | None:
    return float(np.mean(values)) if values else None
