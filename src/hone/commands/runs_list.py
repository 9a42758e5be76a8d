"""`hone runs list [ROOT]`: the runs under a folder."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

from hone.config.runs import RunsListConfig
from hone.errors import UserError
from hone.runs.listing import find_runs, is_previous
from hone.runs.outputs import existing_run
from hone.runs.progress import duration
from hone.runs.summary import Summary, local_time, summarize
from hone.runs.words import held_out, latest, next_commands, standing

HINTS = 5
"""At most so many runs that could go on are named below the table."""


def run(config: RunsListConfig) -> int:
    """Prints the table, oldest run first. Returns 0."""
    found, hidden, damaged = [], [], []
    for path in find_runs(config.root):
        try:
            if existing_run(path) is None:
                continue  # a run.json of something else
            one = summarize(path)
        except UserError as error:
            damaged.append(str(error))
            continue
        damaged += one.damage
        shown = config.all or (one.kind != "eval" and not is_previous(path.relative_to(config.root)))
        (found if shown else hidden).append(one)
    found.sort(key=lambda one: one.info.get("started") or one.info.get("ended") or "")
    if found:
        print("\n".join(table([_cells(one, config.ids) for one in found], _header(config.ids))))
    else:
        print(f"No {'run' if config.all else 'training run'} under {config.root}.")
    notes = [_note(hidden, config.root)] if hidden else []
    notes += [f"damaged: {sentence}" for sentence in damaged] + _hints(found)
    if notes:
        print("\n" + "\n".join(notes))
    return 0


def _header(ids: bool) -> list[str]:
    return [
        "run",
        *(["id"] if ids else []),
        "kind",
        "status",
        "steps",
        "latest",
        "held out",
        "exact",
        "started",
        "took",
    ]


def _cells(one: Summary, ids: bool) -> list[str]:
    trains = one.kind != "eval"
    return [
        str(one.path),
        *([one.info["id"]] if ids else []),
        one.kind,
        one.status,
        f"{one.progress.done}/{one.progress.max_steps or '?'}" if trains else "-",
        latest(one) or "-",
        held_out(one) or "-",
        ("yes" if one.info["exact"] else "no") if trains else "-",
        local_time(one.info.get("started") or one.info.get("ended")),
        duration(one.seconds),
    ]


def table(rows: Iterable[list[str]], header: list[str]) -> list[str]:
    """Lines of aligned columns, two spaces between them."""
    rows = [header, *rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _note(hidden: list[Summary], root: Path) -> str:
    evaluations = sum(one.kind == "eval" for one in hidden)
    counts = [(evaluations, "evaluation"), (len(hidden) - evaluations, "earlier run")]
    words = [f"{count} {word}{'s' if count > 1 else ''}" for count, word in counts if count]
    return f"not shown: {' and '.join(words)} (hone runs list {shlex.quote(str(root))} --all)"


def _hints(found: list[Summary]) -> list[str]:
    """What to do about the newest runs that are at work or ended early."""
    lines = []
    for one in [one for one in found if one.status != "done"][-HINTS:]:
        lines.append(standing(one))
        lines += [f"    to {what}: {command}" for what, command in next_commands(one)]
    return lines
