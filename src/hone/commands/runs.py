"""`hone runs list | show | stop | continue | attach | ledger | predictions`: look at runs, and end one."""

from __future__ import annotations

import math
import os
import shlex
import shutil
import signal
import textwrap
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from hone.config import runs as configs
from hone.config.shared import BudgetConfig
from hone.errors import UserError
from hone.runs import predictions, summary
from hone.runs.alarms import OVER
from hone.runs.budget import in_words
from hone.runs.draws import Epochs, epochs, measures
from hone.runs.files import Rewound, dumps
from hone.runs.follow import follow
from hone.runs.listing import find_run, find_runs, is_previous
from hone.runs.outputs import ELSEWHERE, PAUSE_POLL, PAUSED, existing_run, holder
from hone.runs.predictions import Scored
from hone.runs.progress import duration
from hone.runs.reader import Run

HINTS = 5
"""At most so many runs that could go on are named below the list."""
INDENT = 13
"""Columns before the text of a page."""
POLL = 0.1
"""Seconds between two looks at a run's lock."""
SLACK = 10.0
"""Seconds that a run may take beyond its grace period before its end is called overdue."""
PATIENCE = 10 * PAUSE_POLL
"""Seconds within which a paused run has seen that it may go on."""
ROWS = 40
"""Draws in the table if no limit is given."""


def list_runs(config: configs.RunsListConfig) -> int:
    """Print the table of runs, oldest first. Returns 0."""
    shown: list[summary.Summary] = []
    notes: list[str] = []
    hidden = Counter()
    for path in find_runs(config.root):
        try:
            if existing_run(path) is None:
                continue  # a run.json of something else
            one = summary.summarize(path)
        except UserError as error:
            notes.append(f"damaged: {error}")
            continue
        notes += [f"damaged: {sentence}" for sentence in one.damage]
        if config.all or (one.kind != "eval" and not is_previous(path.relative_to(config.root))):
            shown.append(one)
        else:
            hidden["evaluation" if one.kind == "eval" else "earlier run"] += 1
    if hidden:
        counts = " and ".join(f"{count} {what}{'s' if count > 1 else ''}" for what, count in sorted(hidden.items()))
        notes.insert(0, f"not shown: {counts} (hone runs list {shlex.quote(str(config.root))} --all)")
    shown.sort(key=lambda one: one.info.get("started") or one.info.get("ended") or "")
    if shown:
        rows = [_cells(one) for one in shown]
        print("\n".join(table([[*row.values()] for row in rows], [*rows[0]], () if config.ids else ("id",))))
    else:
        print(f"No {'run' if config.all else 'training run'} under {config.root}.")
    for one in [one for one in shown if one.status != "done"][-HINTS:]:
        notes += [
            summary.status_text(one),
            *(f"    to {what}: {command}" for what, command in summary.next_commands(one)),
        ]
    if notes:
        print("\n" + "\n".join(notes))
    return 0


def _cells(one: summary.Summary) -> dict[str, str]:
    trains = one.kind != "eval"
    return {
        "run": str(one.path),
        "id": one.info["id"],
        "kind": one.kind,
        "status": one.status,
        "steps": f"{one.progress.done}/{one.progress.max_steps or '?'}" if trains else "-",
        "latest": summary.latest(one) or "-",
        "held out": summary.held_out(one) or "-",
        "reproducible": ("yes" if one.info["exact"] else "no") if trains else "-",
        "started": summary.local_time(one.info.get("started") or one.info.get("ended")),
        "took": duration(one.seconds),
    }


def table(rows: Iterable[list[str]], header: list[str], hide: Sequence[str] = ()) -> list[str]:
    """Return lines of aligned columns, two spaces between them, but for those to `hide`."""
    columns = [column for column in zip(header, *rows, strict=True) if column[0] not in hide]
    padded = [[cell.ljust(max(map(len, column))) for cell in column] for column in columns]
    return ["  ".join(cells).rstrip() for cells in zip(*padded, strict=True)]


def show(config: configs.RunsShowConfig) -> int:
    """Print a page on the run. Returns 0."""
    one = summary.summarize(find_run(config.run))
    width = max(min(shutil.get_terminal_size((120, 24)).columns, 120) - INDENT, 40)
    print(f"{summary.status_text(one)}\n")
    for label, texts in _page(one, config.events):
        lines = [w for t in texts for w in textwrap.wrap(t, width, break_long_words=False, break_on_hyphens=False)]
        for number, line in enumerate(lines):
            print(f"{'' if number else label:<{INDENT}}{line}")
    print()
    summary.print_next(one)
    return 0


