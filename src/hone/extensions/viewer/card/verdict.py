"""The verdict on a run at the top of its card, and caveats."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hone.extensions.viewer.card.measures import LEAST, Comparison, Level, mcnemar
from hone.extensions.viewer.card.tables import difference_words, level_words
from hone.runs.progress import percent
from hone.runs.summary import KILLED

if TYPE_CHECKING:
    from hone.extensions.viewer.card.facts import Card

INTERVAL = "95 % interval "
TRUNCATED = 0.1
"""If a larger share of completions is truncated, a caveat says so."""


def verdict(card: Card) -> list[str]:
    if card.run.kind == "sft":
        return list(_losses(card))
    if card.comparison and card.compared:
        return [*_change(card, card.comparison), *(_skill(card) if card.lenient else [])]
    return list(_level(card) if card.measures else _recorded(card))


def _losses(card: Card) -> Iterator[str]:
    for name, label, many in (("loss", "Training loss", 10), ("val/loss", "Validation loss", 1)):
        values = [line[name] for line in card.lines if line.get(name) is not None]
        if size := min(many, len(values) // 2):
            first, last = sum(values[:size]) / size, sum(values[-size:]) / size
            steps = f", mean of {size} steps" if size > 1 else ""
            yield f"{label}{steps}: {first:.4f} → {last:.4f} nats per token ({last - first:+.4f})."
    if not any("val/loss" in line for line in card.lines):
        yield "Nothing was held out: --val.interval 50 measures a validation loss."


def _change(card: Card, found: Comparison) -> Iterator[str]:
    reward, correct = found.measures["reward"], found.measures["correct"]
    examples = counted(reward.examples, "held-out example")
    found_out = f"No difference that {examples} can show"
    if 0 < reward.moved < LEAST:
        found_out = f"Too few examples changed to tell ({reward.moved} of {examples})"
    if reward.sure:
        found_out = f"{'Better' if reward.difference.mean > 0 else 'Worse'} on the same {examples}"
    yield (
        f"{found_out}: mean reward {reward.before.mean:.3f} → {reward.after.mean:.3f} from version "
        f"{card.evaluated[0].step} to {card.evaluated[1].step}, {difference_words(reward.difference, label=INTERVAL)}."
    )
    first = "" if card.evaluated[-1].rollouts == 1 else ", by the first completion of each"
    points = difference_words(correct.difference, True, INTERVAL)
    yield (
        f"Correct: {percent(correct.before.mean)} → {percent(correct.after.mean)}, {points}; "
        f"{counted(found.right, 'example')} turned right and {found.wrong:,} wrong{first} "
        f"(McNemar's exact test: p = {mcnemar(found.right, found.wrong):.2g})."
    )


def _skill(card: Card) -> Iterator[str]:
    """Yield a sentence such as `Of +0.53 reward, +0.32 (+0.29 to +0.35) is skill and +0.21 (…) is format`."""
    skill, gap = (card.lenient[name].difference for name in ("lenient reward", "reward gap"))
    format = Level(-gap.mean, gap.high and -gap.high, gap.low and -gap.low)
    parts = f"{difference_words(skill, digits=2)} is skill and {difference_words(format, digits=2)} is format"
    yield f"Of {skill.mean - gap.mean:+.2f} reward, {parts}."


def _level(card: Card) -> Iterator[str]:
    last, reward, correct = card.evaluated[-1], card.measures["reward"].after, card.measures["correct"].after
    of_training = "profile" in card.run.config
    examples = counted(len(last.by_example), "training example" if of_training else "held-out example")
    yield f"Mean reward {level_words(reward, False)}, {level_words(correct, True)} correct, on {examples}."
    if card.lenient:
        right, lost = level_words(card.lenient["lenient"].after, True), percent(card.lenient["gap"].after.mean)
        yield f"Read leniently, {right} are right: {lost} fail only by their form."
    if last.step is not None:
        yield f"This is version {last.step}; no other evaluation has the same examples to compare."


def _recorded(card: Card) -> Iterator[str]:
    name = f"eval/{card.env}/reward/mean" if card.env else "reward/mean"
    known = [line[name] for line in card.lines if line.get(name) is not None]
    if known:
        yield f"{'Held-out' if card.env else 'Training'} mean reward: {known[0]:.3f} → {known[-1]:.3f}."
    if card.run.kind == "rl" and not card.env:
        yield "No evaluation was recorded: --orchestrator.eval.interval 25 adds them, before training and at its end."


def caveats(card: Card) -> list[str]:
    about_run = [] if card.run.kind == "eval" else _about_run(card)
    return [*about_run, *(_about_evaluation(card) if card.evaluated else []), *card.run.damage]


def _about_run(card: Card) -> Iterator[str]:
    run, info = card.run, card.run.info
    if run.status in ("running", "paused", KILLED, "failed", "interrupted", "copying"):
        yield f"The run has not ended: {card.status}. This card shows the results so far."
    elif run.status in ("stopped", "budget"):
        yield f"The run ended before its last step: {card.status}."
    if not info.get("exact", True):
        yield "The run is not reproducible: another run of the same config may give other numbers."
    if raised := [alarm.name for alarm in run.alarms]:
        yield f"Alarms at the end: {', '.join(dict.fromkeys(raised))}."
    if (git := info.get("git")) and git["dirty"]:
        yield "The code had uncommitted changes."
    if info.get("drift"):
        yield "The run was resumed with other settings or another task."
    for event in [event for event in card.events if event.get("kind") == "overlap" and not event.get("dropped")][:1]:
        checked, rows = event["checked"], event["rows"]
        yield f"Of {checked:,} training prompts, {rows:,} are also held out: results look better than they are."
    yield f"This is one seed ({info['seed']}). Rerun with other seeds (--seed) to see the spread."


def _about_evaluation(card: Card) -> Iterator[str]:
    last, reading = card.evaluated[-1], card.leniency
    truncated = sum(row["stop_reason"] == "length" for row in last.rows) / max(1, len(last.rows))
    if truncated > TRUNCATED:
        yield f"{percent(truncated)} of the evaluated completions were cut off by the length limit."
    if ungraded := len(last.rows) - sum(map(len, last.by_example.values())):
        yield f"{ungraded:,} of {len(last.rows):,} evaluated completions could not be graded, and are left out."
    if card.comparison and card.compared and card.comparison.apart:
        apart = counted(card.comparison.apart, "example")
        yield f"{apart} could not be compared (not the same in both evaluations, or not graded in both)."
    if len(reading.examples) < reading.asked:
        read = f"{len(reading.examples):,} of {reading.asked:,} examples"
        yield f"{read}, chosen at random, were read leniently: the rest was left out to save time."


def counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
