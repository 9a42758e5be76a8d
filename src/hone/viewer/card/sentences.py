"""The sentences of a run card: its title, how the run stands, what came of it, and what to be careful about."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hone.evaluation.intervals import Interval
from hone.runs.progress import percent, reward_interval
from hone.runs.summary import KILLED, Summary
from hone.runs.words import standing
from hone.viewer.card.paired import LEAST, Change, Level, odds_words
from hone.viewer.card.sampled import greedy_caveat, how_sampled

if TYPE_CHECKING:
    from hone.viewer.card.facts import Card

FEW = 100
"""An evaluation of fewer examples than this sees only large differences."""
TRUNCATED = 0.1
"""A larger share of completions that were cut off is worth a word."""


def title(run: Summary) -> str:
    """`rl on reverse-text: outputs`"""
    name = run.path.resolve().name
    what = {"rl": "RL", "sft": "SFT", "eval": "Evaluation"}.get(run.kind, run.kind)
    return f"{what} on {run.task}: {name}" if run.task else f"{what}: {name}"


def standing_of(run: Summary) -> str:
    """How the run stands, without its path."""
    return standing(run).removeprefix(f"{run.path}: ")


def verdict(card: Card) -> tuple[list[str], bool | None]:
    """What came of the run, in a few sentences, and whether that is better (True), worse (False) or neither."""
    if card.run.kind == "sft":
        return list(_losses(card)), None
    if card.comparison is None or "reward" not in card.changes:
        return [*_without_comparison(card)], None
    reward = card.changes["reward"]
    lines = [_headline(card, reward)]
    exact = card.changes.get("exact")
    if exact is not None:
        lines.append(_turned(card, exact))
    lines += _skill(card)
    return lines, (reward.difference.mean > 0) if reward.sure else None


def _headline(card: Card, reward: Change) -> str:
    comparison = card.comparison
    assert comparison is not None
    of = counted(reward.count, "held-out example")
    span = f"from version {comparison.first.step} to {comparison.last.step}"
    moved = f"mean reward {reward.before.mean:.3f} → {reward.after.mean:.3f} {span}"
    told = _told(reward.difference)
    sampled = f"; {how}" if (how := how_sampled(card)) else ""
    if not reward.sure:
        few = f"; only {reward.moved} of them changed" if 0 < reward.moved < LEAST < reward.count else ""
        return f"No difference that {of} can show: {moved}, {told}{few}{sampled}."
    word, size = "Better" if reward.difference.mean > 0 else "Worse", abs(reward.difference.mean)
    return f"{word} by {size:.{2 if size >= 0.01 else 3}f} on the same {of}: {moved}, {told}{sampled}."


def _told(difference: Level, share: bool = False) -> str:
    """`+0.534 (95 % interval +0.490 to +0.579)`"""
    same = "" if difference.interval else ", the same for every example"
    return difference_words(difference, share, "95 % interval ") + same


def difference_words(one: Level, share: bool = False, label: str = "", digits: int = 3) -> str:
    """`+0.534 (+0.490 to +0.579)`; of a share in percentage points, `+48.0 points (+41.4 to +54.7)`.

    `digits` are those of fractions; `label` stands before the interval.
    """
    factor, digits = (100.0, digits - 2) if share else (1.0, digits)
    moved, interval = signed(factor * one.mean, digits), one.interval
    unit = "" if not share else " point" if moved in ("+1", "-1") else " points"
    if interval is None:
        return moved + unit
    return f"{moved}{unit} ({label}{signed(factor * interval.low, digits)} to {signed(factor * interval.high, digits)})"


def _turned(card: Card, exact: Change) -> str:
    comparison = card.comparison
    assert comparison is not None
    found, first = comparison.turned, "" if comparison.last.rollouts == 1 else ", by the first completion of each"
    told = _told(exact.difference, share=True)
    text = f"Correct: {_percent(exact.before.mean)} → {_percent(exact.after.mean)}, {told}"
    text += f"; {counted(found.right, 'example')} turned right and {found.wrong:,} wrong{first}"
    return f"{text} (McNemar's exact test: {odds_words(found.p)})."


def _skill(card: Card) -> Iterator[str]:
    """`Of +48 points correct, +35 points is skill and +13 points is format`, and the same of the reward."""
    if not card.gains:
        return
    count = card.gains["strict"].count
    few = "" if len(card.leniency.examples) == card.leniency.asked else f" (of {count:,} examples)"
    for name, lenient, gap in (("reward", "lenient reward", "reward gap"), ("correct", "lenient", "gap")):
        strict = card.gains["strict reward" if name == "reward" else "strict"].difference
        skill, form = card.gains[lenient].difference, negative(card.gains[gap].difference)
        if not any(round(part.mean, 2) for part in (strict, skill, form)):
            continue
        share = name == "correct"
        all_of_it = difference_words(Level(strict.mean, None), share, digits=2)
        of_skill, of_form = (difference_words(part, share, digits=2) for part in (skill, form))
        yield f"Of {all_of_it} {name}{few}, {of_skill} is skill and {of_form} is format."


def negative(one: Level) -> Level:
    """The level of the negative values."""
    interval = one.interval
    return Level(-one.mean, None if interval is None else Interval(-interval.high, -interval.low))


def signed(value: float, digits: int = 2) -> str:
    """`+0.35`; never `-0.00`."""
    return f"{round(value, digits) + 0.0:+.{digits}f}"


def _without_comparison(card: Card) -> Iterator[str]:
    """What a run says that has no two evaluations to compare."""
    if card.measures:
        exact, reward = card.measures.get("exact"), card.measures.get("reward")
        last = card.evaluated[-1]
        count = len(last.by_example)
        of = "" if last.step is None else f" of version {last.step}"
        if reward is not None:
            correct = f", {_level(exact)} correct" if exact is not None else ""
            interval = reward.interval
            span = f" (95 % interval {interval.low:.3f} to {interval.high:.3f})" if interval else ""
            sampled = f"; {how}" if (how := how_sampled(card)) else ""
            yield f"Mean reward {reward.mean:.3f}{span}{correct}, on {counted(count, 'held-out example')}{of}{sampled}."
        if card.readings and exact is not None:
            lenient, gap = card.readings["lenient"], card.readings["gap"]
            yield f"Read leniently {_level(lenient)} are right: {_percent(gap.mean)} of all lose only by their form."
    if card.run.kind == "eval":
        return
    if card.env is not None and not card.evaluated:
        yield from _recorded_levels(card)
        return
    rewards = [line["reward/mean"] for line in card.lines if isinstance(line.get("reward/mean"), int | float)]
    if not card.measures and rewards:
        size = max(1, min(10, len(rewards) // 2))
        first, last = sum(rewards[:size]) / size, sum(rewards[-size:]) / size
        yield (
            f"Training reward {first:.3f} → {last:.3f} (means of the first and last {size} steps), on training prompts "
            "that differ from step to step: whether it got better on others was not measured."
        )
    if not card.measures:
        yield "No evaluation was recorded: --orchestrator.eval.interval 25 adds them, before training and at its end."
    elif card.incomparable is not None:
        first = f"The evaluation of version {card.incomparable}"
        yield f"{first} has no graded example in common with it, so it is not compared."
    else:
        yield "There is one evaluation only, so nothing to compare it with."


def _recorded_levels(card: Card) -> Iterator[str]:
    """Of a run whose evaluations left their numbers but no samples."""
    name = f"eval/{card.env}"
    lines = [line for line in card.lines if isinstance(line.get(f"{name}/reward/mean"), int | float)]
    told = []
    for line in (lines[0], lines[-1]):
        interval = reward_interval(line, card.env or "")
        span = f" ({interval[0]:.3f} to {interval[1]:.3f})" if interval else ""
        told.append(f"{line[f'{name}/reward/mean']:.3f}{span} at version {line['step']}")
    label = ", in brackets 95 % intervals" if any("(" in one for one in told) else ""
    yield f"Held-out mean reward {' → '.join(told)}{label}."
    lost = f"in {' and '.join(card.unread)} can't be read (see below)" if card.unread else "are not there"
    yield f"The samples of its evaluations {lost}, so they are not compared example by example."


def _losses(card: Card) -> Iterator[str]:
    from hone.viewer.card.tables import loss_rows

    for label, first, last, change in loss_rows(card):
        yield f"{label[0].upper()}{label[1:]}: {first} → {last} nats per token ({change})."
    if not any("val/loss" in line for line in card.lines):
        yield "Nothing was held out: --val.interval 50 measures a validation loss."


def caveats(card: Card) -> list[str]:
    """What keeps the numbers from meaning more than they do."""
    return [*_of_the_run(card), *_of_the_evaluation(card)]


def _of_the_run(card: Card) -> Iterator[str]:
    run, info = card.run, card.run.info
    if run.kind == "eval":
        return
    if run.status in ("running", "paused", KILLED, "failed", "interrupted", "copying"):
        yield f"The run is not at its end: {standing_of(run)}. This card is of what is there."
    elif run.status in ("stopped", "budget"):
        yield f"The run ended before its last step: {standing_of(run)}."
    if not info.get("exact", True):
        yield "The run is not exact: another one of the same config may give other numbers."
    standing_alarms = [alarm.name for alarm in card.alarms if alarm.over is None]
    if standing_alarms:
        yield f"Alarms that stand at the end: {', '.join(dict.fromkeys(standing_alarms))}."
    if (git := info.get("git")) and git["dirty"]:
        yield "The code had changes that are in no revision."
    if info.get("git") and (files := info.get("untracked")):
        yield f"Git does not track {' and '.join(files)}: no revision has that."
    if info.get("drift"):
        yield "It was resumed with other settings, or another task, than it began with."
    overlaps = [event for event in card.events if event.get("kind") == "overlap" and not event.get("dropped")]
    for event in overlaps[:1]:
        yield (
            f"Of {event['checked']:,} training prompts, {event['rows']:,} are held-out ones too: evaluation looks "
            "better than it is."
        )
    yield f"This is one seed ({info['seed']}): another may end elsewhere. Runs with --seed say how far."


def _of_the_evaluation(card: Card) -> Iterator[str]:
    if not card.evaluated:
        return
    last = card.evaluated[-1]
    count = len(last.by_example)
    change = card.changes.get("reward")
    if count < FEW:
        interval = change.difference.interval if change else None
        small = "" if interval else "small "
        half = f" below about {(interval.high - interval.low) / 2:.2f}" if interval else ""
        few = counted(count, "example")
        yield f"The evaluation has only {few}: {small}differences{half} can't be seen with so few."
    if last.truncated > TRUNCATED:
        yield f"{_percent(last.truncated)} of the evaluated completions were cut off by the length limit."
    if last.ungraded:
        yield f"{last.ungraded:,} of {len(last.rows):,} evaluated completions could not be graded, and are left out."
    if greedy := greedy_caveat(card):
        yield greedy
    comparison = card.comparison
    if comparison is not None:
        if comparison.apart:
            apart = counted(comparison.apart, "example")
            yield f"{apart} could not be compared (not the same in both evaluations, or not graded in both)."
        if comparison.first.step:
            yield f"Before means version {comparison.first.step}: no evaluation of the initial model is there."
    done = card.run.progress.done
    if card.run.kind == "rl" and last.step is not None and last.step < done:
        yield f"The last evaluation is of version {last.step}, and the run has come to {done}."
    reading = card.leniency
    if not reading.why_not and len(reading.examples) < reading.asked:
        read = f"{len(reading.examples):,} of {reading.asked:,} examples"
        yield f"{read}, chosen by chance, were read leniently: the others were left out to save time."


def counted(count: int, what: str) -> str:
    """`1 example`, `1,024 examples`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _percent(value: float) -> str:
    return percent(value)


def _level(one: Level | None) -> str:
    if one is None:
        return "–"
    interval = one.interval
    return _percent(one.mean) + (f" ({_percent(interval.low)} to {_percent(interval.high)})" if interval else "")
