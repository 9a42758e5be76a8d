"""`hone runs ledger RUN`: what became of every draw."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hone.commands.runs_list import table
from hone.config.runs import RunsLedgerConfig
from hone.errors import UserError
from hone.orchestrator.ledger import Entry
from hone.runs.draws import ROLLOUTS, Epochs, epochs, measures
from hone.runs.files import dumps
from hone.runs.listing import find_run
from hone.runs.reader import Run
from hone.runs.summary import Summary, summarize
from hone.runs.words import pool_in_words

ROWS = 40
"""Rows of the table where nothing is said."""


def run(config: RunsLedgerConfig) -> int:
    """Prints the draws and a summary. Returns 0, or 1 if an epoch did not have each example as it should."""
    one = summarize(find_run(config.run))
    if one.kind != "rl":
        raise UserError(f"{one.path} is a run of `hone {one.kind}`, which keeps no ledger: only RL draws examples")
    draws = Run(one.path).ledger()
    seen = whole_epochs(one, draws)
    wanted = [draw for draw in draws if config.state in (None, draw["state"]) and config.step in (None, draw["step"])]
    if config.jsonl:
        print_json(wanted, config.limit)
        return 0
    print_table(wanted, ROWS if config.limit is None else config.limit)
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
    names = {"draw": "draw", "step": "step", "example_id": "example", "state": "state", "tokens": "tokens"}
    names |= {"source": "from"}
    rows = [[str(draw[name]) for name in names] for draw in shown]
    head = list(names.values())
    if any("graded" in draw for draw in shown):
        head.insert(-1, "solved")
        for row, draw in zip(rows, shown, strict=True):
            row.insert(-1, f"{draw['solved']}/{draw['graded']}" if "graded" in draw else "")
    print("\n".join(table(rows, head)) + "\n")


def _last(draws: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    return draws[len(draws) - min(count, len(draws)) :]


def whole_epochs(one: Summary, draws: list[dict[str, Any]]) -> Epochs:
    """The run's epochs. Where a pool changes their size, the run's curriculum says which draws they have.

    Draws that it passed over since the newest checkpoint are put into `draws`: they are in no rollouts.
    """
    pool = one.info.get("pool")
    if not draws or pool is None or not measures(Run(one.path)):
        return epochs(draws, pool)
    from hone.config.rl import CurriculumConfig
    from hone.orchestrator.curriculum import Curriculum

    left_out = one.info.get("left_out", [])
    table = one.config["orchestrator"]["curriculum"]
    config = CurriculumConfig.model_validate(table)
    curriculum = Curriculum(pool + len(left_out), one.info["seed"], config, left_out)
    add_passed_over(draws)
    entries = [Entry(**{name: draw[name] for name in draw if name != "source"}) for draw in draws]
    try:
        walked = curriculum.restore(entries)
    except UserError as error:
        return Epochs(None, 0, len(draws), [str(error)])
    for draw, of_epoch in zip(draws, walked, strict=True):
        draw["example_id"] = curriculum.ids[of_epoch.index]
    *over, _ = sizes = curriculum.epoch_sizes
    left = len(draws) - sum(over)
    return Epochs(pool, len(over) + (left == sizes[-1]), left % sizes[-1], sizes=sizes, left=curriculum.metrics())


def add_passed_over(draws: list[dict[str, Any]]) -> None:
    """Puts in the draws whose numbers are missing, of an example that is not known yet."""
    for place in range(len(draws) - 1, 0, -1):
        before, after = draws[place - 1]["draw"], draws[place]
        missing = {"step": after["step"], "example_id": "", "state": "retired", "tokens": 0, "source": after["source"]}
        draws[place:place] = [{"draw": number} | missing for number in range(before + 1, after["draw"])]


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
    if pool := pool_in_words(seen.left):
        lines.append(f"pool      {pool}")
    lines += [f"          but {fault}" for fault in seen.faults]
    open_steps = sorted({draw["step"] for draw in draws if draw["source"] == ROLLOUTS})
    if open_steps and one.status != "done":
        which = f"step {open_steps[0]}" if len(open_steps) == 1 else f"steps {open_steps[0]} to {open_steps[-1]}"
        lines.append(f"open      the draws of {which} are in no checkpoint yet: a resume would take them again")
    return lines


def _epochs_in_words(seen: Epochs) -> str:
    """`3 of 5 examples, each exactly once; 3 of the next`"""
    if seen.sizes:
        return _epochs_of_pool(seen)
    if seen.faults and seen.pool is None:
        return "not known, for these are not the draws that the run's curriculum would make"
    if not seen.over:
        pool = f"of {seen.pool:,} examples" if seen.pool else "examples, all different"
        return f"the first is under way: {seen.open:,} {pool}, so far"
    each = "not all with each exactly once" if seen.faults else "each exactly once"
    return f"{seen.over:,} of {seen.pool:,} examples, {each}" + (f"; {seen.open:,} of the next" if seen.open else "")


def _epochs_of_pool(seen: Epochs) -> str:
    """`3 of 8, 6, 5 examples, each exactly once; 2 of the 5 of the next`"""
    over, under_way = seen.sizes[: seen.over], seen.sizes[seen.over :]
    told = (
        [f"{size:,}" for size in over] if len(over) <= 6 else [f"{over[0]:,}", f"{over[1]:,}", "...", f"{over[-1]:,}"]
    )
    if not over:
        return f"the first is under way: {seen.open:,} of {under_way[0]:,} examples, so far"
    text = f"{seen.over:,} of {', '.join(told)} examples, each exactly once"
    return text + (f"; {seen.open:,} of the {under_way[0]:,} of the next" if under_way else "")
