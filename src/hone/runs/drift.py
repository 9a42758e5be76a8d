"""What is not as it was when a run began: settings, what it reads, the machine. A resume tells it, or is refused."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hone.config.shared import RunConfig
from hone.errors import UserError
from hone.runs import settings
from hone.runs.files import whole_lines
from hone.runs.settings import Change

SOURCES = {"environment": "task file", "model": "initial model", "code": "hone's code"}
"""Digests in run.json's `sources`, in words where the name doesn't say it."""


def checked_changes(folder: Path, info: dict[str, Any], config: RunConfig, sources: Mapping[str, str]) -> list[Change]:
    """What is not as it was in the run in `folder`. UserError if that would break exactness and was not allowed."""
    before = info.get("sources", {})
    found = settings.changes(folder / "config.toml", config, before)
    found += [
        Change(SOURCES.get(name, name), before[name][:8], digest[:8], harmless=False)
        for name, digest in sources.items()
        if name in before and before[name] != digest
    ]
    if (breaking := [change for change in found if not change.harmless]) and not config.allow_drift:
        raise UserError(
            f"resuming {folder} with another {', '.join(map(str, breaking))} would give numbers that no unbroken run "
            "has: set it back (the run's own settings are in its config.toml: @ "
            f"{folder / 'config.toml'}), or add --allow-drift"
        )
    return found


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """(name, before, now) of the facts in two run.json that can make equal runs differ.

    They are packages, hone's code, processor, GPU, threads, and variables that choose kernels. What one of the two
    doesn't know is left out.
    """
    pairs = [(name, value, now["versions"].get(name)) for name, value in before.get("versions", {}).items()]
    pairs += [(name, before["hardware"].get(name), now["hardware"].get(name)) for name in ("cpu", "gpu")]
    pairs += [("threads", before.get("threads"), now.get("threads"))]
    if "variables" in before and "variables" in now:
        mine, theirs = before["variables"], now["variables"]
        pairs += [(name, mine.get(name), theirs.get(name)) for name in mine | theirs]
    mine, theirs = (facts.get("sources", {}).get("code") for facts in (before, now))
    if mine and theirs:
        pairs += [(SOURCES["code"], mine[:8], theirs[:8])]
    return [(name, one, other) for name, one, other in pairs if one != other]


def edited_history(folder: Path, state: Mapping[str, Any]) -> list[str]:
    """Names of the logs that are not, after the roll-back, as they were when the checkpoint was written."""
    edited = []
    for name, was in state.get("logs", {}).items():
        lines = b"".join(whole_lines(folder / name))  # a torn last line is dropped when the log is opened
        if len(lines) != was["bytes"] or hashlib.sha256(lines).hexdigest() != was["sha256"]:
            edited.append(f"{name} (changed since the checkpoint was written)")
    return edited


def tell(changes: list[Change], say: Callable[[str], None]) -> None:
    if changes:
        say(f"Changed since the run began: {', '.join(map(str, changes))}.")
