"""What is not as it was when a run began: settings, what it reads, the machine. A resume tells it, or is refused."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hone.config.shared import RunConfig
from hone.errors import UserError
from hone.runs import settings
from hone.runs.evaluations import evals_file
from hone.runs.files import read_lines, whole_lines
from hone.runs.rollouts import rollouts_file
from hone.runs.settings import Change


def checked_changes(
    folder: Path,
    info: Mapping[str, Any],
    step: int,
    state: Mapping[str, Any],
    config: RunConfig,
    sources: Mapping[str, str],
) -> list[Change]:
    """What is not as it was in the run in `folder` when it came to `step`, whose checkpoint has this state.

    UserError if that would break exactness and was not allowed. A run that went on with other settings before may do so
    again, or be set back to those that it had at `step`.
    """
    edited = edited_history(folder, step, state)
    if edited and not config.allow_drift:
        raise UserError(
            f"{folder}: {', '.join(edited)} changed or went missing after checkpoint step_{step} was written, so the "
            "run would not be what its records tell: restore it, resume from an earlier step, or add --allow-drift"
        )
    now = settings.settings_of(folder, config), info.get("sources", {})
    then = settings_at(info, step, "settings", now[0]), settings_at(info, step, "sources", now[1])
    found = _changes(config, sources, *then)
    breaking = [change for change in _changes(config, sources, *now) if not change.harmless]
    if breaking and any(not change.harmless for change in found) and not config.allow_drift:
        raise UserError(
            f"resuming {folder} with another {', '.join(map(str, breaking))} would give numbers that no unbroken run "
            "has: set it back (the run's own settings are in its config.toml: @ "
            f"{folder / 'config.toml'}), or add --allow-drift"
        )
    return [Change(name, "recorded", "edited", kind="records") for name in edited] + found


def _changes(
    config: RunConfig, sources: Mapping[str, str], settings_before: Mapping[str, Any], sources_before: Mapping[str, str]
) -> list[Change]:
    """The settings and sources that are not as before."""
    both = [name for name in sources if name in sources_before and sources_before[name] != sources[name]]
    return settings.changes(settings_before, config, sources_before) + [
        Change(name, sources_before[name], sources[name], kind="sources") for name in both
    ]


def settings_at(info: Mapping[str, Any], step: int, kind: str, now: Mapping[str, Any]) -> dict[str, Any]:
    """The `settings` (flat) or `sources` of a run as they were when it came to `step`, from those that it has `now`.

    run.json lists, under `drift`, at which steps it went on with others, and what they were before.
    """
    found = dict(now)
    for entry in reversed(info.get("drift", [])):
        if entry["step"] >= step:
            found |= entry[kind]
    return {name: value for name, value in found.items() if value is not None}


def note_drift(info: dict[str, Any], step: int, changes: list[Change]) -> None:
    """Enter in run.json what was before, and forget what is rolled back."""
    entries = [entry for entry in info.get("drift", []) if entry["step"] < step]
    kinds = ("settings", "sources")
    before = {kind: {c.name: c.before for c in changes if c.kind == kind and not c.harmless} for kind in kinds}
    if any(before.values()):
        entries.append({"step": step} | before)
    info["drift"] = entries


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """(name, before, now) of the facts in two run.json that can make equal runs differ.

    They are packages, hone's code, processor, GPU, ranks, threads, and variables that choose kernels. What one of the
    two doesn't know is left out.
    """
    pairs = [(name, value, now["versions"].get(name)) for name, value in before.get("versions", {}).items()]
    pairs += [(name, before["hardware"].get(name), now["hardware"].get(name)) for name in ("cpu", "gpu")]
    pairs += [("ranks", before.get("ranks", 1), now.get("ranks", 1))]
    pairs += [("threads", before.get("threads"), now.get("threads"))]
    if "variables" in before and "variables" in now:
        mine, theirs = before["variables"], now["variables"]
        pairs += [(name, mine.get(name), theirs.get(name)) for name in mine | theirs]
    mine, theirs = (facts.get("sources", {}).get("code") for facts in (before, now))
    if mine and theirs:
        pairs += [("hone's code", mine[:8], theirs[:8])]
    return [(name, one, other) for name, one, other in pairs if one != other]


def edited_history(folder: Path, step: int, state: Mapping[str, Any]) -> list[str]:
    """Names of the logs that don't begin as they were when the checkpoint was written, and of missing files."""
    edited = []
    for name, was in state.get("logs", {}).items():
        lines = b"".join(whole_lines(folder / name))[: was["bytes"]]
        if len(lines) != was["bytes"] or hashlib.sha256(lines).hexdigest() != was["sha256"]:
            edited.append(name)
    before = [line for line in read_lines(folder / "hashes.jsonl") if line["step"] < step]
    names = [rollouts_file(line["step"]) for line in before if line["rollouts"]]
    names += [evals_file(line["step"]) for line in before if line.get("evals")]
    return edited + [name for name in names if not (folder / name).exists()]


def tell(changes: list[Change], say: Callable[[str], None]) -> None:
    if changes:
        say(f"Changed since the run began: {', '.join(map(str, changes))}.")
