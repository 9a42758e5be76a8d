"""The sentences of a run card: its title, how the run stands, what came of it, and what to be careful about."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hone.evaluation.intervals import Interval
from hone.runs import Run
from hone.runs.progress import percent, reward_interval
from hone.runs.summary import KILLED, Summary, evaluation, status_text
from hone.viewer.card.paired import LEAST, Change, Level, odds_words

if TYPE_CHECKING:
    from hone.viewer.card.facts import Card

FEW = 100
"""An evaluation of fewer examples than this sees only large differences."""
TRUNCATED = 0.1
"""A larger share of completions that were cut off is worth a word."""
TINY = "hone/tiny"
"""The model that is made from a run's seed: `hone eval` would make another."""


def title(run: Summary) -> str:
    """Return what the card is of: `RL on reverse-text: outputs`."""
    name = run.path.resolve().name
    what = {"rl": "RL", "sft": "SFT", "eval": "Evaluation"}.get(run.kind, run.kind)
    return f"{what} on {run.task}: {name}" if run.task else f"{what}: {name}"


def status(run: Summary) -> str:
    """Return how the run stands, without its path."""
    return status_text(run).removeprefix(f"{run.path}: ")


def verdict(card: Card) -> tuple[list[str], bool | None]:
    """Return what came of the run, in a few sentences, and if that is better (True), worse (False) or neither."""
    if card.run.kind == "sft":
        return list(_losses(card)), None
    reward, exact = card.changes.get("reward"), card.changes.get("exact")
    if reward is None or exact is None:
        return [*_without_comparison(card)], None
    lines = [_headline(card, reward), _turned(card, exact), *_skill(card)]
    return lines, (reward.difference.mean > 0) if reward.sure else None


def _headline(card: Card, reward: Change) -> str:
    comparison, mean = card.comparison, reward.difference.mean
    assert comparison is not None
    examples = counted(reward.count, "held-out example")
    span = f"from version {comparison.first.step} to {comparison.last.step}"
    moved = (
        f"mean reward {reward.before.mean:.3f} → {reward.after.mean:.3f} {span}, {_with_interval(reward.difference)}"
    )
    if not reward.sure:
        few = f"; only {reward.moved} of them changed" if 0 < reward.moved < LEAST < reward.count else ""
        return f"No difference that {examples} can show: {moved}{few}{_how_sampled(card)}."
    size = f"{abs(mean):.{2 if abs(mean) >= 0.01 else 3}f}"
    return f"{'Better' if mean > 0 else 'Worse'} by {size} on the same {examples}: {moved}{_how_sampled(card)}."


def _with_interval(difference: Level, share: bool = False) -> str:
    """Return `+0.534 (95 % interval +0.490 to +0.579)`."""
    same = "" if difference.interval else ", the same for every example"
    return difference_words(difference, share, "95 % interval ") + same


def difference_words(one: Level, share: bool = False, label: str = "", digits: int = 3) -> str:
    """Return `+0.534 (+0.490 to +0.579)`; of a share in percentage points, `+48.0 points (+41.4 to +54.7)`.

    `digits` are those of fractions; `label` stands before the interval.
    """
    factor, digits = (100.0, digits - 2) if share else (1.0, digits)
    interval = one.interval

    def signed(value: float) -> str:
        return f"{round(factor * value, digits) + 0.0:+.{digits}f}"  # never -0.00

    moved = signed(one.mean)
    unit = "" if not share else " point" if moved in ("+1", "-1") else " points"
    return f"{moved}{unit}" + (f" ({label}{signed(interval.low)} to {signed(interval.high)})" if interval else "")


def _turned(card: Card, exact: Change) -> str:
    comparison = card.comparison
    assert comparison is not None
    found, first = comparison.turned, "" if comparison.last.rollouts == 1 else ", by the first completion of each"
    text = f"Correct: {percent(exact.before.mean)} → {percent(exact.after.mean)}"
    text += f", {_with_interval(exact.difference, share=True)}"
    text += f"; {counted(found.right, 'example')} turned right and {found.wrong:,} wrong{first}"
    return f"{text} (McNemar's exact test: {odds_words(found.p)})."


