"""All that a run card says, gathered from a run's files. Reads only; what is damaged is named, and the rest shown.

card = facts_of(Path("outputs"))
card.verdict[0]  # "Better on 256 held-out examples: reward 0.412 → 0.947, +0.534 (95 % interval +0.49 to +0.58)."
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hone import rng
from hone.errors import UserError
from hone.runs import Run, provenance
from hone.runs.budget import Spent
from hone.runs.files import parse_json, read_lines
from hone.runs.outputs import existing_run, holder
from hone.runs.progress import Progress
from hone.runs.rollouts import RESULTS, evals_file
from hone.runs.summary import Raised, Summary, alarms_of, status_of, summarize
from hone.viewer.card import sentences, tables
from hone.viewer.card.evaluations import FAILED, Comparison, Evaluated, Row, compare, measured, usable
from hone.viewer.card.leniency import Leniency, gains, level
from hone.viewer.card.paired import Change, Level
from hone.viewer.charts import environments
from hone.viewer.conversation import Turn, turns

T = TypeVar("T")
WRONG = (OSError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError)
"""What comes of values that are not what a run writes."""
Rows = list[tuple[str, str]]
"""(label, text) of each row of a table of facts."""
Read = Callable[[Summary, Sequence[Evaluated]], Leniency]
"""Reads evaluations leniently, or returns what was read of them before."""
SHOWN = 2
"""Completions that show what the lenient reader counts."""
NOT_READ = Leniency("completions were not read leniently: hone report does it")
_COLUMNS = (
    *("example_id", "reward", "components", "outcome", "detail", "stop_reason", "prompt", "text", "answer"),
    *("completion", "sampled_mask"),
)


@dataclass(frozen=True)
class Sample:
    """One completion; `name` says why it is shown, `weights` are those of its reward's components."""

    name: str
    row: Row
    weights: Mapping[str, float]

    @property
    def prompt(self) -> str:
        return "\n\n".join(map(_as_text, turns(self.row["prompt"], sampled=False)))

    @property
    def completion(self) -> str:
        """Its text; of several turns each message with its role, and its calls of tools."""
        made = turns(self.row["completion"])
        return made[0].text if len(made) == 1 and not made[0].calls else "\n\n".join(map(_as_text, made))

    @property
    def facts(self) -> str:
        """Reward with its components, outcome, how it ended, tokens, and which example it is of."""
        row, words = self.row, ["not graded" if self.row["reward"] is None else f"reward {self.row['reward']:.4g}"]
        words += [str(row["outcome"]).replace("_", " ")]
        words += ["cut off by the length limit"] if row["stop_reason"] == "length" else []
        words += [f"{row['completion_tokens']} tokens"] if row.get("completion_tokens") is not None else []
        words += [f"example {row['example_id']}"]
        weights = {name: f" (weight {weight:g})" for name, weight in self.weights.items()}
        parts = [f"{name} {value:.4g}{weights.get(name, '')}" for name, value in row["components"].items()]
        return ", ".join(words) + (f"; {', '.join(parts)}" if parts else "")


def _as_text(turn: Turn) -> str:
    def arguments(pairs: Sequence[tuple[str, str]]) -> str:
        return ", ".join(f"{name}: {value}" for name, value in pairs)

    calls = [f"[calls {call.name} {call.raw or arguments(call.arguments)}]" for call in turn.calls]
    return "\n".join([f"{turn.role}: {turn.text}", *calls])


@dataclass
class Card:
    """What a card says. `measures` are those of the last evaluation; `readings` the same of the strict and the lenient
    score, and `gains` what became of these.
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
    status: str = ""
    verdict: list[str] = field(default_factory=list)
    good: bool | None = None
    """True if the verdict is that it got better, False if worse; None if neither."""
    about: Rows = field(default_factory=list)
    costs: Rows = field(default_factory=list)
    checks: Rows = field(default_factory=list)
    caveats: list[str] = field(default_factory=list)
    commands: str = ""
    hashes: Rows = field(default_factory=list)
    config: str = ""
    """The resolved config as TOML."""
    written: str = ""

    @property
    def seed(self) -> int:
        return self.run.info.get("seed") or 0

    @property
    def changes(self) -> Mapping[str, Change]:
        return self.comparison.measures if self.comparison else {}

    @property
    def weights(self) -> Mapping[str, float]:
        """Of the reward's components."""
        return self.run.info.get("reward_weights") or {}

    @property
    def env(self) -> str | None:
        """The name that the metrics of evaluations have of the task; None without an evaluation."""
        found = environments(list(dict.fromkeys(name for line in self.lines for name in line)))
        return found[0] if found else None

    def attempt(self, read: Callable[[], T], default: T) -> T:
        """Return what `read` gives; if a file is damaged, that is noted, and `default` stands in."""
        try:
            return read()
        except UserError as error:
            problem = str(error)
        except WRONG as error:
            problem = f"{type(error).__name__}: {error}"
        if problem not in self.damage:
            self.damage.append(problem)
        return default


