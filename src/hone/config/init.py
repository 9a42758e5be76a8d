"""What somebody who is new to hone runs first: `hone quickstart`, `examples`, `init-env NAME`, `init-model OUT`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from hone.config.base import BaseConfig
from hone.config.shared import InitConfig


class InitEnvConfig(BaseConfig):
    """Write a task that works as it is, to be made your own: a Python file, its test, and recipes that train on it."""

    positional = "name"

    name: str
    """Id of the task, such as `my-task`; also the first word of the command line."""


class InitModelConfig(BaseConfig):
    """Write a model with random weights, its tokenizer and chat template, in Hugging Face layout."""

    positional = "out"

    out: Path = Path("outputs/tiny")
    """Folder to write; also the first word of the command line."""
    preset: Literal["tiny"] = "tiny"
    """Architecture and tokenizer: `tiny` is a Qwen3-style decoder of 0.4M parameters with a character tokenizer."""
    init: InitConfig = Field(default=InitConfig(), validation_alias="init")
    """Size overrides (`--init.layers 3`)."""
    seed: int = Field(default=0, ge=0)
    """Seed of the weights."""


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
