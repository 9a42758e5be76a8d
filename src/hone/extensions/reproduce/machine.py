"""Compares this machine with the one in a run's run.json: versions, hardware, threads, variables, sources.

Such differences can make a re-execution differ although nobody changed the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hone.config.rl import PROGRAM_ROLLOUTS, SAMPLED_BY, SCORED_BY
from hone.runs import opening as drift
from hone.runs import provenance

SOURCES = {
    "environment": "the task's module",
    "tokenizer": "the tokenizer",
    "data": "the data set",
    "taskset": "the taskset",
    "verifiers": "verifiers",
    "reasoning-gym": "reasoning-gym",
}
"""Names for the digests in run.json's `sources`. The initial model's digest is checked when the model is loaded."""


def this_machine() -> dict[str, Any]:
    here = {"numerics": provenance.NUMERICS, "versions": provenance.versions(), "hardware": provenance.hardware()}
    return here | {"threads": provenance.threads(), "variables": provenance.variables()}


def differences(
    first: Mapping[str, Any], second: Mapping[str, Any], second_name: str = "here", ranks: bool = True
) -> list[str]:
    """List facts that differ between two machines, such as `torch 2.11.0 (here 2.12.0)`; ranks only if `ranks`."""
    mine, theirs = first.get("sources", {}), second.get("sources", {})
    both = [name for name in SOURCES if name in mine and name in theirs]
    found = [entry for entry in drift.differences(first, second) if ranks or entry[0] != "ranks"]
    found += [(SOURCES[name], mine[name][:8], theirs[name][:8]) for name in both if mine[name] != theirs[name]]
    return [f"{name} {_format(one)} ({second_name} {_format(other)})" for name, one, other in found]


def _format(value: Any) -> str:
    return "none" if value is None else ", ".join(value) if isinstance(value, list) else str(value)


def inexact(info: Mapping[str, Any], step: int | None = None, sampling: bool = True) -> list[str]:
    """List recorded reasons why another run of the config may differ, each with its first step.

    With `step`, list only reasons up to that step, and leave out the teacher's scores, as they are recorded. If
    `sampling` is false, leave out reasons about a server or program that sampled.
    """
    entries = [entry for entry in info.get("inexact", []) if step is None or entry["step"] <= step]
    recorded = ((SCORED_BY,) if step is not None else ()) + (() if sampling else (SAMPLED_BY, PROGRAM_ROLLOUTS))
    counting = [entry for entry in entries if not entry["cause"].startswith(recorded)]
    return [f"{entry['cause']} (from step {entry['step']} on)" for entry in counting]


def sampled_by(info: Mapping[str, Any]) -> str | None:
    """Return the first recorded sampler that can't be used again; None if there is none."""
    causes = (entry["cause"] for entry in info.get("inexact", []))
    return next((cause.removeprefix(SAMPLED_BY) for cause in causes if cause.startswith(SAMPLED_BY)), None)
