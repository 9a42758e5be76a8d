"""Monitors: services that follow a run besides its own files. Weights & Biases and Trackio, through one code.

Nothing of a monitor runs in the run's process: its client is in a child (`child.py`, `tracker.py`), which a thread of
its own talks to (`process.py`, `background.py`). So a client that raises, hangs, prints, or reads the network costs the
run neither a byte nor a second.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any, Protocol

from hone.config.shared import RunConfig
from hone.errors import UserError

PROJECT = "hone"
"""The W&B project where neither flag nor environment names one."""


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
            raise UserError(f'--{name} needs the package {name}: pip install "hone-rl[{name}]"')
        monitors.append(TrackerProcess(name, settings, config.max_steps))
    return monitors


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
