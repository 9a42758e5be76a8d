"""`hone eval ENV -m PATH`: the flags of vf-eval."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import AliasChoices, Field

from hone.config.base import BaseConfig
from hone.config.shared import Precision


class EvalConfig(BaseConfig):
    """Evaluate a local checkpoint on an environment's held-out examples."""

    env: str = "reverse-text"
    """Environment id; also the first positional argument."""
    env_args: dict[str, Any] = Field({}, validation_alias=AliasChoices("env_args", "a"))
    """Keyword arguments of the environment, as JSON."""
    model: str = Field("hone/tiny", validation_alias=AliasChoices("model", "m"))
    """A folder in Hugging Face layout, a hub id, or `hone/tiny`."""
    num_examples: int = Field(5, ge=1, validation_alias=AliasChoices("num_examples", "n"))
    """Held-out examples."""
    rollouts_per_example: int = Field(3, ge=1, validation_alias=AliasChoices("rollouts_per_example", "r"))
    """Completions per example."""
    max_tokens: int | None = Field(None, ge=1, validation_alias=AliasChoices("max_tokens", "t"))
    """Most new tokens per completion."""
    temperature: float = Field(1.0, ge=0, validation_alias=AliasChoices("temperature", "T"))
    """0 is greedy."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling."""
    save: bool = Field(True, validation_alias=AliasChoices("save", "s"))
    """Save samples and results (`--no-save` to skip)."""
    seed: int = Field(0, ge=0)
    """Seed of sampling."""
    output_dir: Path | None = None
    """Where to save; by default `outputs/evals/<env>--<model>/<id>`."""
    precision: Precision = "bf16_linear"
    """As in training."""
    threads: int | None = Field(None, ge=1)
    """CPU threads; by default 1 for models under 10M parameters, else one per core."""
    chat_template: str | None = None
    """Overrides the model's chat template: a file path, or the Jinja text itself."""
