"""Settings of the experiment trackers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hone.config.base import BaseConfig, Meta


class TrackerConfig(BaseConfig):
    """Data sent to an experiment tracker."""

    name: Annotated[str | None, Meta("watching")] = None
    """Name of the run in the tracker."""
    group: str | None = None
    """Group of runs that belong together."""
    samples: int = Field(default=8, ge=0)
    """Number of completions in a table of samples; 0 sends none."""
    samples_interval: int = Field(default=25, ge=1)
    """Steps between tables of completions."""


class WandbConfig(TrackerConfig):
    """Weights & Biases. Any of these flags turns it on."""

    project: Annotated[str | None, Meta("watching", -1)] = None
    """W&B project; by default WANDB_PROJECT, else `hone`."""
    entity: str | None = None
    """User or team; by default WANDB_ENTITY, else the entity of the login."""
    tags: list[str] = []
    """Tags of the W&B run."""
    mode: Literal["online", "offline", "disabled"] | None = None
    """`offline` writes to the run directory, for `wandb sync` later; by default WANDB_MODE, else `online`."""


class TrackioConfig(TrackerConfig):
    """Trackio (pip install 'trackio>=0.43'): W&B's functions, on this machine. Any of its flags turns it on."""

    project: str = "hone"
    """Trackio project."""
