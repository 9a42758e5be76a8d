"""All that a run card says, gathered from a run's files. Reads only; what is damaged is said, and the rest shown.

card = facts_of(Path("outputs"))
card.verdict[0]  # "Better on 256 held-out examples: reward 0.412 → 0.947, +0.534 (95 % interval +0.49 to +0.58)."
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from markupsafe import Markup

from hone.errors import UserError
from hone.runs import Run, provenance
from hone.runs.evaluations import RESULTS, evals_file
from hone.runs.liveness import holder
from hone.runs.outputs import existing_run
from hone.runs.progress import Progress
from hone.runs.spent import Spent
from hone.runs.summary import Summary, standing, summarize
from hone.runs.tail import Tail
from hone.runs.verdicts import Raised, alarms_of
from hone.viewer.card import again, curve, sentences, tables
from hone.viewer.card.evaluations import FAILED, Comparison, Evaluated, Row, compare, measured
from hone.viewer.card.leniency import Leniency, gains, key_of, level
from hone.viewer.card.paired import Change, Level
from hone.viewer.card.samples import Sample, chosen, named, rows_of_step
from hone.viewer.charts import environments
from hone.viewer.damage import damages
from hone.viewer.state import Watcher

T = TypeVar("T")
WRONG = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError)
"""What comes of values that are not what a run writes."""
Rows = list[tuple[str, str]]
"""(label, text) of each row of a table of facts."""
Read = Callable[[Summary, Sequence[Evaluated]], Leniency]
"""Reads evaluations leniently, or tells what was read of them before."""
SHOWN = 2
"""Completions that show what the lenient reader counts."""
NOT_READ = Leniency("completions were not read leniently: hone report does it")


@dataclass
class Card:
    """What a card says. `measures` are those of the last evaluation; `changes` what became of them since the first;
    `readings` and `gains` the same of the strict and the lenient score.
    """

    run: Summary
    lines: list[dict[str, Any]] = field(default_factory=list)
    """Of metrics.jsonl."""
    events: list[dict[str, Any]] = field(default_factory=list)
    alarms: list[Raised] = field(default_factory=list)
    evaluated: list[Evaluated] = field(default_factory=list)
    """The first and the last evaluation whose samples are recorded; one, if there is only one."""
    unread: list[str] = field(default_factory=list)
    """Which of the two can't be read, by the names of their files: nothing is compared then."""
    comparison: Comparison | None = None
    incomparable: int | None = None
    """Version of the first evaluation, if it has no graded example in common with the last: it is left out."""
    measures: dict[str, Level] = field(default_factory=dict)
    leniency: Leniency = NOT_READ
    readings: dict[str, Level] = field(default_factory=dict)
    gains: dict[str, Change] = field(default_factory=dict)
    generous: list[Sample] = field(default_factory=list)
    """A few completions that are right only when they are read leniently."""
    samples: list[Sample] = field(default_factory=list)
    samples_of: str = ""
    damage: list[str] = field(default_factory=list)
    """What could not be read, a sentence each."""
    title: str = ""
    standing: str = ""
    verdict: list[str] = field(default_factory=list)
    good: bool | None = None
    """Whether the verdict is that it got better, or worse; None if neither."""
    about: Rows = field(default_factory=list)
    costs: Rows = field(default_factory=list)
    checks: Rows = field(default_factory=list)
    caveats: list[str] = field(default_factory=list)
    curve: Markup = field(default_factory=Markup)
    again: again.Again = field(default_factory=again.Again)
    written: str = ""

    @property
    def date(self) -> str:
        """When it was written, to the minute."""
        return f"{self.written[:16].replace('T', ' ')} UTC"

    @property
    def seed(self) -> int:
        return self.run.info.get("seed") or 0

    @property
    def changes(self) -> Mapping[str, Change]:
        return self.comparison.measures if self.comparison else {}

    @property
    def env(self) -> str | None:
        """The name that the metrics of evaluations have of the task; None without an evaluation."""
        found = environments(list(dict.fromkeys(name for line in self.lines for name in line)))
        return found[0] if found else None

    def attempt(self, read: Callable[[], T], default: T) -> T:
        """What `read` gives; if a file is damaged, that is noted, and `default` stands in."""
        try:
            return read()
        except UserError as error:
            problem = str(error)
        except (OSError, *WRONG) as error:
            problem = f"{type(error).__name__}: {error}"
        if problem not in self.damage:
            self.damage.append(problem)
        return default


def facts_of(path: Path, read: Read | None = None, ours: bool = False) -> Card:
    """The card of the run or evaluation in `path`, as it is now. UserError if it is none, or its run.json is damaged.

    `read` reads its evaluations leniently; without it that is left out. `ours`: this process holds the run's lock.
    """
    run = Run(path)
    card = Card(_summary(path, ours, damage := []), damage=damage, written=provenance.now())
    card.damage += card.attempt(lambda: damages(card.run), [])
    card.events = card.attempt(run.events, [])
    card.alarms = card.attempt(lambda: alarms_of(path), [])
    if card.run.kind != "eval":
        card.lines = card.attempt(lambda: _lines(card, path / "metrics.jsonl"), [])
    card.attempt(lambda: _measure(card, run, read), None)
    card.attempt(lambda: _choose_samples(card, run), None)
    card.curve = card.attempt(lambda: curve.drawn(card.run.kind, card.lines, card.env), Markup())
    tables.fill(card)
    card.again = card.attempt(lambda: again.of(card.run), again.Again())
    card.title, card.standing = sentences.title(card.run), sentences.standing_of(card.run)
    if card.damage:
        card.standing += "; files are damaged, see below"
    card.verdict, card.good = card.attempt(lambda: sentences.verdict(card), ([], None))
    card.caveats = card.attempt(lambda: sentences.caveats(card), [])
    card.caveats += [f"Damaged: {problem}" for problem in card.damage]
    return card


