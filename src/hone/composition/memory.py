"""Bytes that one process takes which samples and trains, by part, and the settings that they decide. Needs no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeVar

from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.inference.memory import (
    GIB,
    KV_GIB,
    PREFIX_SHARE,
    VLLM_GIB,
    kv_bytes_per_token,
    packed_bytes,
    rows_asked_for,
    sampling_bytes,
)
from hone.model.config import DecoderConfig
from hone.trainer.memory import (
    CHECKPOINTING,
    cast_bytes,
    checkpoint_bytes,
    trainer_of,
    training_bytes,
    weight_bytes,
)

Config = TypeVar("Config", bound=RLConfig | SFTConfig)

MIB = 2**20
PROCESS = {"rl": 550 * MIB, "sft": 370 * MIB}
"""The process itself on a CPU, measured: Python, torch, tokenizers; for RL also what grades and records, and the
kernels that oneDNN compiles for the shapes of sampling."""
CUDA_CONTEXT = 600 * MIB
"""On a GPU: the context, and the workspaces of its libraries."""
PHASES = {
    "sampling": ("kv cache", "prefix cache", "sampling logits", "prefill"),
    "training": ("gradients", "activations", "logits or a layer"),
}
"""Parts that only one phase has."""
SERVER_GIB = 2.0
"""What a server takes on a GPU beside its weights and its keys and values, by guess."""
MARGIN = 0.05
"""Share of a device's memory that is left free: blocks of many sizes don't fill it, and a plan is not exact."""


@dataclass(frozen=True)
class Memory:
    """`parts` in bytes."""

    parts: dict[str, int]

    def of(self, phase: str) -> dict[str, int]:
        """Return the parts of a phase."""
        others = {name for other, names in PHASES.items() if other != phase for name in names}
        return {name: size for name, size in self.parts.items() if name not in others}

    @property
    def peak(self) -> str:
        """The phase that takes most."""
        return max(PHASES, key=lambda phase: sum(self.of(phase).values()))

    @property
    def total(self) -> int:
        return sum(self.of(self.peak).values())

    @property
    def dominant(self) -> str:
        """The largest part of the peak."""
        return max(parts := self.of(self.peak), key=lambda name: parts[name])


def memory(
    config: RLConfig | SFTConfig,
    model: DecoderConfig,
    device: str,
    prompt: int,
    completion: int,
    turns: int = 1,
    ranks: int = 1,
) -> Memory:
    """Return what the process takes on a `device` ("cpu" or "cuda") when sequences, of so many `turns`, have these
    lengths.
    """
    kind = "rl" if isinstance(config, RLConfig) else "sft"
    parts = {"process": CUDA_CONTEXT if device == "cuda" else PROCESS[kind]}
    parts |= training_bytes(config, model, device, prompt, completion, ranks)
    if isinstance(config, RLConfig) and ranks == 1:
        parts |= sampling_bytes(config, model, device, prompt, completion, turns)
        parts["packed weights"] = packed_bytes(model, config.precision, device)
    if config.ckpt is not None and config.ckpt.background and device == "cpu":
        parts["checkpoint copy"] = checkpoint_bytes(model, config.precision, trainer_of(config).optim)
    return Memory({name: size for name, size in parts.items() if size})


def server_bytes(config: RLConfig, model: DecoderConfig) -> int:
    """Return what a server that the run starts takes on a GPU."""
    weights = weight_bytes(model, config.precision) + cast_bytes(model, config.precision)
    usual = KV_GIB
    if config.inference.backend == "vllm":
        weights, usual = weight_bytes(model, "fp32" if config.precision == "fp32" else "bf16"), VLLM_GIB
    return weights + int(((config.inference.kv_gib or usual) + SERVER_GIB) * GIB)


def fitted(
    config: Config,
    model: DecoderConfig,
    device: str,
    room: int,
    prompt: int,
    completion: int,
    turns: int = 1,
    ranks: int = 1,
) -> Config:
    """Return the config with activation checkpointing and the size of the KV cache chosen, where it leaves them open,
    for `room` bytes on the device.

    Checkpointing is the fastest with which a train step fits beside a KV cache of 4 GiB, or of what the config says,
    or beside the vLLM that the run starts. If none fits, it is the leanest.

    On a CPU the cache has 4 GiB. On a GPU it has what a train step leaves, but at least 4 GiB, since training and
    sampling take turns, and at most what the run can use. If sampling does not fit then, the cache is halved until it
    does.
    """
    room, one, most = int((1 - MARGIN) * room), 0, 0
    engine = config if isinstance(config, RLConfig) and config.mode != "split" and config.sampled_by is None else None
    if engine is not None and device == "cuda":
        one = kv_bytes_per_token(model, engine.precision, device) * (prompt + completion)
        most = one * rows_asked_for(engine)[0]
    given = engine and engine.inference.kv_gib
    beside = int(given * GIB) if given and device == "cuda" else min(most, int(KV_GIB * GIB))
    if engine is None and isinstance(config, RLConfig) and config.mode != "split" and device == "cuda":
        starts_vllm = config.inference.backend == "vllm" and config.orchestrator.client.base_url is None
        beside = server_bytes(config, model) if starts_vllm else 0

    def needs(config: Config, phase: str) -> int:
        return sum(memory(config, model, device, prompt, completion, turns, ranks).of(phase).values())

    choices: list[Any] = [config]
    if trainer_of(config).checkpointing is None:
        values = [{"checkpointing": name} for name in CHECKPOINTING]
        choices = [changed(config, **({"trainer": v} if isinstance(config, RLConfig) else v)) for v in values]
    config = next((choice for choice in choices if needs(choice, "training") + beside <= room), choices[-1])
    if engine is None or given is not None:
        return config
    left = int((room - needs(config, "training")) / (1 + PREFIX_SHARE * (turns > 1)))
    size = int(KV_GIB * GIB) if device == "cpu" else max(one, min(most, max(left, beside)))
    with_cache = _with_cache(config, size)
    while device == "cuda" and size > one and needs(with_cache, "sampling") > room:
        size = max(one, size // 2)
        with_cache = _with_cache(config, size)
    return with_cache


def _with_cache(config: Any, size: int) -> Any:
    return changed(config, inference={"kv_gib": math.ceil(size / MIB) * MIB / GIB})


def changed(config: Any, **changes: Any) -> Any:
    """Return the config with these keys changed; a dict changes keys of a section."""
    update = {
        name: changed(getattr(config, name), **value) if isinstance(value, dict) else value
        for name, value in changes.items()
    }
    return config.model_copy(update=update)
