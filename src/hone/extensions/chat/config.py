"""`hone chat MODEL_OR_RUN`."""

from __future__ import annotations

from pydantic import Field

from hone.config.base import BaseConfig
from hone.config.shared import DEFAULT_PRECISION, Precision


class ChatConfig(BaseConfig):
    """Talk to a model in the terminal; with a run, to its initial model and to its last weights, side by side.

    Each line of the standard input is a question. The end of the input, or Ctrl-C, ends the conversation.
    """

    positional = "model"

    model: str = "outputs"
    """A run's directory or id, a model folder, or a hub id; also the first word of the command line."""
    max_tokens: int = Field(default=512, ge=1)
    """Maximum number of new tokens per answer; fewer if the context is nearly full."""
    temperature: float = Field(default=1.0, ge=0)
    """Temperature of sampling; 0 is greedy."""
    system: str | None = None
    """System prompt."""
    seed: int = Field(default=0, ge=0)
    """Seed of sampling."""
    precision: Precision = DEFAULT_PRECISION
    """`fp32`, `bf16_linear` (matrix products in bf16) or `bf16`."""
