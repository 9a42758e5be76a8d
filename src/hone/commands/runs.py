"""`hone runs list | show | stop | continue | attach | ledger | predictions`: look at runs, and end one."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hone.config import runs as configs
from hone.config.base import BaseConfig
from hone.config.shared import BudgetConfig
from hone.errors import UserError
from hone.runs import predictions
from hone.runs.alarms import OVER
from hone.runs.budget import in_words
from hone.runs.draws import ROLLOUTS, Epochs, epochs, measures
from hone.runs.files import Rewound, dumps
from hone.runs.follow import follow
from hone.runs.listing import find_run, find_runs, is_previous
from hone.runs.outputs import ELSEWHERE, PAUSE_POLL, PAUSED, existing_run, holder
from hone.runs.progress import duration
from hone.runs.reader import Run
from hone.runs.summary import (
    KILLED,
    Summary,
    alarms_in,
    audit_in_words,
    certificate_in_words,
    code_in_words,
    describe_event,
    exactness,
    held_out,
    latest,
    local_time,
    machine_in_words,
    next_commands,
    numbers,
    pool_in_words,
    print_next,
    settings_in_words,
    status_text,
    summarize,
    typed,
)

if TYPE_CHECKING:
    from hone.viewer.predictions import Row

HINTS = 5
"""At most so many runs that could go on are named below the list."""
INDENT = 13
"""Columns before the text of a page."""
POLL = 0.1
"""Seconds between two looks at a run's lock."""
TELL = 5.0
"""Seconds between two lines about the waiting, where they can't be drawn over one another."""
SLACK = 10.0
"""Seconds that a run may take beyond its grace period before its end is called overdue."""
PATIENCE = 10 * PAUSE_POLL
"""Seconds within which a paused run has seen that it may go on."""
ROWS = 40
"""Draws in the table if no limit is given."""
SURPRISES = 3
"""At most so many predictions are named as best, and as furthest off."""


def run(config: BaseConfig) -> int:
    """Run the command of this config; return its exit code."""
    return COMMANDS[type(config)](config)


def list_runs(config: configs.RunsListConfig) -> int:
    """Print the table of runs, oldest first. Returns 0."""
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
        rows = [_cells(one) for one in found]
        print("\n".join(table([[*row.values()] for row in rows], [*rows[0]], () if config.ids else ("id",))))
    else:
        print(f"No {'run' if config.all else 'training run'} under {config.root}.")
    notes = [_hidden(hidden, config.root)] if hidden else []
    notes += [f"damaged: {sentence}" for sentence in damaged]
    for one in [one for one in found if one.status != "done"][-HINTS:]:
        notes += [status_text(one), *(f"    to {what}: {command}" for what, command in next_commands(one))]
    if notes:
        print("\n" + "\n".join(notes))
    return 0


def _cells(one: Summary) -> dict[str, str]:
    trains = one.kind != "eval"
    return {
        "run": str(one.path),
        "id": one.info["id"],
        "kind": one.kind,
        "status": one.status,
        "steps": f"{one.progress.done}/{one.progress.max_steps or '?'}" if trains else "-",
        "latest": latest(one) or "-",
        "held out": held_out(one) or "-",
        "exact": ("yes" if one.info["exact"] else "no") if trains else "-",
        "started": local_time(one.info.get("started") or one.info.get("ended")),
        "took": duration(one.seconds),
    }


def table(rows: Iterable[list[str]], header: list[str], hide: Sequence[str] = ()) -> list[str]:
    """Return lines of aligned columns, two spaces between them, but for those to `hide`."""
    columns = [column for column in zip(header, *rows, strict=True) if column[0] not in hide]
    padded = [[cell.ljust(max(map(len, column))) for cell in column] for column in columns]
    return ["  ".join(cells).rstrip() for cells in zip(*padded, strict=True)]


def _hidden(hidden: list[Summary], root: Path) -> str:
    evaluations = sum(one.kind == "eval" for one in hidden)
    counts = [(evaluations, "evaluation"), (len(hidden) - evaluations, "earlier run")]
    words = [f"{count} {word}{'s' if count > 1 else ''}" for count, word in counts if count]
    return f"not shown: {' and '.join(words)} (hone runs list {shlex.quote(str(root))} --all)"


def show(config: configs.RunsShowConfig) -> int:
    """Print a page on the run. Returns 0."""
    one = summarize(find_run(config.run))
    width = min(shutil.get_terminal_size((120, 24)).columns, 120)
    print(f"{status_text(one)}\n")
    for label, texts in _page(one, config.events):
        for number, text in enumerate(texts):
            wrapped = textwrap.wrap(text, max(width - INDENT, 40), break_long_words=False, break_on_hyphens=False)
            for place, line in enumerate(wrapped):
                print(f"{'' if number or place else label:<{INDENT}}{line}")
    print()
    print_next(one)
    return 0


