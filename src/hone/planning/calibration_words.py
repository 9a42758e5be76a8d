"""A calibration, in words and beside the plan that it checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hone.planning.calibration_result import Calibration
from hone.planning.report import Plan, duration, shares, size

_NAMES = {"sample": "sampling", "grade": "grading", "train": "training", "publish": "comparing", "record": "recording"}


def measured_words(plan: Plan, found: Calibration, usd_per_hour: float | None) -> Iterator[tuple[str, list[str]]]:
    """(heading, lines): memory, seconds of a step, the whole run, and what could not be measured."""
    yield f"Measured here in {duration(found.seconds)}", list(_words(plan, found, usd_per_hour))


def _words(plan: Plan, found: Calibration, usd_per_hour: float | None) -> Iterator[str]:
    worst = "with every completion as long as it may be" if found.kind == "rl" else "with the longest examples"
    estimate = f" (the plan above says {size(plan.memory.total)})" if plan.memory else ""
    of_process = estimate if found.gpu_memory is None else ""
    if found.memory_sampled is not None:
        yield f"memory of the process: {size(found.memory_sampled)} at most, as lengths are now"
    peaks = found.peaks["at most"]
    stage = max(peaks, key=lambda name: peaks[name])
    yield f"memory of the process: {size(found.memory)} {worst}, most of it in {_NAMES.get(stage, stage)}{of_process}"
    if found.gpu_memory is not None:
        yield f"memory of the GPU that torch reserved: {size(found.gpu_memory)} at most{estimate}"
    if found.sampled:
        lengths = f", completions of {found.new_tokens:.0f} tokens" if found.new_tokens else ""
        steps = f"{found.taken} step{'s' if found.taken > 1 else ''}{lengths}"
        yield f"a step: {duration(found.step)} ({_shares(found.sampled)}), over {steps}"
    if found.at_most_now:
        why = ", for completions run to their limit" if found.at_limit else ""
        yield f"a step {worst}: no longer{why}"
    else:
        yield f"a step {worst}: {duration(found.longest_step)} ({_shares(found.longest)})"
    parts = {
        "start": found.start + found.first,
        "steps": found.steps * found.step,
        f"{found.evaluations} evaluations": found.evaluations * found.evaluation,
        f"{found.checkpoints} checkpoints": found.checkpoints * found.checkpoint,
        "end": found.end,
    }
    text = ", ".join(f"{name} {duration(seconds)}" for name, seconds in parts.items() if seconds > 0)
    longer = "" if found.at_most_now else f"; {duration(found.total_at_most)} {worst}"
    yield f"the run: {duration(found.total)} ({text}){longer}"
    if usd_per_hour is not None:
        yield f"cost: ${found.usd(usd_per_hour):,.2f} at ${usd_per_hour:,.2f} an hour"
    yield from found.notes


def _shares(phases: Mapping[str, float]) -> str:
    """`sampling 52 %, training 40 %, the rest 8 %`, in one order for all lines."""
    named = [*_NAMES, *sorted(phases.keys() - _NAMES.keys() - {"other"})]
    return shares({_NAMES.get(name, name): phases[name] for name in named if name in phases}, sum(phases.values()))
