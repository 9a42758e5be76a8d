"""What of this machine is not as it was for a run: what can make a re-execution differ although nobody changed the run.

Facts are those of run.json: package versions, processor, GPU, threads, variables that choose kernels, and digests of
what the run read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hone.orchestrator.exactness import SAMPLED_BY
from hone.runs import drift

SOURCES = {"environment": "the task's module", "tokenizer": "the tokenizer", "data": "the data set"}
SOURCES |= {"taskset": "the taskset", "verifiers": "verifiers", "reasoning-gym": "reasoning-gym"}
"""Digests of what a run reads, in run.json's `sources`, in words. The initial model's is checked where it is used."""


def differences(
    first: Mapping[str, Any], second: Mapping[str, Any], second_name: str = "here", ranks: bool = True
) -> list[str]:
    """Facts in which two machines differ, as `torch 2.11.0 (here 2.12.0)`; those that one doesn't know are left out.

    Without `ranks` so is their number, for a re-execution, which reckons with it.
    """
    mine, theirs = first.get("sources", {}), second.get("sources", {})
    both = [name for name in SOURCES if name in mine and name in theirs]
    found = [entry for entry in drift.differences(first, second) if ranks or entry[0] != "ranks"]
    found += [(SOURCES[name], mine[name][:8], theirs[name][:8]) for name in both if mine[name] != theirs[name]]
    return [f"{name} {_shown(one)} ({second_name} {_shown(other)})" for name, one, other in found]


def _shown(value: Any) -> str:
    return "none" if value is None else ", ".join(value) if isinstance(value, list) else str(value)


def inexact(info: Mapping[str, Any], step: int | None = None, sampling: bool = True) -> list[str]:
    """Why the run itself says that another run of its config may differ, and from which step on; up to `step`.

    `sampling`: whether that a server sampled is a reason, too.
    """
    entries = [entry for entry in info.get("inexact", []) if step is None or entry["step"] <= step]
    counting = [entry for entry in entries if sampling or not entry["cause"].startswith(SAMPLED_BY)]
    return [f"{entry['cause']} (from step {entry['step']} on)" for entry in counting]


def sampled_by(info: Mapping[str, Any]) -> str | None:
    """What sampled, in words, where the run says itself that it can't be had again: of several the first."""
    causes = (entry["cause"] for entry in info.get("inexact", []))
    return next((cause.removeprefix(SAMPLED_BY) for cause in causes if cause.startswith(SAMPLED_BY)), None)


def same_since(info: Mapping[str, Any]) -> int:
    """The first step that was taken with the settings of config.toml and the sources of run.json.

    A resume with --allow-drift changes them, for the steps from there on.
    """
    return max((entry["step"] for entry in info.get("drift", [])), default=0)
