"""What of this machine is not as it was for a run: what can make a re-execution differ although nobody changed the run.

Facts are those of run.json: package versions, processor, GPU, threads, variables that choose kernels, and digests of
what the run read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from hone.runs import drift

SOURCES = {"environment": "the task's module", "tokenizer": "the tokenizer", "data": "the data set"}
"""Digests of what a run reads, in run.json's `sources`, in words. The initial model's is checked where it is used."""
_SETTING = re.compile(r"(?:other|,) ([\w.]+) \(")
_NO_SETTINGS = {"threads", "data"}
"""Of these run.json has what they came to, whatever config.toml says."""


def differences(first: Mapping[str, Any], second: Mapping[str, Any], second_name: str = "here") -> list[str]:
    """Facts in which two machines differ, as `torch 2.11.0 (here 2.12.0)`; those that one doesn't know are left out."""
    mine, theirs = first.get("sources", {}), second.get("sources", {})
    both = [name for name in SOURCES if name in mine and name in theirs]
    found = drift.differences(first, second)
    found += [(SOURCES[name], mine[name][:8], theirs[name][:8]) for name in both if mine[name] != theirs[name]]
    return [f"{name} {_shown(one)} ({second_name} {_shown(other)})" for name, one, other in found]


def _shown(value: Any) -> str:
    return "none" if value is None else ", ".join(value) if isinstance(value, list) else str(value)


def inexact(info: Mapping[str, Any], step: int | None = None) -> list[str]:
    """Why the run itself says that another run of its config may differ, and from which step on; up to `step`."""
    entries = [entry for entry in info.get("inexact", []) if step is None or entry["step"] <= step]
    return [f"{entry['cause']} (from step {entry['step']} on)" for entry in entries]


def same_settings_since(info: Mapping[str, Any], sections: Collection[str]) -> int:
    """The first step that was taken with the settings of config.toml: a resume with --allow-drift can change them.

    `sections` are the names that a config has at its top.
    """
    steps = [0]
    for entry in info.get("inexact", []):
        names = _SETTING.findall(entry["cause"]) if entry.get("lasting") else []
        if any(name.split(".")[0] in sections and name not in _NO_SETTINGS for name in names):
            steps.append(entry["step"])
    return max(steps)
