"""`hone eval ENV -m PATH`: the flags of vf-eval."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from pydantic import AliasChoices, Field

from hone.config.base import BaseConfig
from hone.config.shared import Precision


class EvalConfig(BaseConfig):
    """Evaluate a local checkpoint on an environment's held-out examples."""

    positional: ClassVar[str | None] = "env"

    env: str = "reverse-text"
    """Environment id; also the first word of the command line."""
    env_args: dict[str, Any] = Field(default={}, validation_alias=AliasChoices("env_args", "a"))
    """Keyword arguments of the environment, as JSON."""
    model: str = Field(default="hone/tiny", validation_alias=AliasChoices("model", "m"))
    """A folder in Hugging Face layout, a hub id, or `hone/tiny`."""
    num_examples: int = Field(default=5, ge=1, validation_alias=AliasChoices("num_examples", "n"))
    """Held-out examples."""
    rollouts_per_example: int = Field(default=3, ge=1, validation_alias=AliasChoices("rollouts_per_example", "r"))
    """Completions per example."""
    max_tokens: int | None = Field(default=None, ge=1, validation_alias=AliasChoices("max_tokens", "t"))
    """Most new tokens per completion; by default 1024, or what the model's context leaves if that is less."""
    temperature: float = Field(default=1.0, ge=0, validation_alias=AliasChoices("temperature", "T"))
    """0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus sampling."""
    save: bool = Field(default=True, validation_alias=AliasChoices("save", "s", "save_results"))
    """Save samples and results (`--no-save` to skip)."""
    seed: int = Field(default=0, ge=0)
    """Seed of sampling."""
    output_dir: Path | None = None
    """Where to save; by default `outputs/evals/<env>--<model>/<id>`."""
    precision: Precision = "bf16_linear"
    """As in training."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads; by default 1 for models under 10M parameters, else one per core."""
    chat_template: str | None = None
    """Overrides the model's chat template: a file path, or the Jinja text itself."""