def facts_of(path: Path, read: Read | None = None, ours: bool = False) -> Card:
    """Make the card of the run or evaluation in `path`, as it is now. UserError if it is none, or its run.json is
    damaged.

    `read` reads its evaluations leniently; without it that is left out. `ours`: this process holds the run's lock.
    """
    run = Run(path)
    card = Card(_summary(path, ours, damage := []), damage=damage, written=provenance.now())
    card.events = card.attempt(run.events, [])
    card.alarms = card.attempt(lambda: alarms_of(path), [])
    if card.run.kind != "eval":
        card.lines = card.attempt(lambda: read_lines(path / "metrics.jsonl"), [])
    card.attempt(lambda: _measure(card, run, read), None)
    card.attempt(lambda: _choose_samples(card, run), None)
    for rows, table in (
        (tables.about(card), card.about), (tables.costs(card), card.costs), (tables.checks(card), card.checks),
        (tables.hashes(card), card.hashes),
    ):  # fmt: skip
        card.attempt(partial(table.extend, rows), None)  # of damaged files the rows up to there are kept
    card.commands = card.attempt(lambda: "\n".join(tables.commands(card.run)), "")
    card.config = card.attempt(lambda: tables.config_text(path), "")
    card.title, card.status = sentences.title(card.run), sentences.status(card.run)
    if card.damage:
        card.status += "; files are damaged, see below"
    card.verdict, card.good = card.attempt(lambda: sentences.verdict(card), ([], None))
    card.caveats = card.attempt(lambda: sentences.caveats(card), [])
    card.caveats += [f"Damaged: {problem}" for problem in card.damage]
    return card


def _summary(path: Path, ours: bool, damage: list[str]) -> Summary:
    """Return the summary; if a file is damaged, one that knows run.json only. UserError if that can't be read."""
    try:
        summary = summarize(path, ours=ours)
        damage += summary.damage
        return summary
    except (UserError, *WRONG) as error:
        info = existing_run(path)
        if info is None or not {"status", "seed", "command", "versions", "hardware", "threads"} <= info.keys():
            raise
        damage.append(str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}")
    pid = None if ours else holder(path)
    facts = {"exact": True, "inexact": []} | info
    return Summary(path, facts, {}, status_of(info, pid), pid, Progress(info["kind"], 0), Spent())


def _measure(card: Card, run: Run, read: Read | None) -> None:
    """Fill in what the recorded evaluations say."""
    versions: list[int | None] = [None] if card.run.kind == "eval" else list(run.evals())
    if card.run.kind == "eval" and not (run.path / RESULTS).is_file():
        return
    for version in versions[:1] + versions[-1:] if len(versions) > 1 else versions:
        rows = card.attempt(partial(lambda version: usable(run.eval_rows(version)), version), None)
        if rows is None:
            card.unread.append(RESULTS if version is None else evals_file(version))
        else:
            card.evaluated.append(Evaluated(version, rows))
    if card.unread or not card.evaluated:
        card.evaluated = []
        return
    first, last, seed = card.evaluated[0], card.evaluated[-1], card.seed
    if len(card.evaluated) == 2:
        card.comparison = compare(first, last, seed)
        if card.comparison is None:
            card.incomparable, card.evaluated = first.step, [last]
    after = {name: change.after for name, change in card.changes.items()}
    card.measures = after or measured(last, seed)
    if read is None:
        return
    card.leniency = read(card.run, card.evaluated)
    if card.leniency.why_not:
        return
    if card.comparison is not None:
        card.gains = gains(card.leniency, first, last, seed)
    after = {name: change.after for name, change in card.gains.items()}
    card.readings = after or level(card.leniency, last, seed)
    card.generous = list(_generous(card))[:SHOWN]


def _generous(card: Card) -> Iterator[Sample]:
    """Give completions that only the lenient reader calls right, those of the last evaluation first."""
    for one in reversed(card.evaluated):
        found = card.leniency.found[one.key]
        version = "" if one.step is None else f", version {one.step}"
        for row in one.rows:
            if (answer := found.get((row["example"], row["rollout"]))) and answer.correct:
                yield Sample(f"right by its {answer.kind}{version}", row, card.weights)


def _choose_samples(card: Card, run: Run) -> None:
    if card.evaluated:
        last = card.evaluated[-1]
        card.samples = chosen(last.rows, card.weights, card.seed)
        card.samples_of = "the evaluation" if last.step is None else f"the evaluation of version {last.step}"
    elif card.run.kind == "rl" and (steps := run.rollout_steps()):
        rows = run.rollouts(steps[-1], _COLUMNS).to_pylist()
        card.samples = chosen(list(map(_as_evaluated, rows)), card.weights, card.seed)
        card.samples_of = f"training step {steps[-1]}"


def _as_evaluated(row: dict[str, Any]) -> Row:
    """Return a completion of a training step with the keys of an evaluation's that samples need."""
    made = row["completion"]
    return row | {
        "prompt": parse_json(row["prompt"]),
        "completion": parse_json(made) if made else [{"role": "assistant", "content": row["text"]}],
        "components": dict(row["components"] or ()),
        "detail": row["detail"] or "",
        "completion_tokens": sum(row["sampled_mask"]),
    }


def chosen(rows: Sequence[Row], weights: Mapping[str, float], seed: int) -> list[Sample]:
    """Return best, worst and median by reward (of equals the first), and a random one by `seed`; no row twice."""
    graded = [row for row in rows if row["outcome"] not in FAILED]
    if not graded:
        return []
    order = sorted(range(len(graded)), key=lambda i: graded[i]["reward"])
    best = max(range(len(graded)), key=lambda i: graded[i]["reward"])
    any_one = int(rng.stream(seed, "card", "sample").integers(len(graded)))
    shown: dict[int, str] = {}
    for name, i in (("best", best), ("worst", order[0]), ("median", order[len(order) // 2]), ("random", any_one)):
        shown[i] = f"{shown[i]}, {name}" if i in shown else name
    return [Sample(name, graded[i], weights) for i, name in shown.items()]
