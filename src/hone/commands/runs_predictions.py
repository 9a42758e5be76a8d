"""`hone runs predictions [ROOT]`: what was predicted, what became of it, and whether the said probabilities hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hone.commands.runs_list import table
from hone.config.runs import RunsPredictionsConfig
from hone.runs.files import dumps
from hone.runs.predictions import word
from hone.viewer.predictions import Row, calibration, decided, found, overall

SURPRISES = 3
"""At most so many are named."""


def run(config: RunsPredictionsConfig) -> int:
    """Prints the table and the scores. Returns 0."""
    rows, left_out = found(config.root)
    if config.jsonl:
        for row in rows:
            print(dumps(row.facts()))
        return 0
    if not rows and not left_out:
        print(f"No run under {config.root} has predictions: make some with `hone rl --predict`.")
        return 0
    print("\n".join(_report(rows, left_out)))
    return 0


def _report(rows: Sequence[Row], left_out: list[str]) -> Iterator[str]:
    if rows:
        yield from table(map(_cells, rows), ["run", "prediction", "said p", "outcome", "value", "Brier"])
    known = decided(rows)
    if known:
        yield ""
        yield from _overall(known)
        yield ""
        yield from _calibration(known)
        yield ""
        yield from _surprises(known)
    elif rows:
        yield "\nNone is decided yet."
    if open_ones := len(rows) - len(known):
        yield f"\n{open_ones} undecided: a run that goes on decides them (hone runs list says how)." if known else ""
    if left_out:
        yield ""
        yield from left_out


def _cells(row: Row) -> list[str]:
    one = row.scored
    value = "-" if one.value is None else f"{one.value:.6g}"
    brier = "-" if one.brier is None else f"{one.brier:.4f}"
    return [str(row.run), one.prediction.statement, f"{one.prediction.p:g}", word(one.outcome), value, brier]


def _overall(known: Sequence[Row]) -> Iterator[str]:
    brier, rate = overall([row.scored for row in known])
    yield f"Brier score of {len(known)} decided: {brier:.4f}"
    yield f"    always saying 0.5:  0.2500\n    always the share that came true ({rate:.2f}):  {rate * (1 - rate):.4f}"
    yield "It is the mean of (p - o)², o = 1 for what came true and 0 for what did not: lower is better, 0 is perfect."


def _calibration(known: Sequence[Row]) -> list[str]:
    rows = [
        [
            f"{one.low:.1f} to {one.high:.1f}",
            f"{one.said:.2f}",
            f"{one.true:.2f}",
            f"{one.interval.low:.2f} to {one.interval.high:.2f}",
            str(one.count),
            one.verdict,
        ]
        for one in calibration([row.scored for row in known])
    ]
    return table(rows, ["said p", "mean", "came true", "95 % interval", "n", ""])


def _surprises(known: Sequence[Row]) -> Iterator[str]:
    """The ones that were furthest off, and those that were said most boldly and rightly."""
    by_score = sorted(known, key=lambda row: row.scored.brier or 0.0)
    wrong = [row for row in reversed(by_score) if (row.scored.brier or 0.0) > 0.25][:SURPRISES]
    right = [row for row in by_score if (row.scored.brier or 0.0) < 0.25][:SURPRISES]
    for title, rows in (("furthest off", wrong), ("best", right)):
        for number, row in enumerate(rows):
            label = title if number == 0 else ""
            one = row.scored
            yield f"{label:<13}{one.prediction} was {word(one.outcome)} ({one.value:.6g}), in {row.run}"
