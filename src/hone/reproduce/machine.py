"""What of this machine is not as it was for a run: what can make a re-execution differ although nobody changed the run.

Facts are those of run.json: package versions, processor, GPU, threads, variables that choose kernels, and digests of
what the run read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SOURCES = {
    "code": "hone's source",
    "environment": "the task's module",
    "tokenizer": "the tokenizer",
    "data": "the data set",
}
"""Digests in run.json's `sources`, in words. The initial model is not among them: it is checked where it is used."""


def differences(first: Mapping[str, Any], second: Mapping[str, Any], second_name: str = "here") -> list[str]:
    """Facts in which two machines differ, as `torch 2.11.0 (here 2.12.0)`; those that one doesn't know are left out."""
    pairs = [(name, value, second["versions"].get(name)) for name, value in first.get("versions", {}).items()]
    pairs += [(name, first["hardware"].get(name), second["hardware"].get(name)) for name in ("cpu", "gpu")]
    pairs += [("threads", first.get("threads"), second.get("threads"))]
    if "variables" in first and "variables" in second:
        mine, theirs = first["variables"], second["variables"]
        pairs += [(name, mine.get(name), theirs.get(name)) for name in sorted(mine.keys() | theirs.keys())]
    texts = [f"{name} {_shown(a)} ({second_name} {_shown(b)})" for name, a, b in pairs if a != b]
    return texts + [
        f"{SOURCES[name]} {one[:8]} ({second_name} {other[:8]})" for name, one, other in _sources(first, second)
    ]


def _sources(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    mine, theirs = first.get("sources", {}), second.get("sources", {})
    both = [name for name in SOURCES if name in mine and name in theirs]
    return [(name, mine[name], theirs[name]) for name in both if mine[name] != theirs[name]]


def _shown(value: Any) -> str:
    return "none" if value is None else ", ".join(value) if isinstance(value, list) else str(value)


def inexact(info: Mapping[str, Any]) -> list[str]:
    """Why the run itself says that another run of its config may differ, and from which step on."""
    return [f"{entry['cause']} (from step {entry['step']} on)" for entry in info.get("inexact", [])]
