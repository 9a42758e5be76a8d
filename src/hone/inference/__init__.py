"""Sampling: KV cache, sampler and engine on the trainer's own parameters."""

from hone.inference.types import Completion, SamplingParams

__all__ = ["Completion", "Engine", "SamplingParams"]


def __getattr__(name: str):
    if name == "Engine":
        from hone.inference.engine import Engine

        return Engine
    raise AttributeError(name)
