"""Sampling: KV cache, sampler and engine on the trainer's own parameters."""

from hone.inference.engine import Engine
from hone.inference.types import Completion, SamplingParams

__all__ = ["Completion", "Engine", "SamplingParams"]
