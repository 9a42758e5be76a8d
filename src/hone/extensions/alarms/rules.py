"""The rules of the alarms, and their remedies.

A rule gets the history of the steps and its threshold. It returns the value at the last step and the evidence in words,
or None for no alarm. Means are over windows of steps; a rise or a fall counts only if it also exceeds the scatter of
the steps (`SIGMAS`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, median

from hone.extensions.alarms.history import History, Window, differ
from hone.runs.observer import Finding
from hone.runs.progress import percent

SOLVED = 0.9
"""If this share of completions is correct, low entropy and flat correctness raise no alarm."""
GROWN = 1.2
"""Completions have grown if they are this many times as long as at the best reward."""
FLAT, PATIENCE = 0.1, 3
"""Correctness is flat if, in at least PATIENCE windows, it rose by at most FLAT x min(its start, a component's gain).
PATIENCE is needed because partial credit and format rise before correctness."""
RISEN = 0.2
"""Minimum rise of the share of identical completions, because some tasks have few answers from the start."""
LASTING = 3
"""Number of consecutive large gradients that raise the alarm; one very large one is enough."""
RISING = 1.0
"""A pool is not dead if the reward rises by more than this many standard errors."""
PARKED = 0.95
"""A pool is dead if this share of its prompts is parked."""

Measured = tuple[float, str] | tuple[float, str, float] | None
"""The value that passed the threshold, the evidence in words, and the threshold if the rule sets it."""


@dataclass(frozen=True)
class Rule:
    measure: Callable[[History, float], Measured]
    advice: str

    def __call__(self, history: History, threshold: float) -> Finding | None:
        if (measured := self.measure(history, threshold)) is None:
            return None
        value, evidence, *custom = measured
        return Finding(value, custom[0] if custom else threshold, evidence, self.advice)


def _level(metric: str, text: str) -> Callable[[History, float], Measured]:
    """Return a rule that finds means above the threshold. `text` may contain {now}, {share}, {first} and {steps}."""

    def measure(history: History, threshold: float) -> Measured:
        now, first = history.now(metric), history.first(metric)
        if not now or now.mean < threshold:
            return None
        numbers = {"now": f"{now.mean:.3g}", "share": percent(now.mean), "first": percent(first.mean)}
        return now.mean, text.format(**numbers, steps=history.window)

    return measure


def _zero_std(history: History, threshold: float) -> Measured:
    if history.now("teacher/kl"):
        return None  # a teacher teaches something of any completion
    text = (
        "{share} of the groups had one and the same reward over the last {steps} steps ({first} at the beginning), "
        "so their rewards taught nothing"
    )
    return _level("frac_reward_zero_std", text)(history, threshold)


def _change(history: History, metric: str, index: int, threshold: float) -> tuple[Window, Window] | None:
    """Return a metric's windows at `index` and at the last step if they differ by the threshold and beyond scatter."""
    then, now = history.at(metric, index), history.now(metric)
    if not (then and now) or abs(now.mean - then.mean) < threshold or not differ(then, now):
        return None
    return then, now


def _gain(history: History, metric: str, index: int) -> float:
    return history.now(metric).mean - history.at(metric, index).mean


def _wrong_went(history: History, index: int) -> str:
    return f"{percent(history.at('outcome/wrong', index).mean)} to {percent(history.now('outcome/wrong').mean)}"


def _falling_reward(history: History, threshold: float) -> Measured:
    best_at = history.series("reward/mean").highest
    best, now = history.at("reward/mean", best_at), history.now("reward/mean")
    length, longer = history.at("completion/length/mean", best_at), history.now("completion/length/mean")
    if not (best and now and length and longer) or best.mean <= 0:
        return None
    fall = (best.mean - now.mean) / best.mean
    if fall < threshold or not differ(best, now) or longer.mean < GROWN * length.mean:
        return None
    return fall, (
        f"the reward fell from {best.mean:.3f} (at step {history.steps[best_at]}) to {now.mean:.3f}, while completions "
        f"grew from {length.mean:.0f} to {longer.mean:.0f} tokens"
    )


def _unparsable(history: History, threshold: float) -> Measured:
    """Look for a rise of unparsable answers that is at least as large as the rise of wrong answers."""
    lowest = history.series("outcome/unparsable").lowest
    if not (change := _change(history, "outcome/unparsable", lowest, threshold)):
        return None
    then, now = change
    if _gain(history, "outcome/wrong", lowest) > now.mean - then.mean:
        return None
    return now.mean - then.mean, (
        f"the parser finds no answer in {percent(now.mean)} of the completions ({percent(then.mean)} at step "
        f"{history.steps[lowest]}); wrong answers went from {_wrong_went(history, lowest)}"
    )


def _wrong(history: History, threshold: float) -> Measured:
    best_at = history.series("outcome/correct").highest
    if not (change := _change(history, "outcome/correct", best_at, threshold)):
        return None
    best, now = change
    risen = {name: _gain(history, f"outcome/{name}", best_at) for name in ("wrong", "unparsable", "truncated")}
    if max(risen, key=lambda name: risen[name]) != "wrong":
        return None
    return best.mean - now.mean, (
        f"correct completions fell from {percent(best.mean)} (at step {history.steps[best_at]}) to "
        f"{percent(now.mean)}, wrong ones went from {_wrong_went(history, best_at)}, while the parser still reads them"
    )


def _component(history: History, threshold: float) -> Measured:
    """Look for a component of the reward that earns more than before, while correctness is flat or falls.

    Its gain is the rise since the lowest window, or in five windows, times the component's share of the weights. The
    component that decides correctness may rise long before completions are correct: for it, correctness must fall.
    """
    total = sum(map(abs, history.weights.values())) or 1.0
    for name, weight in history.weights.items():
        metric = f"reward/{name}/mean"
        for then in (history.series(metric).lowest, len(history) - 1 - 5 * history.window):
            before, now = history.at(metric, then), history.now(metric)
            gain = weight / total * (now.mean - before.mean)
            if not gain > threshold or not differ(before, now):
                continue
            correct, correct_now = history.at("outcome/correct", then), history.now("outcome/correct")
            fell = correct_now.mean < correct.mean and differ(correct, correct_now)
            long_ago = len(history) - 1 - then >= PATIENCE * history.window
            flat = correct_now.mean - correct.mean <= FLAT * min(gain, correct.mean) and correct_now.mean < SOLVED
            is_task = name == history.info.get("correctness") or abs(weight) == total
            if fell or (not is_task and long_ago and flat):
                return gain, (
                    f"component {name} went from {before.mean:.2f} to {now.mean:.2f} (times its weight {weight:g}) "
                    f"since step {history.steps[then]}, while correct completions went from {percent(correct.mean)} to "
                    f"{percent(correct_now.mean)}"
                )
    return None


def _identical(history: History, threshold: float) -> Measured:
    correct = history.now("outcome/correct")
    for metric, whose in (("completion/identical", "another prompt's"), ("completion/repeated", "an earlier one's")):
        now, first = history.now(metric), history.first(metric)
        if not (now and first) or now.mean < threshold or not differ(first, now):
            continue
        if now.mean - first.mean < RISEN or correct.mean >= now.mean / 2:
            continue
        return now.mean, (
            f"{percent(now.mean)} of the completions are the same as {whose} ({percent(first.mean)} at the beginning), "
            f"and {percent(correct.mean)} are correct"
        )
    return None


def _grader(history: History, threshold: float) -> Measured:
    """Look for failing reward functions. Until a window is full, missing steps count as successes."""
    kinds = ("grader_error", "grader_timeout")
    recent = [history.values(f"outcome/{kind}")[-history.window :] for kind in kinds]
    recent = [[0.0 if math.isnan(value) else value for value in values] for values in recent]
    if not sum(map(sum, recent)) / history.window >= threshold:
        return None
    errors, timeouts = map(fmean, recent)
    latest = sum(one[-1] for one in recent)
    return errors + timeouts, (
        f"{percent(errors + timeouts)} of the completions of the last {len(recent[0])} steps could not be graded "
        f"({percent(errors)} errors and {percent(timeouts)} timeouts; {percent(latest)} at this step); "
        "they are in no mean and no loss"
    )


def _entropy_collapse(history: History, threshold: float) -> Measured:
    """Look for a policy that is nearly deterministic before the task is solved. Not for SFT: it does not explore."""
    now, first, correct = history.now("entropy"), history.first("entropy"), history.now("outcome/correct")
    if not (now and first and correct) or correct.mean >= SOLVED:
        return None
    if now.mean > threshold * first.mean or not first.mean > 0:
        return None
    return now.mean / first.mean, (
        f"the entropy fell from {first.mean:.3g} to {now.mean:.3g} nats a token with {percent(correct.mean)} of the "
        "completions correct: nothing new is tried"
    )


def _entropy_blowup(history: History, threshold: float) -> Measured:
    lowest = history.series("entropy").lowest
    if not (change := _change(history, "entropy", lowest, threshold)):
        return None
    then, now = change
    return now.mean - then.mean, (
        f"the entropy rose from {then.mean:.3g} (at step {history.steps[lowest]}) to {now.mean:.3g} nats a token"
    )


def _grad_spike(history: History, threshold: float) -> Measured:
    if "grad_norm" in history.not_finite:  # it is missing where a step had nothing to train on
        return math.inf, "the gradient was not finite, and the update was left out"
    known = [value for value in history.values("grad_norm")[-1 - 2 * history.window :] if value > 0]
    norm, before = history.latest("grad_norm"), known[:-1]
    if len(before) < history.window or not norm > 0:
        return None
    typical, lasting = median(before), min(known[-LASTING:])
    if not (norm >= threshold * max(before) or lasting >= threshold * typical):
        return None
    return norm / typical, (
        f"the gradient's norm is {norm:.3g}; in the {len(before)} steps before it was {typical:.3g} (median) and "
        f"{max(before):.3g} at most"
    )


def _pool(history: History) -> tuple[float, float, float]:
    active, retired, parked = (history.latest(f"pool/{name}") for name in ("active", "retired", "parked"))
    return retired, parked, active + retired + parked


def _solved_pool(history: History, threshold: float) -> Measured:
    correct = history.now("outcome/correct")
    retired, _, total = _pool(history)
    if total > 0 and retired / total >= threshold:
        return retired / total, f"{retired:,.0f} of {total:,.0f} prompts are retired as solved"
    if correct and correct.mean >= threshold:
        share = percent(correct.mean)
        return correct.mean, f"{share} of the completions were correct over the last {history.window} steps"
    return None


def _dead_pool(history: History, threshold: float) -> Measured:
    steps = math.ceil(threshold)
    _, parked, total = _pool(history)
    if total > 0 and parked / total >= PARKED:
        return parked / total, f"{parked:,.0f} of {total:,.0f} prompts are parked as unsolved", PARKED
    correct = history.values("outcome/correct")
    if len(correct) < steps or any(value != 0.0 for value in correct[-steps:]):
        return None
    first = next((i for i in range(len(correct), 0, -1) if correct[i - 1] != 0.0), 0)
    then, now = history.at("reward/mean", first + history.window - 1), history.now("reward/mean")
    if now.mean > then.mean and differ(then, now, RISING):
        return None
    reward = _reward(history, steps)
    return float(steps), f"not one completion was correct in the last {steps} steps, and the reward is {reward}"


def _no_signal(history: History, threshold: float) -> Measured:
    steps = math.ceil(threshold)
    recent = history.values("groups/trained")[-steps:]
    if len(recent) < steps or any(value != 0.0 for value in recent):
        return None
    cut = [value for value in history.values("completion/truncated")[-steps:] if not math.isnan(value)]
    share = f", {percent(fmean(cut))} of the completions were cut off at the length limit" if cut and any(cut) else ""
    return float(steps), (
        f"no group was trained on in the last {steps} steps (the reward is {_reward(history, steps)}{share}): the "
        "weights stayed as they are"
    )


def _reward(history: History, steps: int) -> str:
    known = [value for value in history.values("reward/mean")[-steps:] if not math.isnan(value)]
    return f"{fmean(known):.3f}" if known else "not known"


RULES = {
    "falling_reward": Rule(
        _falling_reward,
        "grade the recorded completions with a more lenient parser (`hone regrade`): if they score well there, the "
        "parser loses the answers; else lower trainer.optim.lr and go on from the checkpoint before the fall",
    ),
    "zero_std": Rule(
        _zero_std,
        "harder or easier prompts (orchestrator.curriculum.order = difficulty, curriculum.pool), or more "
        "rollouts_per_example",
    ),
    "unparsable": Rule(
        _unparsable,
        "read some in rollouts/ and try the parser on them (`hone regrade`): either the format is unlearned (reward "
        "it) or the parser is too narrow (widen it)",
    ),
    "wrong": Rule(
        _wrong,
        "the skill is being lost: lower trainer.optim.lr, or set trainer.loss.kl_coef, and go on from the checkpoint "
        "before it",
    ),
    "component": Rule(
        _component,
        "the policy learns it instead of the task: lower its weight, cap it, or pay it only with a right answer "
        "(`hone audit` shows what it can be had for)",
    ),
    "truncation": Rule(
        _level(
            "completion/truncated",
            "{share} of the completions were cut at the length limit over the last {steps} steps ({first} at the "
            "beginning)",
        ),
        "raise orchestrator.sampling.max_tokens (and seq_len); with orchestrator.truncated = mask they are not learned "
        "from",
    ),
    "entropy_collapse": Rule(
        _entropy_collapse,
        "lower trainer.optim.lr, raise trainer.loss.eps_high, or go on from an earlier checkpoint",
    ),
    "entropy_blowup": Rule(
        _entropy_blowup,
        "lower the learning rate, check that the reward (in RL) still pays for right answers, and go on from an "
        "earlier checkpoint",
    ),
    "kl": Rule(
        _level("kl", "the KL to the initial policy is {now} nats a token over the last {steps} steps"),
        "raise trainer.loss.kl_coef or lower trainer.optim.lr; if the held-out reward still rises, raise "
        "alarms.kl.threshold",
    ),
    "ratio": Rule(
        _level("clipped", "the importance ratio of {share} of the tokens was clipped over the last {steps} steps"),
        "lower orchestrator.max_async_level or trainer.optim.lr; look at logprob_gap/mean, which says whether sampler "
        "and trainer agree",
    ),
    "grad_spike": Rule(
        _grad_spike,
        "it was clipped to optim.max_norm; if it comes again, lower the learning rate (precision = fp32 if it was not "
        "finite), and read this step's rollouts",
    ),
    "identical": Rule(
        _identical,
        "read some in rollouts/: a text that pays whatever is asked is a hack of the reward (`hone audit`); else "
        "the policy has collapsed: lower trainer.optim.lr and go on from an earlier checkpoint",
    ),
    "grader": Rule(
        _grader,
        "the causes stand in rollouts/ (column detail) and in logs/; run `hone audit` on the task",
    ),
    "solved_pool": Rule(
        _solved_pool,
        "stop here and evaluate (`hone eval`), or go on with harder prompts",
    ),
    "dead_pool": Rule(
        _dead_pool,
        "easier prompts, more SFT first, or a stronger model; check with `hone audit` that a right answer is paid",
    ),
    "no_signal": Rule(
        _no_signal,
        "if completions are cut off, raise orchestrator.sampling.max_tokens; else prompts of another difficulty, more "
        "rollouts_per_example or a higher sampling temperature; the reward may pay everything, or nothing, alike "
        "(`hone audit`)",
    ),
}
"""Rules by alarm; alarms without a rule are in `watch.WITHOUT_RULE`."""
