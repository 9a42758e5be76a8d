"""The facts of a run card, gathered from a run's files. Writes nothing.

card = facts_of(Path("outputs"))
card.verdict[0]  # "Better on the same 256 held-out examples: mean reward 0.412 → 0.947 …"
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from hone.errors import UserError
from hone.extensions.viewer.card import tables
from hone.extensions.viewer.card.measures import (
    FAILED,
    Change,
    Comparison,
    Evaluated,
    Leniency,
    Level,
    Row,
    changes,
    compare,
    usable,
)
from hone.extensions.viewer.card.verdict import caveats, verdict
from hone.runs import Run, provenance, view
from hone.runs.files import RESTORE
from hone.runs.progress import reward_interval
from hone.runs.summary import Summary, environments, status_text, summarize

Read = Callable[[Summary, Sequence[Evaluated]], Leniency]
"""Reads evaluations leniently, or returns an earlier reading."""
SHOWN = 2
"""Most completions to show that are right only by lenient reading."""
NOT_READ = Leniency("completions were not read leniently: hone report does it")


class Sample(NamedTuple):
    """One completion. `name` says why the card shows it, such as "best"."""

    name: str
    row: Row


@dataclass
class Card:
    """The facts of a card. If there is only one evaluation, it is compared with itself."""

    run: Summary
    lines: list[dict[str, Any]]
    """Lines of metrics.jsonl."""
    events: list[dict[str, Any]]
    evaluated: list[Evaluated] = field(default_factory=list)
    """The first and the last evaluation if they can be compared; else only the last. Empty without recorded samples."""
    comparison: Comparison | None = None
    leniency: Leniency = NOT_READ
    lenient: Mapping[str, Change] = field(default_factory=dict)
    """The change of each strict and lenient measure."""
    samples: list[Sample] = field(default_factory=list)
    """Up to `SHOWN` samples that are right only by lenient reading; then the best, the median and the worst."""
    tables: Mapping[str, tables.Facts] = field(default_factory=dict)
    verdict: list[str] = field(default_factory=list)
    caveats: list[str] = field(default_factory=list)
    written: str = field(default_factory=provenance.now)

    @property
    def title(self) -> str:
        run = self.run
        what = {"rl": "RL", "sft": "SFT", "eval": "Evaluation"}.get(run.kind, run.kind)
        return f"{what}{f' on {run.task}' if run.task else ''}: {run.path.resolve().name}"

    @property
    def status(self) -> str:
        return status_text(self.run).rpartition(": ")[2]

    @property
    def compared(self) -> bool:
        return len(self.evaluated) == 2

    @property
    def measures(self) -> Mapping[str, Change]:
        return self.comparison.measures if self.comparison else {}

    @property
    def good(self) -> bool | None:
        """True if the reward rose, False if it fell; None if the change is not `sure`."""
        reward = self.measures.get("reward")
        return reward.difference.mean > 0 if reward and reward.sure else None

    @property
    def env(self) -> str | None:
        """The task's name in the metrics of evaluations; None without an evaluation."""
        return next(iter(environments(list(dict.fromkeys(name for line in self.lines for name in line)))), None)


def facts_of(path: Path, read: Read | None = None, ours: bool = False) -> Card:
    """Return the current card of the run or evaluation in `path`. Raises UserError if it is neither, or damaged.

    `ours` is true if this process holds the run's lock.
    """
    summary, run = summarize(path, ours=ours), Run(path)
    try:
        lines = [] if summary.kind == "eval" else run.metric_lines()
        card = Card(summary, lines, run.events())
        _measure(card, run, read)
        card.samples += chosen(card.evaluated[-1].rows if card.evaluated else _last_step(run))
        card.tables = tables.tables(summary, card.events)
        card.verdict, card.caveats = verdict(card), caveats(card)
        return card
    except UserError:
        raise
    except (OSError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as error:
        raise UserError(f"{path} is damaged ({type(error).__name__}: {error}): {RESTORE}") from error


def _measure(card: Card, run: Run, read: Read | None) -> None:
    versions: list[int | None] = [*run.evals()]
    if card.run.kind == "eval":
        versions = [None] if (run.path / view.RESULTS).is_file() else []
    ends = dict.fromkeys(versions[:1] + versions[-1:])
    of_first = lambda rows: [row for row in rows if row.get("env", card.env) == card.env]  # noqa: E731
    card.evaluated = [Evaluated(version, usable(of_first(run.eval_rows(version)))) for version in ends]
    if not card.evaluated:
        return
    last = card.evaluated[-1]
    card.comparison = compare(card.evaluated[0], last)
    if card.comparison is None:
        card.evaluated, card.comparison = [last], compare(last, last)
    card.comparison = card.comparison and _with_recorded_intervals(card, card.comparison)
    card.leniency = read(card.run, card.evaluated) if read else NOT_READ
    if not card.leniency.why_not:
        found = [card.leniency.measures(one) for one in card.evaluated]
        counts = card.evaluated[0].counts, last.counts
        card.lenient = changes(found[0], found[-1], *counts)
        right = {one[:2]: one.kind for one in card.leniency.found[last.key] if one.correct}
        rows = {(row["example"], row["rollout"]): row for row in last.rows}
        card.samples = [Sample(f"right by its {kind}", rows[place]) for place, kind in right.items()][:SHOWN]


def _last_step(run: Run) -> list[Row]:
    rows = run.samples().to_pylist() if run.rollout_steps() else []
    for row in rows:
        row["prompt"] = [{"role": "user", "content": row["prompt"]}]
        row["completion"] = [{"role": "assistant", "content": row["text"]}]
        row |= {"example_id": row["sample_id"], "components": {}}
    return rows


def chosen(rows: Sequence[Row]) -> list[Sample]:
    """Return the best, the median and the worst row by reward; fewer if there are fewer than three rows."""
    order = sorted((row for row in rows if row["outcome"] not in FAILED), key=lambda row: -row["reward"])
    names = {len(order) - 1: "worst", len(order) // 2: "median", 0: "best"} if order else {}
    return [Sample(names[i], order[i]) for i in sorted(names)]


def _with_recorded_intervals(card: Card, found: Comparison) -> Comparison:
    """Return `found` with the recorded intervals of the mean rewards, which are cut at the reward's bounds.

    If some examples could not be compared, return `found` unchanged.
    """

    def recorded(one: Evaluated, level: Level) -> Level:
        last = card.run.progress.evals if one.step is None else {}
        metrics = next((line for line in card.lines if line["step"] == one.step), last)
        ends = reward_interval(metrics, card.env or next(iter(environments(list(metrics))), ""))
        return Level(level.mean, *ends) if ends else level

    if found.apart:
        return found
    reward = found.measures["reward"]
    ends = {"before": recorded(card.evaluated[0], reward.before), "after": recorded(card.evaluated[-1], reward.after)}
    return replace(found, measures={**found.measures, "reward": replace(reward, **ends)})
