"""`hone runs ledger RUN`: what became of every draw."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hone.commands.runs_list import table
from hone.config.runs import RunsLedgerConfig
from hone.errors import UserError
from hone.runs.draws import ROLLOUTS, Epochs, epochs
from hone.runs.files import dumps
from hone.runs.listing import find_run
from hone.runs.reader import Run
from hone.runs.summary import Summary, summarize

ROWS = 40
"""Rows of the table where nothing is said."""


def run(config: RunsLedgerConfig) -> int:
    """Prints the draws and a summary. Returns 0, or 1 if an epoch did not have each example as it should."""
    one = summarize(find_run(config.run))
    if one.kind != "rl":
        raise UserError(f"{one.path} is a run of `hone {one.kind}`, which keeps no ledger: only RL draws examples")
    draws = Run(one.path).ledger()
    wanted = [draw for draw in draws if config.state in (None, draw["state"]) and config.step in (None, draw["step"])]
    if config.jsonl:
        print_json(wanted, config.limit)
        return 0
    print_table(wanted, ROWS if config.limit is None else config.limit)
    seen = epochs(draws, one.info.get("pool"))
    print("\n".join(_summary(one, draws, seen)))
    return 1 if seen.faults else 0


def print_json(draws: list[dict[str, Any]], limit: int | None) -> None:
    """A JSON object per line."""
    for draw in _last(draws, len(draws) if limit is None else limit):
        print(dumps(draw))


def print_table(draws: list[dict[str, Any]], limit: int) -> None:
    """The last `limit` draws, and how many more there are."""
    shown = _last(draws, limit)
    if not shown:
        return
    if len(shown) < len(draws):
        left = len(draws) - len(shown)
        print(f"({left:,} earlier draw{'s' if left > 1 else ''}: --limit {len(draws)} shows all)")
    names = ["draw", "step", "example_id", "state", "tokens", "source"]
    rows = [[str(draw[name]) for name in names] for draw in shown]
    print("\n".join(table(rows, ["draw", "step", "example", "state", "tokens", "from"])) + "\n")


def _last(draws: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    return draws[len(draws) - min(count, len(draws)) :]


def _summary(one: Summary, draws: list[dict[str, Any]], seen: Epochs) -> list[str]:
    if not draws:
        return [f"{one.path} has drawn nothing yet"]
    counts = Counter(draw["state"] for draw in draws)
    states = ", ".join(
        f"{counts[state]:,} {state}" for state in ("trained", "filtered", "failed", "retired") if counts[state]
    )
    tokens = sum(draw["tokens"] for draw in draws)
    steps = draws[-1]["step"] - draws[0]["step"] + 1
    lines = [
        f"draws     {len(draws):,} in {steps:,} step{'s' if steps > 1 else ''}: {states}",
        f"tokens    {tokens:,}, prompts and completions",
        f"epochs    {_epochs_in_words(seen)}",
    ]
    lines += [f"          but {fault}" for fault in seen.faults]
    open_steps = sorted({draw["step"] for draw in draws if draw["source"] == ROLLOUTS})
    if open_steps and one.status != "done":
        which = f"step {open_steps[0]}" if len(open_steps) == 1 else f"steps {open_steps[0]} to {open_steps[-1]}"
        lines.append(f"open      the draws of {which} are in no checkpoint yet: a resume would take them again")
    return lines


def _epochs_in_words(seen: Epochs) -> str:
    """`3 of 5 examples, each exactly once; 3 of the next`"""
    if not seen.over:
        pool = f"of {seen.pool:,} examples" if seen.pool else "examples, all different"
        return f"the first is under way: {seen.open:,} {pool}, so far"
    each = "not all with each exactly once" if seen.faults else "each exactly once"
    return f"{seen.over:,} of {seen.pool:,} examples, {each}" + (f"; {seen.open:,} of the next" if seen.open else "")
