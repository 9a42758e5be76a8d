"""Monitors: services that follow a run besides its own files. Today Weights & Biases."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any, Protocol

from hone.config.shared import RunConfig, WandbConfig
from hone.errors import UserError


class Monitor(Protocol):
    """What a run tells a monitor. Any method may raise: the writer reports it once and goes on without the monitor."""

    name: str

    def start(self, folder: Path, info: dict[str, Any], config: RunConfig) -> None: ...

    def log(self, step: int, metrics: dict[str, Any], timings: dict[str, Any]) -> None: ...

    def finish(self, status: str) -> None: ...


def make_monitors(config: RunConfig) -> list[Monitor]:
    """The monitors that the config asks for, not started yet. UserError if a package is missing."""
    if config.wandb is None:
        return []
    spec = importlib.util.find_spec("wandb")
    if spec is None or spec.origin is None:  # without an origin it is a folder named wandb, such as the client leaves
        raise UserError('--wandb needs the package wandb: pip install "hone-rl[wandb]"')
    return [Wandb(config.wandb)]


class Wandb:
    """Weights & Biases, through its own client. Its files lie in `wandb/` inside the run directory.

    A resumed run goes on as the same W&B run (`wandb_id` in run.json); the axis is hone's own step counter, so steps
    that a resume takes again are drawn where they belong.
    """

    name = "wandb"

    def __init__(self, config: WandbConfig):
        self._config = config
        self._run: Any = None

    def start(self, folder: Path, info: dict[str, Any], config: RunConfig) -> None:
        # W&B advertises its tracing product wherever `openai` is installed.
        os.environ.setdefault("WANDB_DISABLE_WEAVE", "true")
        import wandb

        info["wandb_id"] = info["wandb_id"] or info["id"]
        self._run = wandb.init(
            project=self._config.project,
            name=self._config.name,
            mode=self._config.mode,
            dir=folder,
            id=info["wandb_id"],
            resume="allow" if (self._config.mode or os.environ.get("WANDB_MODE", "online")) == "online" else None,
            job_type=info["kind"],
            config=config.model_dump(mode="json"),
            settings=wandb.Settings(console="off", silent=True, init_timeout=30),
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: dict[str, Any], timings: dict[str, Any]) -> None:
        self._run.log({name: value for name, value in (timings | metrics).items() if value is not None})

    def finish(self, status: str) -> None:
        self._run.finish(exit_code=0 if status in ("done", "stopped") else 1)
