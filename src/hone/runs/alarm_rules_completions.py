"""Rules on what completions are and earn: not parsed, wrong, cut, alike, paid for something else, not graded."""

from __future__ import annotations

import math
from statistics import fmean

from hone.runs.alarm_finding import SOLVED, Finding
from hone.runs.history import History, differ
from hone.runs.progress import percent

GROWN = 1.2
"""Completions that are so many times as long as when the reward was best have grown."""


def falling_reward(history: History, threshold: float) -> Finding | None:
    """The reward fell from its best by a share of it, while completions grew."""
    best_at = history.highest("reward/mean")
    best, now = history.at("reward/mean", best_at), history.now("reward/mean")
    length, longer = history.at("completion/length/mean", best_at), history.now("completion/length/mean")
    if not (best and now and length and longer) or best.mean <= 0:
        return None
    fall = (best.mean - now.mean) / best.mean
    if fall < threshold or not differ(best, now) or longer.mean < GROWN * length.mean:
        return None
    return Finding(
        fall,
        threshold,
        f"the reward fell from {best.mean:.3f} (at step {history.steps[best_at]}) to {now.mean:.3f}, while completions "
        f"grew from {length.mean:.0f} to {longer.mean:.0f} tokens",
        "grade the recorded completions with a more lenient parser (`hone regrade`): if they score well there, the "
        "parser loses the answers; else lower trainer.optim.lr and go on from the checkpoint before the fall",
    )


def unparsable(history: History, threshold: float) -> Finding | None:
    """Answers are no longer found, in more completions than there are now wrong ones."""
    lowest = history.lowest("outcome/unparsable")
    then, now = history.at("outcome/unparsable", lowest), history.now("outcome/unparsable")
    if not (then and now) or now.mean - then.mean < threshold or not differ(then, now):
        return None
    if history.now("outcome/wrong").mean - history.at("outcome/wrong", lowest).mean > now.mean - then.mean:
        return None
    return Finding(
        now.mean - then.mean,
        threshold,
        f"the parser finds no answer in {percent(now.mean)} of the completions ({percent(then.mean)} at step "
        f"{history.steps[lowest]}); wrong answers went from {_share(history, 'outcome/wrong', lowest)}",
        "read some in rollouts/ and try the parser on them (`hone regrade`): either the format is unlearned (reward "
        "it) or the parser is too narrow (mend it)",
    )


def wrong(history: History, threshold: float) -> Finding | None:
    """Fewer completions are correct, and it is for their answers, not for their form."""
    best_at = history.highest("outcome/correct")
    best, now = history.at("outcome/correct", best_at), history.now("outcome/correct")
    if not (best and now) or best.mean - now.mean < threshold or not differ(best, now):
        return None
    risen = {
        name: history.now(f"outcome/{name}").mean - history.at(f"outcome/{name}", best_at).mean
        for name in ("wrong", "unparsable", "truncated")
    }
    if max(risen, key=lambda name: risen[name]) != "wrong":
        return None
    return Finding(
        best.mean - now.mean,
        threshold,
        f"correct completions fell from {percent(best.mean)} (at step {history.steps[best_at]}) to "
        f"{percent(now.mean)}, wrong ones went from {_share(history, 'outcome/wrong', best_at)}, while the parser "
        "still reads them",
        "the skill is being lost: lower trainer.optim.lr, or set trainer.loss.kl_coef, and go on from the checkpoint "
        "before it",
    )


def component(history: History, threshold: float) -> Finding | None:
    """A component of the reward earns more than before, with correctness where it was or lower.

    Its gain is its rise times its share of the weights. What is the reward itself, or decides what is correct, may rise
    for long before a completion is wholly correct: there only a fall counts.
    """
    total = sum(map(abs, history.weights.values())) or 1.0
    for name, weight in history.weights.items():
        metric = f"reward/{name}/mean"
        for then in _origins(history, metric):
            before, now = history.at(metric, then), history.now(metric)
            gain = weight / total * (now.mean - before.mean)
            if not gain > threshold or not differ(before, now):
                continue
            correct, correct_now = history.at("outcome/correct", then), history.now("outcome/correct")
            fell = correct_now.mean < correct.mean and differ(correct, correct_now)
            is_task = name == history.correctness or abs(weight) == total
            if not fell and (is_task or not _is_flat(history, then, gain)):
                continue
            return Finding(
                gain,
                threshold,
                f"component {name} went from {before.mean:.2f} to {now.mean:.2f} (times its weight {weight:g}) since "
                f"step {history.steps[then]}, while correct completions went from {percent(correct.mean)} to "
                f"{percent(correct_now.mean)}",
                f"the policy learns {name} in place of the task: lower its weight, cap it, or pay it only with a right "
                "answer (`hone audit` shows what it can be had for)",
            )
    return None