def _lines(card: Card, log: Path) -> list[dict[str, Any]]:
    """The lines of a log that are whole; what is wrong with others is noted."""
    tail = Tail(log, lenient=True)
    found = tail.new()
    card.damage += [tail.damage] if tail.damage and tail.damage not in card.damage else []
    return found


def _summary(path: Path, ours: bool, damage: list[str]) -> Summary:
    """The summary; of a log with damaged lines, that of its others; else, if a file is damaged, one that knows run.json
    only. UserError if that can't be read either.
    """
    try:
        summary = summarize(path, ours=ours)
        damage += summary.damage
        return summary
    except (UserError, *WRONG):
        pass  # in part it may be read all the same
    try:
        state = Watcher(path, ours).look()
        damage += state.damage
        return state
    except (UserError, *WRONG) as error:
        info = existing_run(path)
        if info is None or not {"status", "seed", "command", "versions", "hardware", "threads"} <= info.keys():
            raise
        damage.append(str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}")
    pid = None if ours else holder(path)
    facts = {"exact": True, "inexact": []} | info
    return Summary(path, facts, {}, standing(info, pid), pid, Progress(info["kind"], 0), Spent())


def _measure(card: Card, run: Run, read: Read | None) -> None:
    """Fills in what the recorded evaluations say."""
    versions: list[int | None] = [None] if card.run.kind == "eval" else list(run.evals())
    ends = versions[:1] + versions[-1:] if len(versions) > 1 else versions
    if card.run.kind == "eval" and not (run.path / "results.jsonl").is_file():
        return
    for version in ends:
        rows = card.attempt(partial(_rows_of, run, version), None)
        if rows is None:
            card.unread.append(RESULTS if version is None else evals_file(version))
        else:
            card.evaluated.append(Evaluated(version, rows))
    if card.unread or not card.evaluated:
        card.evaluated = []
        return
    last, seed = card.evaluated[-1], card.seed
    if len(card.evaluated) == 2:
        card.comparison = compare(card.evaluated[0], last, seed)
        if not card.comparison.count:
            card.comparison, card.incomparable, card.evaluated = None, card.evaluated[0].step, [last]
    if card.comparison is not None:
        card.measures = {name: change.after for name, change in card.changes.items()}
    else:
        card.measures = measured(last, seed)
    if read is None:
        return
    card.leniency = read(card.run, card.evaluated)
    if card.leniency.why_not:
        return
    if card.comparison is not None:
        card.gains = gains(card.leniency, card.evaluated[0], last, seed)
        card.readings = {name: change.after for name, change in card.gains.items()}
    else:
        card.readings = level(card.leniency, last, seed)
    card.generous = list(_generous(card))[:SHOWN]


def _rows_of(run: Run, version: int | None) -> list[Row] | None:
    return _usable(run.eval_rows(version))


def _generous(card: Card) -> Iterator[Sample]:
    """Completions that only the lenient reader calls right, those of the last evaluation first."""
    weights = card.run.info.get("reward_weights") or {}
    for one in reversed(card.evaluated):
        found = card.leniency.found[key_of(one.step)]
        of = "" if one.step is None else f", version {one.step}"
        for row in one.rows:
            if (read := found.get((row["example"], row["rollout"]))) and read.correct:
                yield named(f"right by its {read.kind}{of}", row, weights)


_NEEDED = {
    **{"example": int, "rollout": int, "example_id": str, "prompt": list, "completion": list, "answer": str},
    **{"reward": int | float | None, "components": dict, "outcome": str, "detail": str, "stop_reason": str | None},
}


def _usable(rows: Sequence[Row]) -> list[Row]:
    """The rows; UserError if one lacks what a card needs."""
    for number, row in enumerate(rows, 1):
        wrong = [name for name, kind in _NEEDED.items() if not isinstance(row.get(name, ...), kind)]
        messages = [] if wrong else [*row["prompt"], *row["completion"]]
        if not wrong and not all(isinstance(message, dict) and "role" in message for message in messages):
            wrong = ["a message"]
        if not wrong and row["outcome"] not in FAILED:
            values = [row["reward"], *row["components"].values()]
            wrong = [] if all(isinstance(v, int | float) and math.isfinite(v) for v in values) else ["a reward"]
        if wrong:
            raise UserError(f"line {number} of an evaluation's samples is damaged ({wrong[0]} is missing, or wrong)")
    return list(rows)


def _choose_samples(card: Card, run: Run) -> None:
    weights = card.run.info.get("reward_weights") or {}
    if card.evaluated:
        last = card.evaluated[-1]
        card.samples = chosen(last.rows, weights, card.seed)
        card.samples_of = "the evaluation" if last.step is None else f"the evaluation of version {last.step}"
    elif card.run.kind == "rl" and (steps := run.rollout_steps()):
        card.samples = chosen(rows_of_step(run, steps[-1]), weights, card.seed)
        card.samples_of = f"training step {steps[-1]}"
