"""`hone plan @ config`: steps, memory, time and cost of a run. Exit code 1 if it doesn't fit into memory."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap

from hone.commands.rl import with_mode
from hone.config.base import flag
from hone.config.rl import RLConfig
from hone.errors import UserError
from hone.extensions.planning.advice import missing
from hone.extensions.planning.calibration import DoesNotFit, calibrate
from hone.extensions.planning.config import PlanConfig
from hone.extensions.planning.data import look_at
from hone.extensions.planning.devices import device_named, this_device
from hone.extensions.planning.report import Plan, measured_words, plan_of, words


def run(config: PlanConfig) -> int:
    """Print the plan. Return 1 if the run can't start, or doesn't fit into memory by plan or calibration; else 0."""
    if config.calibrate and config.on is not None:
        raise UserError("--calibrate measures this machine, and --on names another: leave out one of the two")
    settings, found, failed = config.run, None, None
    assert settings is not None
    if isinstance(settings, RLConfig):
        settings = with_mode(settings, config.on is None)
    if config.on is None:
        from hone.loops.machine import device_of

        device_of(settings.model.device)
    device = this_device(settings.model.device) if config.on is None else device_named(config.on)
    plan = plan_of(settings, device, look_at(settings), config.usd_per_hour, config.on is None)
    if not config.as_json:
        for heading, lines in words(plan):
            _print(heading, lines)
    refused = _refused(plan)
    fits = plan.fits and not refused
    if config.calibrate and not refused:
        print("calibrating: two steps of the run", file=sys.stderr, flush=True)
        try:
            found = calibrate(plan)
            fits = found.fits
        except DoesNotFit as problem:
            fits, failed = False, str(problem)
    absent = [*missing(settings).values()]
    if config.as_json:
        record = plan.record() | {"missing": absent, "refused": refused or None}
        if config.calibrate:
            record |= {"fits": fits, "calibration": found and found.record(), "failed": failed}
        print(json.dumps(record, indent=2))
        return 0 if fits else 1
    if found is not None:
        for heading, lines in measured_words(plan, found):
            _print(heading, lines)
    command = "rl" if isinstance(settings, RLConfig) else "sft"
    given = config.command_keys & config.model_fields_set
    flags = [flag((name,)) for name in type(config).model_fields if name in given]
    without = f", without {', '.join(flags)}" if flags else ""
    following = f"Start it: `hone {command}` with the same files and flags{without}."
    if not fits and refused:
        following = refused
    elif not fits:
        following = "It does not fit: change a setting, and plan again."
    elif absent:
        following = f"It can't start here yet: {'; '.join(absent)}.\nThen s{following[1:]}"
    print(failed or following)
    return 0 if fits else 1


def _refused(plan: Plan) -> str:
    """Return the reason, other than memory, why the run can't start; "" if it can start."""
    settings, shape, facts = plan.config, plan.shape, plan.facts
    lora, longest = settings.model.lora, max(facts.prompts, default=0)
    if shape and lora and lora.base == "4bit" and any(size % 2 for _, size in shape.linear_shapes):
        return 'It can\'t start: model.lora.base = "4bit" needs rows of even length: take "8bit"'
    if not isinstance(settings, RLConfig) or facts.estimated or longest < settings.seq_len:
        return ""
    return (
        f"It can't start: a prompt of {longest} tokens does not fit into seq_len = {settings.seq_len}. Raise seq_len."
    )


def _print(heading: str, lines: list[str]) -> None:
    width = max(40, shutil.get_terminal_size().columns) if sys.stdout.isatty() else 120
    wrapper = textwrap.TextWrapper(width, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False)
    wrapper.break_long_words = False
    print(heading)
    for line in lines:
        print(wrapper.fill(line))
    print()
