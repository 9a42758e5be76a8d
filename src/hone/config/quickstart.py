"""`hone quickstart` and `hone examples`: what somebody who is new to hone runs first."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from hone.config.base import BaseConfig


class QuickstartConfig(BaseConfig):
    """Make a tiny model from nothing, then SFT, RL and an evaluation: some minutes on one CPU core."""

    seed: int = Field(default=0, ge=0)
    """Seed of the initial weights, the data and the sampling."""
    output_dir: Path = Path("outputs/quickstart")
    """Folder for all that is made."""
    num_examples: int = Field(default=512, ge=1)
    """Held-out phrases that the table at the end is measured on."""
    controls: bool = False
    """Add two rows: SFT alone with the compute of SFT and RL together, on the same demonstrations and on clean ones."""


class ExamplesConfig(BaseConfig):
    """List the recipes that come with hone, or copy those of one task into `examples/NAME`."""

    positional = "name"

    name: str | None = None
    """A task's folder of recipes, such as `reverse_text`; also the first word of the command line."""
