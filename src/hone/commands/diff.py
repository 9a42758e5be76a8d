"""`hone diff A B`: the first step and the first quantity in which two runs part.

hone diff outputs/a outputs/b
"""

from __future__ import annotations

import shlex

from hone.commands.status import Status
from hone.config.reproduce import DiffConfig
from hone.errors import UserError
from hone.reproduce.diff import RunDiff, diff
from hone.runs import Run, provenance
from hone.runs.listing import find_run
from hone.runs.outputs import holder
from hone.runs.summary import refuse_interrupted, status_of

SHOWN = 12
"""Settings that are listed."""
RECORDED = {
    "sft": "metrics and weights",
    "rl": "examples, tokens, logprobs, rewards, metrics and weights",
}


def run(config: DiffConfig) -> int:
    """Compare and report; return 0 if the runs are equal as far as both go, 1 if not, 3 if they need not be."""
    first, second = Run(find_run(config.a)), Run(find_run(config.b))
    for one in (first, second):
        refuse_interrupted(one.path)
    kinds = first.info["kind"], second.info["kind"]
    if kinds[0] != kinds[1] or kinds[0] not in RECORDED:
        raise UserError(
            f"{first.path} is a run of `hone {kinds[0]}` and {second.path} one of `hone {kinds[1]}`: name two runs of "
            "`hone rl`, or two of `hone sft`"
        )
    for name, one in (("A", first), ("B", second)):
        exact = "" if one.info.get("exact", True) else ", not reproducible"
        status = status_of(one.info, holder(one.path))
        print(f"{name}             {one.path}: hone {one.info['kind']}, {status}{exact}, {one.info['id']}")
    made = [provenance.numerics(one.info) for one in (first, second)]
    if made[0] != made[1]:
        print(f"verdict       not comparable: A was made under numerics {made[0]}, B under numerics {made[1]}")
        return 3
    progress = Status()
    found = diff(first, second, lambda step: progress(f"comparing step {step}"))
    progress.clear()
    for line in report(found, RECORDED[kinds[0]]):
        print(line)
    if found.difference is None:
        return 0
    print(f"next          hone verify {shlex.quote(str(first.path))}   (does A do again what it recorded?)")
    return 1


def report(found: RunDiff, recorded: str) -> list[str]:
    """Format what was found, in lines. `recorded` names the quantities that runs of this kind record."""
    if found.settings:
        lines = [f"{'' if i else 'config':<14}{setting}" for i, setting in enumerate(found.settings[:SHOWN])]
        lines[-1] += f", and {len(found.settings) - SHOWN} more" if len(found.settings) > SHOWN else ""
    else:
        lines = ["config        the same in all that decides the numbers"]
    steps = found.equal  # without gaps but for what a run did not record
    span = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}" if steps else "no step"
    lines.append(f"equal         {span}")
    if found.difference is None:
        first, second = found.lengths
        longer = f", as far as both go; {'A' if first > second else 'B'} goes on to step {max(first, second) - 1}"
        return [*lines, f"verdict       equal in {recorded}" + ("" if first == second else longer)]
    lines.append(f"verdict       they part at {found.difference.sentence()}")
    causes = [f"config: {setting.name}" for setting in found.settings] + found.causes
    causes = causes or ["nothing that run.json tells: same config, versions, hardware and sources"]
    return [*lines, *(f"{'' if i else 'it may be':<14}{cause}" for i, cause in enumerate(causes))]