def _page(one: summary.Summary, events: int) -> Iterator[tuple[str, Iterable[str]]]:
    """Yield the label and the texts of each part; empty texts leave the part out."""
    info, trains = one.info, one.kind != "eval"
    yield "id", [f"{info['id']} ({one.kind}{f' on {one.task}' if one.task else ''}, seed {info['seed']})"]
    yield "command", [summary.typed(info["command"], info.get("ranks", 1))]
    if settings := summary.settings_in_words(one):
        yield "settings", [", ".join(settings) + " (the rest are defaults)"]
    started, ended = summary.local_time(info.get("started")), summary.local_time(info.get("ended"))
    times = [started, f"ended {ended}" if ended else "", f"{duration(one.seconds)} of wall time"]
    yield "started", [", ".join(filter(None, times))]
    if parent := info.get("parent"):
        yield "parent", [f"step {parent['step']} of {parent['dir']} (run {parent['id']})"]
    yield "resumed", [f"at step {one['step']}, {summary.local_time(one['time'])}" for one in info.get("resumes", [])]
    yield "damaged", one.damage
    yield "failed", [str(info["failure"])] if info.get("failure") else []
    yield "machine", [summary.machine_in_words(info)]
    yield "code", [summary.code_in_words(info)]
    if not trains:
        yield "result", one.progress.evaluation()
        return
    causes = [f"{name}: {text}" for name, text in info.get("exactness", {}).items()]
    yield "reproducible", [summary.exactness(info), *causes]
    if one.progress.history:
        yield "latest", [f"step {one.progress.done}: {', '.join(one.progress.summary())}"]
    yield "pool", [summary.pool_in_words(one.progress.metrics)]
    yield "alarms", map(str, summary.alarms_in(Run(one.path).events()))
    yield "held out", [f"{line}, at step {one.progress.eval_step}" for line in one.progress.evaluation()]
    changed = predictions.problem(info, one.path)
    yield "predicted", [changed] if changed else predictions.in_words(info, one.path)
    yield "audit", [summary.audit_in_words(one.path)]
    for name, steps in (("checkpoints", one.checkpoints), ("weights", list(Run(one.path).weights()))):
        few = steps if len(steps) <= 6 else [*steps[:2], "...", *steps[-3:]]
        yield name, [f"{one.path / name}/step_N with N = {', '.join(map(str, few))}"] if steps else []
    if limits := one.config.get("budget"):
        budget = BudgetConfig.model_validate(limits)
        spent = replace(one.spent, usd=one.spent.usd_at(budget.usd_per_hour or 0.0))
        words = [in_words(name, spent, budget) for name in ("hours", "usd", "tokens") if name in limits]
        yield "budget", [", ".join(words)]
    others = [event for event in Run(one.path).events() if event.get("kind") not in ("alarm", OVER)]
    more = f"(the last {events} of {len(others)}: --events {len(others)} shows all)"
    lines = [summary.describe_event(event) for event in others[-events:]] if events else []
    yield "events", [*lines, more] if 0 < events < len(others) else lines
    yield "certificate", [summary.certificate_in_words(one.path)]


def stop(config: configs.RunsStopConfig) -> int:
    """End the run and wait for that. Returns 0; 130 if the user stops waiting."""
    path = find_run(config.run)
    one, pid = summary.summarize(path), holder(path)
    if pid is None:
        raise UserError(f"{summary.status_text(one)}: there is nothing to stop")
    if pid == ELSEWHERE:
        raise UserError(
            f"{path} is being written by a process of another machine, container or user: stop it there "
            f"(`hone runs stop` on that side, or SIGTERM)"
        )
    try:
        os.kill(pid, signal.SIGKILL if config.now else signal.SIGTERM)
    except ProcessLookupError:
        pass  # it has ended by itself meanwhile
    except PermissionError:
        raise UserError(f"process {pid}, which writes {path}, is another user's: only they can stop it") from None
    grace = one.config.get("grace_seconds", 25.0)
    if not config.now:
        print(f"Asked process {pid} to end: it finishes its step, in {grace:g} s at most, and saves.", flush=True)
    overdue = time.monotonic() + grace + SLACK
    try:
        while holder(path) is not None:
            time.sleep(POLL)
            if time.monotonic() > overdue:
                overdue = float("inf")
                print("It takes longer than its grace period. Ctrl-C stops waiting; --now kills it.", flush=True)
    except KeyboardInterrupt:
        print(f"\nNot waiting any longer; process {pid} still ends when it has saved.")
        return 130
    ended = summary.summarize(path)
    print(summary.status_text(ended))
    kept = ended.checkpoints[-1] if ended.checkpoints else 0
    again = ended.progress.done - kept
    if ended.status not in ("done", "stopped", "budget") and again > 0:
        where = f"since checkpoint step_{kept}" if kept else "for it has no checkpoint"
        print(f"{again} step{'s' if again > 1 else ''} will be taken again, {where}.")
    summary.print_next(ended)
    return 0


