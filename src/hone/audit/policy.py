"""What a model makes of a task before it is trained on it: whether there is something to reinforce, and room for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hone.audit.report import Check, Finding, Shown, Verdict
from hone.evaluation.intervals import Interval
from hone.evaluation.result import EvalResult, EvalSample
from hone.types import Outcome

LOW_RATE, HIGH_RATE = 0.01, 0.9
TRUNCATED_WARN, TRUNCATED_FAIL, UNPARSABLE = 0.05, 0.30, 0.5
_SAME = 1e-6
"""Rewards of a group that differ by no more than this have no variance."""


def policy_check(result: EvalResult, max_tokens: int | None) -> Check:
    """What an evaluation says about training on the task from this model."""
    figures = _figures(result, max_tokens)
    findings = tuple(_findings(result, figures, max_tokens))
    if figures["pass_rate"] is None:
        return Check("policy", "no completion could be graded", findings, figures)
    interval = figures["pass_rate_ci95"]
    between = f" (95 % from {interval[0]:.1%} to {interval[1]:.1%})" if interval else ""
    summary = (
        f"{figures['pass_rate']:.1%} of {figures['graded']} completions are right{between}, "
        f"{figures['zero_std_groups']:.0%} of {figures['groups']} groups have rewards without variance, "
        f"{figures['truncated']:.1%} are truncated, {figures['mean_tokens']:.0f} tokens on average"
    )
    return Check("policy", summary, findings, figures)


def _figures(result: EvalResult, max_tokens: int | None) -> dict[str, Any]:
    groups = [group for group in result.by_example if group]
    rewards = [np.array([sample.score.reward for sample in group]) for group in groups]
    rates = [float(np.mean([sample.score.outcome is Outcome.CORRECT for sample in group])) for group in groups]
    truncated = [sample for sample in result.samples if sample.trajectory.truncated]
    lengths = [sample.completion_tokens or 0 for sample in result.samples]
    outcomes = {str(one): sum(sample.score.outcome is one for sample in result.samples) for one in Outcome}
    return {
        "examples": len(result.by_example),
        "rollouts_per_example": result.rollouts_per_example,
        "graded": len(result.rewards),
        "groups": len(groups),
        "pass_rate": result.exact,
        "pass_rate_ci95": _ends(result.exact_interval),
        "pass_rates": rates,
        "reward_mean": float(result.rewards.mean()) if len(result.rewards) else None,
        "reward_std_within_groups": float(np.mean([row.std() for row in rewards])) if rewards else None,
        "zero_std_groups": _share([row.max() - row.min() <= _SAME for row in rewards]),
        "all_right_groups": _share([rate == 1.0 for rate in rates]),
        "all_wrong_groups": _share([rate == 0.0 for rate in rates]),
        "outcomes": {name: count for name, count in outcomes.items() if count},
        "unparsable": _share([_without_answer(sample) for sample in result.samples]),
        "truncated": _share([sample.trajectory.truncated for sample in result.samples]),
        "truncated_without_answer": sum(sample.score.outcome is Outcome.TRUNCATED for sample in truncated),
        "mean_tokens": float(np.mean(lengths)) if lengths else None,
        "longest_tokens": max(lengths, default=None),
        "max_tokens": max_tokens,
    }


def _findings(result: EvalResult, figures: dict[str, Any], max_tokens: int | None) -> Iterator[Finding]:
    yield from _of_grading(result)
    if figures["pass_rate"] is None:
        return
    yield from _of_pass_rate(result, figures)
    share = figures["truncated"]
    if share > TRUNCATED_WARN:
        room = f"max_tokens = {max_tokens}" if max_tokens else "the sequence length"
        title = (
            f"{share:.0%} of the completions are cut off by {room}, {figures['truncated_without_answer']} of "
            f"{len(result.samples)} before there is an answer"
        )
        shown = _shown([sample for sample in result.samples if sample.trajectory.truncated], "room to end")
        verdict = Verdict.FAIL if share > TRUNCATED_FAIL else Verdict.WARN
        yield Finding("length", verdict, title, "raise max_tokens, or ask for shorter completions", (), shown)
    if figures["unparsable"] > UNPARSABLE and share <= UNPARSABLE:
        without = [sample for sample in result.samples if _without_answer(sample)]
        yield Finding(
            "unparsable",
            Verdict.WARN,
            f"{figures['unparsable']:.0%} of the completions have no answer that the parser reads",
            "say in the prompt which form the answer takes, or teach it by SFT first",
            (),
            _shown(without, "an answer in the form that the parser reads"),
        )


def _of_grading(result: EvalResult) -> Iterator[Finding]:
    """Completions of a real model whose grading failed."""
    failed = result.failures
    for outcome, name in ((Outcome.GRADER_ERROR, "raises"), (Outcome.GRADER_TIMEOUT, "hangs")):
        samples = [sample for sample in failed if sample.score.outcome is outcome]
        if samples:
            title = f"grading fails ({outcome}) for {len(samples)} of {len(result.samples)} completions of the model"
            shown = _shown(samples, "a reward")
            yield Finding(name, Verdict.FAIL, title, "make the grader take any text", (), shown)


def _of_pass_rate(result: EvalResult, figures: dict[str, Any]) -> Iterator[Finding]:
    rate, zero = figures["pass_rate"], figures["zero_std_groups"]
    words = f"{rate:.1%} of {figures['graded']} completions are right"
    if rate < LOW_RATE:
        spread = figures["reward_std_within_groups"] or 0.0
        title = f"{words}: there is nothing right to reinforce"
        if zero < 1.0:
            title += f" (the rewards of wrong ones vary by {spread:.2g} within a group)"
        yield Finding(
            "pass-rate", Verdict.WARN, title, "begin with SFT, a stronger model, or easier examples", ("low",)
        )
    elif rate > HIGH_RATE:
        title = f"{words}: there is little left to learn"
        yield Finding("pass-rate", Verdict.WARN, title, "take harder examples, or another task", ("high",))
    if zero > UNPARSABLE and LOW_RATE <= rate <= HIGH_RATE:
        title = (
            f"{zero:.0%} of {figures['groups']} groups have rewards without variance and teach nothing "
            f"({figures['all_right_groups']:.0%} are all right, {figures['all_wrong_groups']:.0%} all wrong)"
        )
        remedy = "filter examples by their pass rate, or sample more rollouts per example"
        yield Finding("zero-variance", Verdict.WARN, title, remedy)


def _without_answer(sample: EvalSample) -> bool:
    return sample.score.outcome in (Outcome.UNPARSABLE, Outcome.TRUNCATED)


def _shown(samples: Sequence[EvalSample], expected: str, count: int = 2) -> tuple[Shown, ...]:
    return tuple(
        Shown(
            example_id=sample.example.id,
            completion=[dict(message) for message in sample.trajectory.messages[len(sample.example.prompt) :]],
            outcome=str(sample.score.outcome),
            reward=sample.score.reward if sample.graded else None,
            expected=expected,
            detail=sample.score.detail,
        )
        for sample in samples[:count]
    )


def _share(flags: Sequence[Any]) -> float | None:
    return float(np.mean(flags)) if flags else None


def _ends(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [interval.low, interval.high]