FLAT = 0.1
"""Correctness that rose by less than this share of itself, and of the component's gain, is flat."""
PATIENCE = 3
"""Windows for which correctness must be flat: partial credit, and the form of an answer, rise before it does."""


def _is_flat(history: History, then: int, gain: float) -> bool:
    """Whether correctness has not risen since the step of index `then`, and that is long ago."""
    correct, now = history.at("outcome/correct", then), history.now("outcome/correct")
    long_ago = len(history) - 1 - then >= PATIENCE * history.window
    return long_ago and now.mean - correct.mean <= FLAT * min(gain, correct.mean) and now.mean < SOLVED


def _origins(history: History, metric: str) -> list[int]:
    """Where a component's gain may be counted from: its lowest window, and some windows ago."""
    ago = len(history) - 1 - 5 * history.window
    return [index for index in (history.lowest(metric), ago) if index >= 0]


def truncation(history: History, threshold: float) -> Finding | None:
    """Completions hit the length limit."""
    now, first = history.now("completion/truncated"), history.first("completion/truncated")
    if not now or now.mean < threshold:
        return None
    return Finding(
        now.mean,
        threshold,
        f"{percent(now.mean)} of the completions were cut at the length limit over the last {history.window} steps "
        f"({percent(first.mean)} at the beginning)",
        "raise orchestrator.sampling.max_tokens (and seq_len); with orchestrator.truncated = mask they are not learned "
        "from",
    )


def identical(history: History, threshold: float) -> Finding | None:
    """The same text is given for different prompts, or again and again for one, and it is rarely right."""
    correct = history.now("outcome/correct")
    for metric, where in (("completion/identical", "another prompt's"), ("completion/repeated", "an earlier one's")):
        now, first = history.now(metric), history.first(metric)
        if not (now and first) or now.mean < threshold or not differ(first, now):
            continue
        if now.mean - first.mean < RISEN or correct.mean >= now.mean / 2:
            continue
        return Finding(
            now.mean,
            threshold,
            f"{percent(now.mean)} of the completions are the same as {where} ({percent(first.mean)} at the beginning), "
            f"and {percent(correct.mean)} are correct",
            "read some in rollouts/: a text that pays whatever is asked is a hack of the reward (`hone audit`); else "
            "the policy has collapsed: lower trainer.optim.lr and go on from an earlier checkpoint",
        )
    return None


RISEN = 0.2
"""By how much the share of identical completions must have risen: some tasks have few answers from the beginning."""


def grader(history: History, threshold: float) -> Finding | None:
    """Reward functions fail. At the beginning, steps of the window that are still to come count as free of failures."""
    kinds = ("grader_error", "grader_timeout")
    recent = [[_known(value) for value in history.values(f"outcome/{kind}")[-history.window :]] for kind in kinds]
    if not sum(map(sum, recent)) / history.window >= threshold:
        return None
    errors, timeouts = map(fmean, recent)
    latest = sum(one[-1] for one in recent)
    return Finding(
        errors + timeouts,
        threshold,
        f"{percent(errors + timeouts)} of the completions of the last {len(recent[0])} steps could not be graded "
        f"({percent(errors)} errors and {percent(timeouts)} timeouts; {percent(latest)} at this step); "
        "they are in no mean and no loss",
        "the causes stand in rollouts/ (column detail) and in logs/; run `hone audit` on the task",
    )


def _known(value: float) -> float:
    return 0.0 if math.isnan(value) else value


def _share(history: History, name: str, index: int) -> str:
    return f"{percent(history.at(name, index).mean)} to {percent(history.now(name).mean)}"
