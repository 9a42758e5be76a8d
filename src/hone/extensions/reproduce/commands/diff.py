"""`hone diff A B`: the first step and the first quantity that differ between two runs.

hone diff outputs/a outputs/b
"""

from __future__ import annotations

import shlex

from hone.commands.status import Status, print_labelled
from hone.errors import UserError
from hone.extensions.reproduce.config import DiffConfig
from hone.extensions.reproduce.diff import diff
from hone.runs import Run, provenance
from hone.runs.listing import find_run
from hone.runs.outputs import holder
from hone.runs.summary import refuse_interrupted, status_of

SHOWN = 12
"""Number of settings to list."""
RECORDED = {
    "sft": "metrics and weights",
    "rl": "examples, tokens, logprobs, rewards, metrics and weights",
}


def run(config: DiffConfig) -> int:
    """Compare two runs; return 0 if their common steps are equal, 1 if not, 3 if their numerics differ."""
    runs = [Run(find_run(config.a)), Run(find_run(config.b))]
    for one in runs:
        refuse_interrupted(one.path)
    first, second = runs
    kind, other = first.info["kind"], second.info["kind"]
    if kind != other or kind not in RECORDED:
        raise UserError(
            f"{first.path} is a run of `hone {kind}` and {second.path} one of `hone {other}`: name two runs of "
            "`hone rl`, or two of `hone sft`"
        )
    for name, one in zip("AB", runs, strict=True):
        reproducible = "" if one.info.get("exact", True) else ", not reproducible"
        status = status_of(one.info, holder(one.path))
        print_labelled(name, f"{one.path}: hone {kind}, {status}{reproducible}, {one.info['id']}")
    made = [provenance.numerics(one.info) for one in runs]
    if made[0] != made[1]:
        print_labelled("verdict", f"not comparable: A was made under numerics {made[0]}, B under numerics {made[1]}")
        return 3
    status = Status()
    found = diff(first, second, lambda step: status(f"comparing step {step}"))
    status.clear()
    settings = ["{}: {} in A, {} in B".format(one.name, *one.values) for one in found.settings]
    print_labelled("config", *(settings or ["no setting differs that affects the numbers"]), most=SHOWN)
    steps = found.equal  # without gaps except steps that a run did not record
    print_labelled("equal", f"steps {steps[0]} to {steps[-1]}" if steps else "no step")
    if found.difference is None:
        lengths = found.lengths
        longer = "A" if lengths[0] > lengths[1] else "B"
        rest = f", as far as both go; {longer} goes on to step {max(lengths) - 1}" if lengths[0] != lengths[1] else ""
        print_labelled("verdict", f"equal in {RECORDED[kind]}{rest}")
        return 0
    print_labelled("verdict", f"they first differ at {found.difference.sentence()}")
    causes = [*(f"config: {setting.name}" for setting in found.settings), *found.causes]
    nothing = "unknown: config, versions, hardware and sources are the same"
    print_labelled("it may be", *(causes or [nothing]))
    print_labelled("next", f"hone verify {shlex.quote(str(first.path))}   (can the steps of A be repeated?)")
    return 1
