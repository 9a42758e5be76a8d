"""`hone plan @ config`: what a run will do, take and cost."""

from __future__ import annotations

import json
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from rich.console import Console
from rich.text import Text

from hone.commands.rl import with_mode
from hone.config.plan import PlanConfig
from hone.config.rl import RLConfig
from hone.errors import UserError
from hone.orchestrator.placement import visible_gpus
from hone.planning.calibration import DoesNotFit, calibrate
from hone.planning.calibration_result import Calibration
from hone.planning.calibration_words import measured_words
from hone.planning.data import look_at
from hone.planning.devices import Device, device_named, this_device
from hone.planning.missing import missing
from hone.planning.report import Plan, plan_of, words


def run(config: PlanConfig) -> int:
    """Prints the plan. Returns the exit code: 1 if the run doesn't fit into memory, by the plan or when it is tried."""
    _check_here(config)
    settings = config.run
    device = device_of(config)
    gpus = _gpus(config, device)
    plan = plan_of(settings, device, look_at(settings), gpus, config.usd_per_hour, config.on is None)
    if not config.as_json:
        tell(words(plan))
    measured = None
    if config.calibrate:
        try:
            measured = calibrated(config)
        except DoesNotFit as problem:
            print(
                json.dumps(plan.record() | {"fits": False, "failed": str(problem)}, indent=2)
                if config.as_json
                else problem
            )
            return 1
    fits = plan.fits if measured is None else measured.device_memory <= plan.room
    if config.as_json:
        more: dict[str, Any] = {} if measured is None else {"fits": fits, "calibration": measured.to_json()}
        more |= {"missing": missing(settings)}
        print(json.dumps(plan.record() | more, indent=2))
        return 0 if fits else 1
    if measured is not None:
        tell(measured_words(plan, measured, plan.usual.usd_per_hour if plan.usual else config.usd_per_hour))
    print(next_words(config, plan, fits))
    return 0 if fits else 1


def _check_here(config: PlanConfig) -> None:
    """UserError if what is to be measured is planned for another machine, or would be several processes."""
    if config.calibrate and (config.on is not None or (config.gpus or 1) > 1):
        flag = "--on" if config.on is not None else "--gpus"
        raise UserError(f"--calibrate measures this machine, and {flag} names others: leave out one of the two")


def _gpus(config: PlanConfig, device: Device) -> int:
    """How many are planned for: as many as are named, as are here for RL, or as the ranks of the trainer ask for."""
    settings, count = config.run, config.gpus
    if device.kind == "cpu":
        if (count or 1) > 1:
            raise UserError(f"--gpus {count} is for GPUs: name one with --on, such as --on h100")
        return 1
    if not isinstance(settings, RLConfig):
        return count or 1
    if count is None and config.on is None:
        count = max(1, len(visible_gpus())) if settings.model.device == "auto" or settings.mode == "split" else 1
    ranks = settings.trainer.ranks if settings.mode == "split" else 1
    if count is not None and ranks > count:
        raise UserError(
            f"trainer.ranks = {ranks}, but {count} GPU{'' if count == 1 else 's'}, and each rank needs its own: set "
            f"--trainer.ranks {count}"
        )
    return count or (ranks + 1 if ranks > 1 else 1)


def calibrated(config: PlanConfig) -> Calibration:
    """The run, measured."""
    with slow_words() as advance:
        settings = config.run
        return calibrate(with_mode(settings) if isinstance(settings, RLConfig) else settings, tell=advance)


@contextmanager
def slow_words() -> Iterator[Callable[[str], None]]:
    """Shows what is being done on standard error: in one line on a terminal, else every 5 s."""
    if sys.stderr.isatty():
        with Console(stderr=True).status("calibrating") as status:
            yield lambda words: status.update(f"calibrating: {words}")
        return
    shown = time.monotonic()

    def advance(words: str) -> None:
        nonlocal shown
        if time.monotonic() - shown > 5:
            shown = time.monotonic()
            print(f"calibrating: {words}", file=sys.stderr, flush=True)

    yield advance


def device_of(config: PlanConfig) -> Device:
    """The device that is planned for: the one that is named, else that of the run here."""
    if config.on is not None:
        return device_named(config.on)
    return this_device(config.run.model.device)


def tell(page: Iterable[tuple[str, list[str]]]) -> None:
    """Prints headings, each with its lines; what is too long for a line goes on below, further in."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    wrap = partial(textwrap.wrap, width=max(40, console.width), break_long_words=False, break_on_hyphens=False)
    for heading, lines in page:
        console.print(Text(heading, "bold"), soft_wrap=True)
        for line in lines:
            style = "bold red" if "does NOT fit" in line else ""
            for part in wrap(line, initial_indent="  ", subsequent_indent="      "):
                console.print(Text(part, style), soft_wrap=True)
        console.print()


def next_words(config: PlanConfig, plan: Plan, fits: bool) -> str:
    """What to do now."""
    if not fits:
        return "It does not fit: change a setting, and plan again."
    kind = "rl" if isinstance(plan.config, RLConfig) else "sft"
    absent = "; ".join(missing(plan.config))
    if config.on is not None:
        return f"Start it there with `hone {kind}` and the same files and flags." + (
            f" Here it could not start: {absent}." if absent else ""
        )
    if absent:
        return f"It can't start yet: {absent}. Then: `hone {kind}` with the same files and flags."
    if config.calibrate:
        return f"Start it: `hone {kind}` with the same files and flags."
    return f"Measure it with --calibrate (a minute), or start it: `hone {kind}` with the same files and flags."