def _page(one: Summary, events: int) -> Iterator[tuple[str, Iterable[str]]]:
    """Yield the label and the texts of each part; empty texts leave the part out."""
    info, trains = one.info, one.kind != "eval"
    yield "id", [f"{info['id']} ({one.kind}{f' on {one.task}' if one.task else ''}, seed {info['seed']})"]
    yield "command", [typed(info["command"])]
    if settings := settings_in_words(one):
        yield "settings", [", ".join(settings) + " (the rest are defaults)"]
    started, ended = local_time(info.get("started")), local_time(info.get("ended"))
    times = [started, f"ended {ended}" if ended else "", f"{duration(one.seconds)} of wall time"]
    yield "started", [", ".join(filter(None, times))]
    if parent := info.get("parent"):
        yield "parent", [f"step {parent['step']} of {parent['dir']} (run {parent['id']})"]
    for resume in info.get("resumes", []):
        yield "resumed", [f"at step {resume['step']}, {local_time(resume['time'])}"]
    yield "damaged", one.damage
    yield "failed", [str(info["failure"])] if info.get("failure") else []
    yield "machine", [machine_in_words(info)]
    yield "code", [code_in_words(info)]
    if not trains:
        yield "result", one.progress.evaluation()
        return
    yield "exact", [exactness(info), *(f"{name}: {text}" for name, text in info.get("exactness", {}).items())]
    if one.progress.history:
        yield "latest", [f"step {one.progress.done}: {', '.join(one.progress.summary())}"]
    yield "pool", [pool_in_words(one.progress.metrics)]
    yield "alarms", map(str, alarms_in(Run(one.path).events()))
    for line in one.progress.evaluation():
        yield "held out", [f"{line}, at step {one.progress.eval_step}"]
    changed = predictions.problem(info, one.path)
    yield "predicted", [changed] if changed else predictions.in_words(info, one.path)
    yield "audit", [audit_in_words(one.path)]
    for name, steps in (("checkpoints", one.checkpoints), ("weights", list(Run(one.path).weights()))):
        shown = steps if len(steps) <= 6 else [*steps[:2], "...", *steps[-3:]]
        if steps or name == "checkpoints":
            where = f"{one.path / name}/step_N with N = {', '.join(map(str, shown))}"
            yield name, [where if steps else "none"]
    if limits := one.config.get("budget"):
        budget = BudgetConfig.model_validate(limits)
        spent = replace(one.spent, usd=one.spent.usd_at(budget.usd_per_hour or 0.0))
        yield (
            "budget",
            [", ".join(in_words(name, spent, budget) for name in ("hours", "usd", "tokens") if name in limits)],
        )
    others = [event for event in Run(one.path).events() if event.get("kind") not in ("alarm", OVER)]
    more = f"(the last {events} of {len(others)}: --events {len(others)} shows all)"
    yield "events", map(describe_event, others[-events:] if events else [])
    yield "", [more] if 0 < events < len(others) else []
    yield "certificate", [certificate_in_words(one.path)]


def stop(config: configs.RunsStopConfig) -> int:
    """End the run and wait for that. Returns 0; 130 if the user stops waiting."""
    path = find_run(config.run)
    one = summarize(path)
    if holder(path) is None:
        raise UserError(f"{status_text(one)}: there is nothing to stop")
    pid = send(path, signal.SIGKILL if config.now else signal.SIGTERM)
    if pid is not None:  # else it has ended by itself meanwhile
        grace = one.config.get("grace_seconds", 25.0)
        if not config.now:
            print(f"Asked process {pid} to end: it finishes its step, in {grace:g} s at most, and saves.", flush=True)
        try:
            wait(path, grace)
        except KeyboardInterrupt:
            print(f"\nNot waiting any longer; process {pid} still ends when it has saved.")
            return 130
    ended = summarize(path)
    print(status_text(ended))
    kept = ended.checkpoints[-1] if ended.checkpoints else 0
    again = ended.progress.done - kept
    if ended.status not in ("done", "stopped", "budget") and again > 0:
        where = f"since checkpoint step_{kept}" if kept else "for it has no checkpoint"
        print(f"{again} step{'s' if again > 1 else ''} will be taken again, {where}.")
    print_next(ended)
    return 0


