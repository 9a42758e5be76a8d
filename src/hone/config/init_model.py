"""`hone init-model OUT`: a small model from nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from hone.config.base import BaseConfig
from hone.config.shared import InitConfig


class InitModelConfig(BaseConfig):
    """Write a model with random weights, its tokenizer and chat template, in Hugging Face layout."""

    out: Path = Path("outputs/tiny")
    """Folder to write; also the first positional argument."""
    preset: Literal["tiny"] = "tiny"
    """Architecture and tokenizer: `tiny` is a Qwen3-style decoder of 0.4M parameters with a character tokenizer."""
    init: InitConfig = Field(InitConfig(), validation_alias="init")
    """Size overrides (`--init.layers 3`)."""
    seed: int = Field(0, ge=0)
    """Seed of the weights."""