def go_on(config: configs.RunsContinueConfig) -> int:
    """Delete the file that a paused run waits for. Returns 0."""
    path = find_run(config.run)
    one = summary.summarize(path)
    if one.status != "paused":
        commands = summary.next_commands(one) if one.status == summary.KILLED else []  # it was killed in its pause
        instead = f"; to {commands[0][0]}: {commands[0][1]}" if commands else ""
        raise UserError(f"{summary.status_text(one)}: it is not paused{instead}")
    (path / PAUSED).unlink(missing_ok=True)
    print(f"{path} goes on with step {one.progress.current + 1} of {one.progress.max_steps}.", flush=True)
    until = time.monotonic() + PATIENCE
    while (one := summary.summarize(path)).status == "paused" and time.monotonic() < until:
        time.sleep(PAUSE_POLL / 5)
    summary.print_next(one)
    return 0


def attach(config: configs.RunsAttachConfig) -> int:
    """Show the run until it ends, then how it ended; of one that has ended, its last state. Returns 0."""
    path = find_run(config.run)
    one = summary.summarize(path)
    last = summary.numbers(one) if one.status != "running" else []
    try:
        while one.status == "running":
            print(summary.status_text(one), flush=True)
            try:
                follow(one, config.display)
            except Rewound:
                print("A resume has rolled the run back.", flush=True)
            one = summary.summarize(path)
    except KeyboardInterrupt:
        print(f"\nNot watching any more; {path} goes on. To end it: hone runs stop {shlex.quote(str(path))}")
        return 0
    print("\n".join([summary.status_text(one), *last]))
    summary.print_next(one)
    return 0


def ledger(config: configs.RunsLedgerConfig) -> int:
    """Print the draws of an RL run and a summary. Returns 0, or 1 if an epoch was not whole."""
    one = summary.summarize(find_run(config.run))
    if one.kind != "rl":
        raise UserError(f"{one.path} is a run of `hone {one.kind}`, which keeps no ledger: only RL draws examples")
    draws = Run(one.path).ledger()
    wanted = [draw for draw in draws if config.state in (None, draw["state"]) and config.step in (None, draw["step"])]
    limit = config.limit if config.limit is not None else len(wanted) if config.jsonl else ROWS
    shown = wanted[max(len(wanted) - limit, 0) :]
    if config.jsonl:
        print("".join(dumps(draw) + "\n" for draw in shown), end="")
        return 0
    if not draws:
        print(f"{one.path} has drawn nothing yet")
        return 0
    if shown:
        if left := len(wanted) - len(shown):
            print(f"({left:,} earlier draw{'s' if left > 1 else ''}: --limit {len(wanted)} shows all)")
        header = ["draw", "step", "example", "state", "tokens", "solved", "from"]
        rows = [[str(draw[name]) for name in ("draw", "step", "example_id", "state", "tokens")] for draw in shown]
        for row, draw in zip(rows, shown, strict=True):
            row += [f"{draw['solved']}/{draw['graded']}" if "graded" in draw else "", draw["source"]]
        measured = any("graded" in draw for draw in shown)
        print("\n".join(table(rows, header, () if measured else ("solved",))) + "\n")
    counts, steps = Counter(draw["state"] for draw in draws), draws[-1]["step"] - draws[0]["step"] + 1
    states = ", ".join(f"{count:,} {state}" for state, count in sorted(counts.items(), reverse=True))
    print(f"draws     {len(draws):,} in {steps:,} step{'s' if steps > 1 else ''}: {states}")
    print(f"tokens    {sum(draw['tokens'] for draw in draws):,}, prompts and completions")
    if measures(Run(one.path)):
        print("epochs    not counted: the curriculum chooses what is drawn")
        print(f"pool      {summary.pool_in_words(one.progress.metrics) or 'all prompts'}")
        return 0
    seen = epochs(draws, one.info.get("pool"))
    print("\n".join([f"epochs    {_epochs_in_words(seen)}", *(f"          but {fault}" for fault in seen.faults)]))
    return 1 if seen.faults else 0