def send(path: Path, signum: int) -> int | None:
    """Send the signal to the process that holds the run's lock; return its id, or None if it has just ended.

    UserError if that process can't be named or is another user's.
    """
    pid = holder(path)
    if pid is None:
        return None
    if pid == ELSEWHERE:
        raise UserError(
            f"{path} is being written by a process of another machine, container or user: stop it there "
            f"(`hone runs stop` on that side, or SIGTERM)"
        )
    try:
        # With a handle the number can't come to mean another process between the question and the signal.
        handle = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
        try:
            if holder(path) != pid:
                return None
            if handle is None:
                os.kill(pid, signum)
            else:
                signal.pidfd_send_signal(handle, signum)
        finally:
            if handle is not None:
                os.close(handle)
    except ProcessLookupError:
        return None
    except PermissionError:
        raise UserError(f"process {pid}, which writes {path}, is another user's: only they can stop it") from None
    return pid


def wait(path: Path, grace: float) -> None:
    """Wait until no process writes the run any more; print every few seconds how long it has been."""
    began = printed = time.monotonic()
    overdue = False
    drawn = sys.stdout.isatty()
    while holder(path) is not None:
        time.sleep(POLL)
        now = time.monotonic()
        if drawn and now - began > 1:
            print(f"\rwaiting, {duration(now - began)} ", end="", flush=True)
        elif not drawn and now - printed > TELL:
            printed = now
            print(f"still at work after {now - began:.0f} s", flush=True)
        if not overdue and now - began > grace + SLACK:
            overdue = True
            newline = "\n" if drawn else ""
            print(f"{newline}It takes longer than its grace period. Ctrl-C stops waiting; --now kills it.", flush=True)
    if drawn:
        print("\r" + " " * 20 + "\r", end="", flush=True)


def go_on(config: configs.RunsContinueConfig) -> int:
    """Delete the file that a paused run waits for. Returns 0."""
    path = find_run(config.run)
    one = summarize(path)
    if one.status != "paused":
        commands = next_commands(one) if one.status == KILLED else []  # it was killed in its pause
        instead = f"; to {commands[0][0]}: {commands[0][1]}" if commands else ""
        raise UserError(f"{status_text(one)}: it is not paused{instead}")
    (path / PAUSED).unlink(missing_ok=True)
    print(f"{path} goes on with step {one.progress.current + 1} of {one.progress.max_steps}.", flush=True)
    until = time.monotonic() + PATIENCE
    while (one := summarize(path)).status == "paused" and time.monotonic() < until:
        time.sleep(PAUSE_POLL / 5)
    print_next(one)
    return 0


def attach(config: configs.RunsAttachConfig) -> int:
    """Show the run until it ends, then how it ended; of one that has ended, its last state. Returns 0."""
    path = find_run(config.run)
    one = summarize(path)
    if one.status != "running":
        print("\n".join([status_text(one), *numbers(one)]))
        print_next(one)
        return 0
    try:
        while one.status == "running":
            print(status_text(one), flush=True)
            try:
                follow(one, config.display)
            except Rewound:
                print("A resume has rolled the run back.", flush=True)
            one = summarize(path)
    except KeyboardInterrupt:
        print(f"\nNot watching any more; {path} goes on. To end it: hone runs stop {shlex.quote(str(path))}")
        return 0
    print(status_text(one))
    print_next(one)
    return 0


def ledger(config: configs.RunsLedgerConfig) -> int:
    """Print the draws of an RL run and a summary. Returns 0, or 1 if an epoch was not whole."""
    one = summarize(find_run(config.run))
    if one.kind != "rl":
        raise UserError(f"{one.path} is a run of `hone {one.kind}`, which keeps no ledger: only RL draws examples")
    draws = Run(one.path).ledger()
    seen = whole_epochs(one, draws)
    wanted = [draw for draw in draws if config.state in (None, draw["state"]) and config.step in (None, draw["step"])]
    limit = config.limit if config.limit is not None else len(wanted) if config.jsonl else ROWS
    shown = wanted[max(len(wanted) - limit, 0) :]
    if config.jsonl:
        print("".join(dumps(draw) + "\n" for draw in shown), end="")
        return 0
    if left := len(wanted) - len(shown) if shown else 0:
        print(f"({left:,} earlier draw{'s' if left > 1 else ''}: --limit {len(wanted)} shows all)")
    if shown:
        names = {"draw": "draw", "step": "step", "example_id": "example", "state": "state", "tokens": "tokens"}
        rows = [[str(draw[name]) for name in names] for draw in shown]
        for row, draw in zip(rows, shown, strict=True):
            row += [f"{draw['solved']}/{draw['graded']}" if "graded" in draw else "", draw["source"]]
        unmeasured = () if any("graded" in draw for draw in shown) else ("solved",)
        print("\n".join(table(rows, [*names.values(), "solved", "from"], unmeasured)) + "\n")
    print("\n".join(_ledger_summary(one, draws, seen)))
    return 1 if seen.faults else 0


