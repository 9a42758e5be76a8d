"""`hone diff A B`: the first step and the first quantity in which two runs part.

hone diff outputs/a outputs/b
"""

from __future__ import annotations

import shlex

from hone.commands.status import Status
from hone.config.reproduce import DiffConfig
from hone.errors import UserError
from hone.reproduce.differing import RunDiff, diff
from hone.runs import Run, provenance
from hone.runs.listing import find_run
from hone.runs.liveness import holder
from hone.runs.summary import standing
from hone.runs.words import refuse_interrupted

_SHOWN = 12
"""Settings that are listed."""


def run(config: DiffConfig) -> int:
    """Compares and reports; returns 0 if the runs are equal as far as both go, 1 if not, 3 if they need not be."""
    first, second = Run(find_run(config.a)), Run(find_run(config.b))
    for one in (first, second):
        refuse_interrupted(one.path)
    kinds = first.info["kind"], second.info["kind"]
    if kinds[0] != kinds[1] or kinds[0] not in ("rl", "sft"):
        raise UserError(
            f"{first.path} is a run of `hone {kinds[0]}` and {second.path} one of `hone {kinds[1]}`: name two runs of "
            "`hone rl`, or two of `hone sft`"
        )
    for name, one in (("A", first), ("B", second)):
        exact = "" if one.info.get("exact", True) else ", inexact"
        status = standing(one.info, holder(one.path))
        print(f"{name}             {one.path}: hone {one.info['kind']}, {status}{exact}, {one.info['id']}")
    made = [provenance.numerics(one.info) for one in (first, second)]
    if made[0] != made[1]:
        print(f"verdict       not comparable: A was made under numerics {made[0]}, B under numerics {made[1]}")
        return 3
    progress = Status()
    found = diff(first, second, lambda step: progress(f"comparing step {step}"))
    progress.clear()
    recorded = (
        "metrics and weights" if kinds[0] == "sft" else "examples, tokens, logprobs, rewards, metrics and weights"
    )
    for line in report(found, recorded):
        print(line)
    if found.difference is None:
        return 0
    if first.info.get("sources") and second.info.get("sources"):
        print(f"next          hone verify {shlex.quote(str(first.path))}   (does A do again what it recorded?)")
    return 1


def report(found: RunDiff, recorded: str) -> list[str]:
    """What was found, in lines. `recorded` names the quantities that runs of this kind record."""
    lines = []
    if found.settings:
        more = f", and {len(found.settings) - _SHOWN} more" if len(found.settings) > _SHOWN else ""
        lines += [f"{'config' if not i else '':<14}{setting}" for i, setting in enumerate(found.settings[:_SHOWN])]
        lines[-1] += more
    else:
        lines.append("config        the same in all that decides the numbers")
    lines.append(f"equal         {_span(found.equal)}")
    if found.difference is None:
        return [*lines, f"verdict       {_verdict(found, recorded)}"]
    lines.append(f"verdict       they part at {found.difference.sentence()}")
    causes = [f"config: {setting.name}" for setting in found.settings] + found.causes
    if causes:
        return [*lines, *(f"{'it may be' if not i else '':<14}{cause}" for i, cause in enumerate(causes))]
    return [*lines, "it may be     nothing that run.json tells: same config, versions, hardware and sources"]


def _span(steps: list[int]) -> str:
    """`steps 0 to 5`: equal steps are without gaps but for what a run did not record."""
    if not steps:
        return "no step"
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"


def _verdict(found: RunDiff, recorded: str) -> str:
    first, second = found.lengths
    what = f"equal in {recorded}"
    if first == second:
        return what
    longer = "A" if first > second else "B"
    return f"{what}, as far as both go; {longer} goes on to step {max(first, second) - 1}"
