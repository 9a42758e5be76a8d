"""`hone init-env NAME`: a task of your own. `hone init-model OUT`: a small model from nothing."""

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
