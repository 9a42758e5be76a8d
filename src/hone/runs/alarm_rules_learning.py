"""Rules on learning itself: whether there is something to learn from, and how the updates go."""

from __future__ import annotations

import math
from statistics import fmean, median

from hone.runs.alarm_finding import SOLVED, Finding
from hone.runs.history import History, differ
from hone.runs.progress import percent


def zero_std(history: History, threshold: float) -> Finding | None:
    """Most groups have one and the same reward."""
    now, first = history.now("frac_reward_zero_std"), history.first("frac_reward_zero_std")
    if not now or now.mean < threshold:
        return None
    return Finding(
        now.mean,
        threshold,
        f"{percent(now.mean)} of the groups had one and the same reward over the last {history.window} steps "
        f"({percent(first.mean)} at the beginning), and taught nothing",
        "harder or easier prompts (orchestrator.curriculum.order = difficulty, curriculum.pool), or more "
        "rollouts_per_example",
    )


def entropy_collapse(history: History, threshold: float) -> Finding | None:
    """The policy has become nearly deterministic before the task was solved."""
    now, first = history.now("entropy"), history.first("entropy")
    correct = history.now("outcome/correct")
    if not (now and first and correct) or correct.mean >= SOLVED:
        return None  # in SFT nothing is tried, and what is imitated may well leave no choice
    if now.mean > threshold * first.mean or not first.mean > 0:
        return None
    return Finding(
        now.mean / first.mean,
        threshold,
        f"the entropy fell from {first.mean:.3g} to {now.mean:.3g} nats a token with {percent(correct.mean)} of the "
        "completions correct: nothing new is tried",
        "lower trainer.optim.lr, raise trainer.loss.eps_high, or go on from an earlier checkpoint",
    )


def entropy_blowup(history: History, threshold: float) -> Finding | None:
    """The policy turns to noise."""
    lowest = history.lowest("entropy")
    then, now = history.at("entropy", lowest), history.now("entropy")
    if not (then and now) or now.mean - then.mean < threshold or not differ(then, now):
        return None
    return Finding(
        now.mean - then.mean,
        threshold,
        f"the entropy rose from {then.mean:.3g} (at step {history.steps[lowest]}) to {now.mean:.3g} nats a token",
        "lower trainer.optim.lr, check that the reward still pays for right answers, and go on from an earlier "
        "checkpoint",
    )


def kl(history: History, threshold: float) -> Finding | None:
    """The policy is far from the initial one."""
    now = history.now("kl")
    if not now or now.mean < threshold:
        return None
    return Finding(
        now.mean,
        threshold,
        f"the KL to the initial policy is {now.mean:.3g} nats a token over the last {history.window} steps",
        "raise trainer.loss.kl_coef or lower trainer.optim.lr; if the held-out reward still rises, raise "
        "alarms.kl.threshold",
    )


def ratio(history: History, threshold: float) -> Finding | None:
    """Importance ratios leave the clip range."""
    now = history.now("clipped")
    if not now or now.mean < threshold:
        return None
    return Finding(
        now.mean,
        threshold,
        f"the importance ratio of {percent(now.mean)} of the tokens was clipped over the last {history.window} steps",
        "lower orchestrator.max_async_level or trainer.optim.lr; look at logprob_gap/mean, which says whether sampler "
        "and trainer agree",
    )


def grad_spike(history: History, threshold: float) -> Finding | None:
    """The gradient of the last step is far larger than those before, or not finite."""
    if history.latest("optimizer/skipped") == 1.0 and history.latest("groups/trained") != 0.0:
        return Finding(
            math.inf,
            threshold,
            "the gradient was not finite, and the update was left out",
            "lower trainer.optim.lr, or use precision = fp32; look for NaN rewards and very long completions",
        )
    known = [value for value in history.values("grad_norm")[-1 - 2 * history.window :] if value > 0]
    norm, before = history.latest("grad_norm"), known[:-1]
    if len(before) < history.window or not norm > 0:
        return None
    typical, lasting = median(before), min(known[-LASTING:])
    if not (norm >= threshold * max(before) or lasting >= threshold * typical):
        return None
    return Finding(
        norm / typical,
        threshold,
        f"the gradient's norm is {norm:.3g}, that of the {len(before)} steps before was {typical:.3g} (median) and "
        f"{max(before):.3g} at most",
        "it was clipped to optim.max_norm; if it comes again, lower the learning rate, and read this step's rollouts",
    )


LASTING = 3
"""Steps for which a gradient must be large that is no larger than a single one before: single ones come and go."""


def solved_pool(history: History, threshold: float) -> Finding | None:
    """Nothing is left to learn: nearly all completions are correct, or the curriculum has retired the prompts."""
    correct = history.now("outcome/correct")
    active, retired = (history.latest(f"pool/{name}") for name in ("active", "retired"))
    total = active + retired + history.latest("pool/parked")
    if total > 0 and retired / total >= threshold:
        share, evidence = retired / total, f"{retired:,.0f} of {total:,.0f} prompts are retired as solved"
    elif correct and correct.mean >= threshold:
        share = correct.mean
        evidence = f"{percent(share)} of the completions were correct over the last {history.window} steps"
    else:
        return None
    advice = "stop here and evaluate (`hone eval`), or go on with harder prompts"
    return Finding(share, threshold, evidence, advice)


def dead_pool(history: History, threshold: float) -> Finding | None:
    """Nothing is solved, and the reward does not rise either; or the curriculum has parked the prompts."""
    steps = math.ceil(threshold)
    parked, total = history.latest("pool/parked"), sum(history.latest(f"pool/{n}") for n in POOL)
    advice = "easier prompts, more SFT first, or a stronger model; check with `hone audit` that a right answer is paid"
    if total > 0 and parked / total >= PARKED:
        return Finding(parked / total, PARKED, f"{parked:,.0f} of {total:,.0f} prompts are parked as unsolved", advice)
    recent = history.values("outcome/correct")[-steps:]
    if len(recent) < steps or any(value != 0.0 for value in recent):
        return None
    since = next((i for i, value in enumerate(reversed(history.values("outcome/correct"))) if value != 0.0), None)
    first = 0 if since is None else len(history) - since
    then, now = history.at("reward/mean", first + history.window - 1), history.now("reward/mean")
    if now.mean > then.mean and differ(then, now, RISING):
        return None
    evidence = f"not one completion was correct in the last {steps} steps, and the reward is {_reward(history, steps)}"
    return Finding(float(steps), threshold, evidence, advice)


POOL = ("active", "retired", "parked")
RISING = 1.0
"""Standard errors by which a reward must have risen to be no dead one: a slow rise is hope, too."""
PARKED = 0.95
"""Share of parked prompts at which a pool is dead."""


def no_signal(history: History, threshold: float) -> Finding | None:
    """Step after step no group had rewards that differ."""
    steps = math.ceil(threshold)
    recent = history.values("groups/trained")[-steps:]
    if len(recent) < steps or any(value != 0.0 for value in recent):
        return None
    return Finding(
        float(steps),
        threshold,
        f"no group had rewards that differ in the last {steps} steps (the reward is {_reward(history, steps)}): the "
        "weights stayed as they are",
        "prompts of another difficulty, more rollouts_per_example or a higher sampling temperature; the reward may pay "
        "everything, or nothing, alike (`hone audit`)",
    )


def _reward(history: History, steps: int) -> str:
    """The mean reward of the last steps that have one: there may be fewer of them than a window has."""
    known = [value for value in history.values("reward/mean")[-steps:] if not math.isnan(value)]
    return f"{fmean(known):.3f}" if known else "not known"