def whole_epochs(one: Summary, draws: list[dict[str, Any]]) -> Epochs:
    """Return the run's epochs. Where a pool changes their size, the run's curriculum says which draws they have.

    Draws that it passed over since the newest checkpoint are put into `draws`: they are in no rollouts.
    """
    pool = one.info.get("pool")
    if not draws or pool is None or not measures(Run(one.path)):
        return epochs(draws, pool)
    from hone.config.rl import CurriculumConfig
    from hone.orchestrator.curriculum import Curriculum
    from hone.orchestrator.ledger import Entry

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
    """Put in the draws whose numbers are missing, of an example that is not known yet."""
    for place in range(len(draws) - 1, 0, -1):
        before, after = draws[place - 1]["draw"], draws[place]
        missing = {"step": after["step"], "example_id": "", "state": "retired", "tokens": 0, "source": after["source"]}
        draws[place:place] = [{"draw": number} | missing for number in range(before + 1, after["draw"])]


def _ledger_summary(one: Summary, draws: list[dict[str, Any]], seen: Epochs) -> list[str]:
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
    """Return `3 of 5 examples, each exactly once; 3 of the next`"""
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
    """Return `3 of 8, 6, 5 examples, each exactly once; 2 of the 5 of the next`."""
    over, under_way = seen.sizes[: seen.over], seen.sizes[seen.over :]
    shown = [f"{size:,}" for size in over]
    shown = shown if len(over) <= 6 else [*shown[:2], "...", shown[-1]]
    if not over:
        return f"the first is under way: {seen.open:,} of {under_way[0]:,} examples, so far"
    text = f"{seen.over:,} of {', '.join(shown)} examples, each exactly once"
    return text + (f"; {seen.open:,} of the {under_way[0]:,} of the next" if under_way else "")


def score_predictions(config: configs.RunsPredictionsConfig) -> int:
    """Print the predictions of all runs, and their scores. Returns 0."""
    from hone.viewer.predictions import found

    rows, left_out = found(config.root)
    if config.jsonl:
        for row in rows:
            print(dumps(row.facts()))
        return 0
    if not rows and not left_out:
        print(f"No run under {config.root} has predictions: make some with `hone rl --predict`.")
        return 0
    print("\n".join(_prediction_report(rows, left_out)))
    return 0


def _prediction_report(rows: Sequence[Row], left_out: list[str]) -> Iterator[str]:
    if rows:
        yield from table(map(_prediction_cells, rows), ["run", "prediction", "said p", "outcome", "value", "Brier"])
    known = [row for row in rows if row.scored.outcome is not None]
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


def _prediction_cells(row: Row) -> list[str]:
    one = row.scored
    value = "-" if one.value is None else f"{one.value:.6g}"
    brier = "-" if one.brier is None else f"{one.brier:.4f}"
    return [
        str(row.run),
        one.prediction.statement,
        f"{one.prediction.p:g}",
        predictions.word(one.outcome),
        value,
        brier,
    ]


def _overall(known: Sequence[Row]) -> Iterator[str]:
    from hone.viewer.predictions import overall

    brier, rate = overall([row.scored for row in known])
    yield f"Brier score of {len(known)} decided: {brier:.4f}"
    yield f"    always saying 0.5:  0.2500\n    always the share that came true ({rate:.2f}):  {rate * (1 - rate):.4f}"
    yield "It is the mean of (p - o)², o = 1 for what came true and 0 for what did not: lower is better, 0 is perfect."


def _calibration(known: Sequence[Row]) -> list[str]:
    from hone.viewer.predictions import calibration

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
    """Yield the ones that were furthest off, and those that were most boldly right."""
    by_score = sorted(known, key=lambda row: row.scored.brier or 0.0)
    wrong = [row for row in reversed(by_score) if (row.scored.brier or 0.0) > 0.25][:SURPRISES]
    right = [row for row in by_score if (row.scored.brier or 0.0) < 0.25][:SURPRISES]
    for title, rows in (("furthest off", wrong), ("best", right)):
        for number, row in enumerate(rows):
            label = title if number == 0 else ""
            one = row.scored
            yield f"{label:<13}{one.prediction} was {predictions.word(one.outcome)} ({one.value:.6g}), in {row.run}"


COMMANDS: dict[type[BaseConfig], Any] = {
    configs.RunsListConfig: list_runs,
    configs.RunsShowConfig: show,
    configs.RunsStopConfig: stop,
    configs.RunsContinueConfig: go_on,
    configs.RunsAttachConfig: attach,
    configs.RunsLedgerConfig: ledger,
    configs.RunsPredictionsConfig: score_predictions,
}