def _epochs_in_words(seen: Epochs) -> str:
    """Return `3 of 5 examples, each exactly once; 3 of the next`"""
    if not seen.over:
        pool = f"of {seen.pool:,} examples" if seen.pool else "examples, all different"
        return f"the first is under way: {seen.open:,} {pool}, so far"
    each = "not all with each exactly once" if seen.faults else "each exactly once"
    return f"{seen.over:,} of {seen.pool:,} examples, {each}" + (f"; {seen.open:,} of the next" if seen.open else "")


def score_predictions(config: configs.RunsPredictionsConfig) -> int:
    """Print the predictions of all runs, oldest first, their scores and their calibration. Returns 0."""
    rows: list[tuple[Path, dict[str, Any], Scored]] = []
    counted: set[str] = set()
    left_out = []
    for path in find_runs(config.root):
        try:
            info = existing_run(path)
            if info is None or info["kind"] == "eval" or info["id"] in counted:
                continue
            if damage := predictions.problem(info, path):
                left_out.append(f"changed, and left out: {path}: {damage}")
                continue
            rows += [(path, info, one) for one in predictions.score(info, path)]
            counted.add(info["id"])  # a run may have been copied
        except UserError as error:
            left_out.append(f"left out: {error}")
    rows.sort(key=lambda row: row[1][predictions.KEY]["made"])
    if config.jsonl:
        for path, info, one in rows:
            facts = {"run": str(path), "id": info["id"], "made": info[predictions.KEY]["made"]} | asdict(one.prediction)
            value = one.value if one.value is not None and math.isfinite(one.value) else None
            print(dumps(facts | {"outcome": one.outcome, "value": value, "brier": one.brier, "why": one.why}))
        return 0
    if not rows and not left_out:
        print(f"No run under {config.root} has predictions: make some with `hone rl --predict`.")
        return 0
    known = [one for _, _, one in rows if one.outcome is not None]
    if rows:
        cells = [
            [
                str(path),
                one.prediction.statement,
                f"{one.prediction.p:g}",
                predictions.word(one.outcome),
                "-" if one.value is None else f"{one.value:.6g}",
                "-" if one.brier is None else f"{one.brier:.4f}",
            ]
            for path, _, one in rows
        ]
        print("\n".join(table(cells, ["run", "prediction", "probability", "outcome", "value", "Brier"])) + "\n")
    if known:
        rate = fmean(bool(one.outcome) for one in known)
        brier = fmean((one.prediction.p - bool(one.outcome)) ** 2 for one in known)
        print(f"Brier score of {len(known)} decided: {brier:.4f} (0 is perfect; lower is better)")
        print(f"    always 0.5:  0.2500\n    always the share that came true ({rate:.2f}):  {rate * (1 - rate):.4f}\n")
        print("\n".join(table(_calibration(known), ["probability", "mean", "came true", "95 % interval", "n", ""])))
    if undecided := len(rows) - len(known):
        print(f"{undecided} undecided: a run that goes on decides them (hone runs list says how).")
    if left_out:
        print("\n".join(left_out))
    return 0


def _calibration(known: list[Scored]) -> Iterator[list[str]]:
    """Yield a row for each tenth of the stated probability: its mean, the share that came true with Wilson's interval,
    how many there are, and a word if the mean lies outside.
    """
    from hone.evaluation.intervals import wilson

    for tenth in range(10):
        inside = [one for one in known if min(int(10 * one.prediction.p + 1e-9), 9) == tenth]
        if not inside:
            continue
        true, mean = sum(bool(one.outcome) for one in inside), fmean(one.prediction.p for one in inside)
        interval = wilson(true, len(inside))
        word = "too high" if mean > interval.high else "too low" if mean < interval.low else ""
        yield [
            f"{tenth / 10:.1f} to {(tenth + 1) / 10:.1f}",
            f"{mean:.2f}",
            f"{true / len(inside):.2f}",
            f"{interval.low:.2f} to {interval.high:.2f}",
            str(len(inside)),
            word and f"predicted {word}",
        ]
