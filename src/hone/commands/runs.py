"""`hone runs list | show | stop | continue | attach | ledger | rm`: show, end or delete runs."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from hone.commands.status import print_json, print_table
from hone.config import runs as configs
from hone.config.shared import BudgetConfig
from hone.errors import UserError
from hone.extension import gathered
from hone.runs import summary, view
from hone.runs.budget import in_words
from hone.runs.files import dumps
from hone.runs.follow import follow
from hone.runs.listing import count_text, find_run, find_runs, is_previous
from hone.runs.outputs import ELSEWHERE, delete_run, holder, size_of_run
from hone.runs.progress import duration
from hone.runs.reader import Run
from hone.runs.view import OVER

HINTS = 5
"""Most unfinished runs to print commands for, below the list."""
INDENT = 13
POLL = 0.1
"""Seconds between checks that the run has ended."""
SLACK = 10.0
"""Seconds after the grace period before hone reports that the run is late."""
ROWS = 40


def list_runs(config: configs.RunsListConfig) -> int:
    shown: list[summary.Summary] = []
    notes: list[str] = []
    evaluations = previous = 0
    for path in find_runs(config.root):
        try:
            if view.existing_run(path) is None:
                continue  # run.json of another program
            one = summary.summarize(path)
        except UserError as error:
            notes.append(f"damaged: {error}")
            continue
        notes += [f"damaged: {sentence}" for sentence in one.damage]
        is_eval, is_earlier = one.kind == "eval", is_previous(path.relative_to(config.root))
        if config.all or not (is_eval or is_earlier):
            shown.append(one)
        else:
            evaluations, previous = evaluations + is_eval, previous + (is_earlier and not is_eval)
    if evaluations or previous:
        command = f"hone runs list {shlex.quote(str(config.root))} --all"
        notes.insert(0, f"{count_text(len(shown), evaluations, previous)}; all of them: {command}")
    shown.sort(key=lambda one: one.info.get("started") or one.info.get("ended") or "")
    print_table([_row(one, config.ids) for one in shown])
    if not shown:
        print(f"No {'run' if config.all else 'training run'} under {config.root}.")
    for one in [one for one in shown if one.status != "done"][-HINTS:]:
        commands = (f"    to {what}: {command}" for what, command in summary.next_commands(one))
        notes += [summary.status_text(one), *commands]
    if notes:
        print("\n" + "\n".join(notes))
    return 0


def _row(one: summary.Summary, with_id: bool) -> dict[str, str]:
    trains = one.kind != "eval"
    return {
        "run": str(one.path),
        **({"id": one.info["id"]} if with_id else {}),
        "kind": one.kind,
        "status": one.status,
        "steps": f"{one.progress.done}/{one.progress.max_steps or '?'}" if trains else "-",
        "latest": summary.latest(one) or "-",
        "held out": summary.held_out(one) or "-",
        "reproducible": ("yes" if one.info["exact"] else "no") if trains else "-",
        "started": summary.local_time(one.info.get("started") or one.info.get("ended")),
        "took": duration(one.seconds),
    }


def show(config: configs.RunsShowConfig) -> int:
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
    info, run = one.info, one.files
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
    yield "failed", [info.get("failure", "")]
    yield "machine", [summary.machine_in_words(info)]
    yield "code", [summary.code_in_words(info)]
    if one.kind == "eval":
        yield "result", one.progress.evaluation()
        return
    yield "examples", [info.get("profile", "")]
    yield "reproducible", [summary.exactness(info)]
    if one.progress.history:
        yield "latest", [f"step {one.progress.done}: {', '.join(one.progress.summary())}"]
    yield "pool", [summary.pool_in_words(one.progress.metrics)]
    yield "alarms", map(str, summary.alarms_in(run.events()))
    yield "held out", [f"{line}, at step {one.progress.eval_step}" for line in one.progress.evaluation()]
    for record in gathered("RECORDS", {}).values():
        yield record.event, record.in_words(info, one.path)
    yield "audit", [summary.audit_in_words(one.path)]
    for name, steps in ((view.CHECKPOINTS, run.checkpoint_steps()), (view.WEIGHTS, list(run.weights()))):
        few = steps if len(steps) <= 6 else [*steps[:2], "...", *steps[-3:]]
        yield name, [f"{one.path / name}/step_N with N = {', '.join(map(str, few))}"] if steps else []
    yield "best", [summary.best_checkpoint(one)]
    if limits := one.config.get("budget"):
        budget = BudgetConfig.model_validate(limits)
        spent = replace(one.spent, usd=one.spent.usd_at(budget.usd_per_hour or 0.0))
        yield "budget", [in_words(name, spent, budget) for name in ("hours", "usd", "tokens") if name in limits]
    others = [event for event in run.events() if event.get("kind") not in ("alarm", OVER)]
    yield "events", map(summary.describe_event, others[max(len(others) - events, 0) :])
    yield "certificate", [summary.certificate_in_words(one.path)]


def stop(config: configs.RunsStopConfig) -> int:
    path = find_run(config.run)
    one, pid = summary.summarize(path), holder(path)
    if pid is None:
        raise UserError(f"{summary.status_text(one)}: no process to stop")
    if pid == ELSEWHERE:
        raise UserError(
            f"{path} is being written by a process of another machine, container or user: stop the run "
            f"there (by `hone runs stop` or SIGTERM)"
        )
    try:
        os.kill(pid, signal.SIGKILL if config.now else signal.SIGTERM)
    except ProcessLookupError:
        pass  # it has ended meanwhile
    except PermissionError:
        raise UserError(f"process {pid} writes {path} and is another user's: only that user can stop it") from None
    grace = one.config.get("grace_seconds", 25.0)
    if not config.now:
        print(f"Asked process {pid} to end: it finishes its step within {grace:g} s, and saves.", flush=True)
    overdue = time.monotonic() + grace + SLACK
    while holder(path) is not None:
        time.sleep(POLL)
        if time.monotonic() > overdue:
            overdue = float("inf")
            print("The run takes longer than its grace period. Ctrl-C stops waiting; --now kills the run.", flush=True)
    ended = summary.summarize(path)
    print(summary.status_text(ended))
    summary.print_next(ended)
    return 0


def go_on(config: configs.RunsContinueConfig) -> int:
    path = find_run(config.run)
    one = summary.summarize(path)
    if one.status != "paused":
        raise UserError(f"{summary.status_text(one)}: it is not paused")
    (path / view.PAUSED).unlink(missing_ok=True)
    print(f"{path} goes on with step {one.progress.current + 1} of {one.progress.max_steps}.")
    return 0


def remove(config: configs.RunsRmConfig) -> int:
    path = find_run(config.run)
    info = view.existing_run(path)
    if info is None:
        raise UserError(f"{path} is not a run of hone: nothing was deleted")
    if holder(path) is not None:
        raise UserError(f"a process is writing {path}: end it first with hone runs stop {shlex.quote(str(path))}")
    if not config.yes:
        if not sys.stdin.isatty():
            raise UserError(f"deleting {path} needs a terminal to confirm: add --yes")
        gib = size_of_run(path) / 2**30
        # not by `input`, which writes past sys.stdout on a terminal
        what = f"Delete {path} ({info['kind']}, {info['status']}, {info['id']}, {gib:.2f} GiB)? [y/N] "
        print(what, end="", flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            print("Nothing was deleted.")
            return 1
    delete_run(path)
    print(f"Deleted {path}" + (", except other files in it." if path.exists() else "."))
    return 0


def attach(config: configs.RunsAttachConfig) -> int:
    path = find_run(config.run)
    one = summary.summarize(path)
    last = summary.numbers(one) if one.status != "running" else []
    try:
        while one.status == "running":
            print(summary.status_text(one), flush=True)
            with contextlib.suppress(view.Rewound):  # a resume: follow from its step
                follow(one, config.display)
            one = summary.summarize(path)
    except KeyboardInterrupt:
        print(f"\nStopped watching; {path} goes on. To end it: hone runs stop {shlex.quote(str(path))}")
        return 0
    print("\n".join([summary.status_text(one), *last]))
    summary.print_next(one)
    return 0


def ledger(config: configs.RunsLedgerConfig) -> int:
    one = summary.summarize(find_run(config.run))
    if one.kind != "rl":
        raise UserError(f"{one.path} is a run of `hone {one.kind}`, which has no ledger: only RL runs have one")
    run = Run(one.path)
    draws = run.ledger()
    wanted = [draw for draw in draws if config.state in (None, draw["state"]) and config.step in (None, draw["step"])]
    limit = config.limit if config.limit is not None else len(wanted) if config.jsonl else ROWS
    shown = wanted[max(len(wanted) - limit, 0) :]
    if config.jsonl:
        for draw in shown:
            print_json(dumps(draw))
        return 0
    if shown and len(shown) < len(wanted):
        print(f"({len(wanted) - len(shown):,} earlier draws: --limit {len(wanted)} shows all)")
    measured, rows = any("graded" in draw for draw in shown), []
    for draw in shown:
        row = {name: str(draw[name]) for name in ("draw", "step", "example_id", "state", "tokens")}
        if measured:
            row["solved"] = f"{draw['solved']}/{draw['graded']}" if "graded" in draw else ""
        rows.append(row | ({"env": draw["env"]} if "env" in draw else {}) | {"from": draw["source"]})
    print_table(rows)
    states = Counter(draw["state"] for draw in draws)
    counts = ", ".join(f"{count:,} {state}" for state, count in sorted(states.items(), reverse=True))
    print(f"\ndraws     {len(draws):,} in {len({draw['step'] for draw in draws}):,} steps: {counts or 'none'}")
    print(f"tokens    {sum(draw['tokens'] for draw in draws):,}, prompts and completions")
    if pool := summary.pool_in_words(one.progress.metrics):
        print(f"pool      {pool}")
    return 0
