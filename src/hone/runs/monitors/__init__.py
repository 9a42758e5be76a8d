"""Monitors: services that follow a run besides its own files. Weights & Biases and Trackio, through one code.

Nothing of a monitor runs in the run's process: its client is in a child (`child.py`, `tracker.py`), which a thread of
its own talks to (`process.py`, `background.py`). So a client that raises, hangs, prints, or reads the network costs the
run neither a byte nor a second.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from hone.config.shared import RunConfig
from hone.errors import UserError

PROJECT = "hone"
"""The W&B project where neither flag nor environment names one."""
INSTALL = {"wandb": "pip install wandb", "trackio": "pip install 'trackio>=0.43'"}
"""The command that installs the package of a monitor."""


class MonitorError(Exception):
    """What went wrong with a monitor: the text says all."""


class Monitor(Protocol):
    """What a run tells a monitor, in a thread that is the monitor's own. Any method may raise, or never return.

    `info` is run.json; `metrics` and `timings` are lines of metrics.jsonl and timings.jsonl; rows of samples are those
    of `hone.runs.monitors.samples`. What `start` and `finish` return is said to the user.
    """

    name: str

    def start(self, folder: Path, info: dict[str, Any], config: RunConfig) -> str | None: ...

    def log(self, step: int, metrics: dict[str, Any], timings: dict[str, Any]) -> None: ...

    def samples_of(self, step: int) -> int:
        """How many completions of the step it takes; called in the run's own thread."""
        ...

    def samples(self, step: int, rows: list[list[Any]]) -> None: ...

    def alarm(self, step: int, name: str, text: str, action: str) -> None: ...

    def finish(self, status: str) -> str | None: ...

    def abandon(self) -> None:
        """End it at once, whatever it does: called by another thread, and when all is over. Never blocks or raises."""
        ...


def make_monitors(config: RunConfig) -> list[Monitor]:
    """The monitors that the config asks for, not started yet. UserError if a package is missing."""
    from hone.runs.monitors.process import TrackerProcess

    monitors: list[Monitor] = []
    for name, settings in (("wandb", config.wandb), ("trackio", config.trackio)):
        if settings is None:
            continue
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # without an origin it is a folder of that name: wandb leaves one
            raise UserError(f"--{name} needs the package {name}, which is not installed: {INSTALL[name]}")
        monitors.append(TrackerProcess(name, settings, config.max_steps))
    return monitors


def warnings(config: RunConfig) -> Iterator[str]:
    """What is to be said of the trackers before the first step, while it can still be mended in no time.

    Whether there is a login is only guessed: W&B's client, which takes a second to load, says it for sure later.
    """
    if config.wandb is None:
        return
    if config.wandb.mode is None and os.environ.get("WANDB_MODE") == "disabled":
        yield (
            "W&B is off, by WANDB_MODE=disabled in the environment: it gets nothing of this run (--wandb.mode comes "
            "before that)."
        )
    elif (config.wandb.mode or os.environ.get("WANDB_MODE") or "online") == "online" and not _may_log_in():
        yield (
            "W&B finds no login here, it seems (neither WANDB_API_KEY nor what `wandb login` writes): it would get "
            "nothing of this run. --wandb.mode offline needs none, and `wandb sync` sends it later."
        )


def _may_log_in() -> bool:
    """Whether something is there that W&B's client may log in with. What is in it is the client's to read."""
    if any(os.environ.get(name) for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")):
        return True
    named = os.environ.get("NETRC")
    places = [Path(named).expanduser()] if named else [Path.home() / name for name in (".netrc", "_netrc")]
    return any(place.is_file() for place in places)


def tracked(config: RunConfig, info: dict[str, Any]) -> dict[str, Any]:
    """What run.json (`info`, as it is so far) says of the trackers that are on: where the run is found there.

    A resumed run goes on where it was, so what run.json says already comes before the environment, but not before a
    flag.
    """
    facts: dict[str, Any] = {}
    if config.wandb is not None:
        before = info.get("wandb") or {}
        project = config.wandb.project or before.get("project") or os.environ.get("WANDB_PROJECT") or PROJECT
        entity = config.wandb.entity or before.get("entity") or os.environ.get("WANDB_ENTITY")
        facts["wandb"] = {"project": project, "entity": entity}
        # A sweep (`wandb agent`) has made the W&B run already, and names it there.
        facts["wandb_id"] = info.get("wandb_id") or os.environ.get("WANDB_RUN_ID") or info["id"]
    if config.trackio is not None:
        before = info.get("trackio") or {}
        name = config.trackio.name or before.get("name") or info["id"]
        facts["trackio"] = {"project": config.trackio.project, "name": name}
    return facts