def _skill(card: Card) -> Iterator[str]:
    """Say `Of +48 points correct, +35 points is skill and +13 points is format`, and the same of the reward."""
    if not card.gains:
        return
    count = card.gains["strict"].count
    few = "" if len(card.leniency.examples) == card.leniency.asked else f" (of {count:,} examples)"
    for name, suffix in (("reward", " reward"), ("correct", "")):
        strict, skill = (card.gains[f"{kind}{suffix}"].difference for kind in ("strict", "lenient"))
        gap = card.gains["reward gap" if suffix else "gap"].difference
        form = Level(-gap.mean, gap.interval and Interval(-gap.interval.high, -gap.interval.low))
        if any(round(part.mean, 2) for part in (strict, skill, form)):
            total, of_skill, of_form = (
                difference_words(part, name == "correct", digits=2) for part in (Level(strict.mean, None), skill, form)
            )
            yield f"Of {total} {name}{few}, {of_skill} is skill and {of_form} is format."


def _without_comparison(card: Card) -> Iterator[str]:
    """Say what a run tells that has no two evaluations to compare."""
    if card.measures:
        reward, exact, last = card.measures["reward"], card.measures["exact"], card.evaluated[-1]
        version = "" if last.step is None else f" of version {last.step}"
        interval = reward.interval
        span = f" (95 % interval {interval.low:.3f} to {interval.high:.3f})" if interval else ""
        yield (
            f"Mean reward {reward.mean:.3f}{span}, {_level(exact)} correct, on "
            f"{counted(len(last.by_example), 'held-out example')}{version}{_how_sampled(card)}."
        )
        if card.readings:
            lenient, gap = card.readings["lenient"], card.readings["gap"]
            yield f"Read leniently {_level(lenient)} are right: {percent(gap.mean)} of all lose only by their form."
    if card.run.kind == "eval":
        return
    if card.env is not None and not card.evaluated:
        yield from _recorded_levels(card)
    elif card.incomparable is not None:
        first = f"The evaluation of version {card.incomparable}"
        yield f"{first} has no graded example in common with it, so it is not compared."
    elif card.measures:
        yield "There is one evaluation only, so nothing to compare it with."
    else:
        if rewards := [line["reward/mean"] for line in card.lines if isinstance(line.get("reward/mean"), int | float)]:
            size = max(1, min(10, len(rewards) // 2))
            first, last = sum(rewards[:size]) / size, sum(rewards[-size:]) / size
            yield (
                f"Training reward {first:.3f} → {last:.3f} (means of the first and last {size} steps), on training "
                "prompts that differ from step to step: whether it got better on others was not measured."
            )
        yield "No evaluation was recorded: --orchestrator.eval.interval 25 adds them, before training and at its end."


def _recorded_levels(card: Card) -> Iterator[str]:
    """Say what evaluations measured that left their numbers but no samples."""
    name = f"eval/{card.env}/reward/mean"
    lines = [line for line in card.lines if isinstance(line.get(name), int | float)]
    ends = []
    for line in (lines[0], lines[-1]):
        interval = reward_interval(line, card.env or "")
        span = f" ({interval[0]:.3f} to {interval[1]:.3f})" if interval else ""
        ends.append(f"{line[name]:.3f}{span} at version {line['step']}")
    label = ", in brackets 95 % intervals" if any("(" in one for one in ends) else ""
    yield f"Held-out mean reward {' → '.join(ends)}{label}."
    lost = f"in {' and '.join(card.unread)} can't be read (see below)" if card.unread else "are not there"
    yield f"The samples of its evaluations {lost}, so they are not compared example by example."


def _losses(card: Card) -> Iterator[str]:
    from hone.viewer.card.tables import loss_rows

    for label, first, last, change in loss_rows(card):
        yield f"{label[0].upper()}{label[1:]}: {first} → {last} nats per token ({change})."
    if not any("val/loss" in line for line in card.lines):
        yield "Nothing was held out: --val.interval 50 measures a validation loss."


def _sampling(run: Summary) -> dict[str, Any]:
    """Return the settings of a run's evaluations, or of an evaluation; empty where config.toml does not say them."""
    if run.kind == "eval":
        return run.config | run.config.get("sampling_args", {})
    settings = run.config.get("orchestrator", {})
    found = settings.get("eval", {}).get("sampling", {})
    longest = {name: value for name, value in settings.get("sampling", {}).items() if name == "max_tokens"}
    return longest | found


def _how_sampled(card: Card) -> str:
    """Return `; sampled at T = 1, 1 completion each`; empty where the temperature is not known."""
    given = _sampling(card.run)
    value = given.get("temperature")
    if not isinstance(value, int | float) or not card.evaluated:
        return ""
    each = f"{counted(card.evaluated[-1].rollouts, 'completion')} each"
    if value == 0:
        return f"; decoded greedily, {each}"
    top_p = f"top-p {given['top_p']:g}, " if given.get("top_p", 1.0) != 1.0 else ""
    return f"; sampled at T = {value:g}, {top_p}{each}"


def _greedy_caveat(card: Card) -> str:
    """Say that a gain is of samples, and how to decode greedily; empty where there is no gain of samples."""
    run, given = card.run, _sampling(card.run)
    value = given.get("temperature")
    if card.comparison is None or not card.good or not value:
        return ""
    weights = Run(run.path).weights()
    newest = str(weights[max(weights)]) if weights else "WEIGHTS"
    flags = ["-n", str(len(card.evaluated[-1].by_example)), "-r", "1", "-T", "0"]
    if longest := given.get("max_tokens"):
        flags += ["-t", str(longest)]
    first = run.config.get("model", {}).get("name", TINY)
    before = f" (and with -m {first} where it began)" if first != TINY and not card.comparison.first.step else ""
    gain = f"The gain is of samples at T = {value:g}: decoded greedily it may be smaller."
    return f"{gain} To measure that{before}: {evaluation(run, newest, flags)}"


def caveats(card: Card) -> list[str]:
    """Return what keeps the numbers from meaning more than they do."""
    return [*_about_run(card), *_about_evaluation(card)]


def _about_run(card: Card) -> Iterator[str]:
    run, info = card.run, card.run.info
    if run.kind == "eval":
        return
    if run.status in ("running", "paused", KILLED, "failed", "interrupted", "copying"):
        yield f"The run is not at its end: {status(run)}. This card is of what is there."
    elif run.status in ("stopped", "budget"):
        yield f"The run ended before its last step: {status(run)}."
    if not info.get("exact", True):
        yield "The run is not exact: another one of the same config may give other numbers."
    if raised := [alarm.name for alarm in card.alarms if alarm.over is None]:
        yield f"Alarms that stand at the end: {', '.join(dict.fromkeys(raised))}."
    if (git := info.get("git")) and git["dirty"]:
        yield "The code had changes that are in no revision."
    if info.get("drift"):
        yield "It was resumed with other settings, or another task, than it began with."
    for event in [event for event in card.events if event.get("kind") == "overlap" and not event.get("dropped")][:1]:
        yield (
            f"Of {event['checked']:,} training prompts, {event['rows']:,} are held-out ones too: evaluation looks "
            "better than it is."
        )
    yield f"This is one seed ({info['seed']}). Rerun with other seeds (--seed) to see the spread."


def _about_evaluation(card: Card) -> Iterator[str]:
    if not card.evaluated:
        return
    last, comparison, reading = card.evaluated[-1], card.comparison, card.leniency
    count, graded = len(last.by_example), sum(map(len, last.by_example.values()))
    if count < FEW:
        interval = card.changes["reward"].difference.interval if card.changes else None
        size = f"differences below about {(interval.high - interval.low) / 2:.2f}" if interval else "small differences"
        yield f"The evaluation has only {counted(count, 'example')}: {size} can't be seen with so few."
    if last.truncated > TRUNCATED:
        yield f"{percent(last.truncated)} of the evaluated completions were cut off by the length limit."
    if ungraded := len(last.rows) - graded:
        yield f"{ungraded:,} of {len(last.rows):,} evaluated completions could not be graded, and are left out."
    if greedy := _greedy_caveat(card):
        yield greedy
    if comparison is not None and comparison.apart:
        apart = counted(comparison.apart, "example")
        yield f"{apart} could not be compared (not the same in both evaluations, or not graded in both)."
    if comparison is not None and comparison.first.step:
        yield f"Before means version {comparison.first.step}: no evaluation of the initial model is there."
    done = card.run.progress.done
    if card.run.kind == "rl" and last.step is not None and last.step < done:
        yield f"The last evaluation is of version {last.step}, and the run has come to {done}."
    if not reading.why_not and len(reading.examples) < reading.asked:
        read = f"{len(reading.examples):,} of {reading.asked:,} examples"
        yield f"{read}, chosen at random, were read leniently: the others were left out to save time."


def counted(count: int, what: str) -> str:
    """Return `1 example`, `1,024 examples`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _level(one: Level) -> str:
    interval = one.interval
    return percent(one.mean) + (f" ({percent(interval.low)} to {percent(interval.high)})" if interval else "")
