"""Bytes that one process takes which samples and trains, by part, and the settings that they decide. Needs no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeVar

from hone.config.base import changed
from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.hardware import takes_products_in_fp32
from hone.inference.memory import (
    GIB,
    KV_GIB,
    PREFIX_SHARE,
    kv_bytes_per_token,
    packed_bytes,
    rows_asked_for,
    sampling_bytes,
    slot_tokens,
    uses_graphs,
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
"""Memory of a server on a GPU beside its weights and its keys and values, CUDA graphs included. A guess."""
MARGIN = 0.05
"""Share of a device's memory that is left free: blocks of many sizes don't fill it, and a plan is not exact."""


@dataclass(frozen=True)
class Memory:
    """`parts` in bytes."""

    parts: dict[str, int]

    def of(self, phase: str) -> dict[str, int]:
        others = {name for other, names in PHASES.items() if other != phase for name in names}
        return {name: size for name, size in self.parts.items() if name not in others}

    @property
    def peak(self) -> str:
        return max(PHASES, key=lambda phase: sum(self.of(phase).values()))

    @property
    def total(self) -> int:
        return sum(self.of(self.peak).values())

    @property
    def dominant(self) -> str:
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
    """Return what the process takes on a `device` ("cpu" or "cuda") for sequences of these lengths and `turns`."""
    kind = "rl" if isinstance(config, RLConfig) else "sft"
    parts = {"process": CUDA_CONTEXT if device == "cuda" else PROCESS[kind]}
    parts |= training_bytes(config, model, device, prompt, completion, ranks)
    if isinstance(config, RLConfig) and ranks == 1:
        parts |= sampling_bytes(config, model, device, prompt, completion, turns)
        parts["packed weights"] = packed_bytes(model, config.precision, device)[0]
    if isinstance(config, RLConfig) and device == "cpu":
        parts["weights for the server"] = shared_weight_bytes(config, model) // ranks
    if config.ckpt is not None and config.ckpt.background and device == "cpu":
        parts["checkpoint copy"] = checkpoint_bytes(config, model)
    return Memory({name: size for name, size in parts.items() if size})


def with_precision(config: Config, device: str) -> Config:
    """Return the config with `precision` chosen for the device, if it does not say one."""
    chosen = "precision" not in config.model_fields_set and takes_products_in_fp32(device)
    return changed(config, {"precision": "fp32"}) if chosen else config


def versions_in_memory(config: RLConfig) -> int:
    """Return how many versions of the weights are in shared memory at a time, where the run starts its server.

    The server has one, one is written, rollouts may be behind by some, and a checkpoint may still copy one.
    """
    return 2 + config.orchestrator.lag + (config.ckpt is not None)


def shared_weight_bytes(config: RLConfig, model: DecoderConfig) -> int:
    """Return the bytes of these versions; 0 without mode split, or with a server that is up already."""
    if config.mode != "split" or config.orchestrator.client.base_url is not None:
        return 0
    return versions_in_memory(config) * weight_bytes(model, config.precision)


def server_bytes(config: RLConfig, model: DecoderConfig) -> int:
    """Return what a server that the run starts takes on a GPU while the trainer works."""
    if config.mode != "split":  # the server sleeps meanwhile
        return int(SERVER_GIB * GIB)
    weights = weight_bytes(model, config.precision) + cast_bytes(model, config.precision)
    if config.inference.backend != "hone":
        weights = weight_bytes(model, "fp32" if config.precision == "fp32" else "bf16")
    kv_gib = {"kv_gib": config.inference.kv_gib or KV_GIB} | config.inference.server_settings(config, on_gpu=True)
    return weights + int((kv_gib["kv_gib"] + SERVER_GIB) * GIB)


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
    """Return the config with open settings of `checkpointing`, `cuda_graphs` and `kv_gib` chosen for `room` bytes on
    the device. The other arguments are as in `memory`.

    - Checkpointing is the first of none, selective and layer that lets a train step fit. Beside the step there must be
      room for the KV cache (the config's, else 4 GiB), or for the server that the run starts.
    - Graphs are for a GPU. The KV cache then has its memory while the trainer works, too. They are tried first, with
      each kind of checkpointing; then without graphs. If nothing fits: `layer`, without graphs.
    - The KV cache has 4 GiB on a CPU. On a GPU it has what a train step leaves, or 4 GiB if that is more, and at most
      what the run can use; then it shrinks until sampling (and with graphs the train step) fits.
    """
    room, one, most = int((1 - MARGIN) * room), 0, 0
    engine = config if isinstance(config, RLConfig) and config.samples_here else None
    if engine is not None and device == "cuda":
        one = kv_bytes_per_token(model, engine.precision, device) * slot_tokens(prompt + completion)
        most = one * rows_asked_for(engine)[0]
    given = engine and engine.inference.kv_gib
    beside = int(given * GIB) if given and device == "cuda" else min(most, int(KV_GIB * GIB))
    if engine is None and isinstance(config, RLConfig) and config.mode != "split" and device == "cuda":
        starts_server = config.inference.backend != "hone" and config.orchestrator.client.base_url is None
        beside = server_bytes(config, model) if starts_server else 0

    def needs(config: Config, phase: str) -> int:
        return sum(memory(config, model, device, prompt, completion, turns, ranks).of(phase).values())

    def graphs(config: Any) -> bool:
        return engine is not None and uses_graphs(config, device)

    def fits(config: Any) -> bool:
        if graphs(config):
            return needs(_with_cache(config, beside), "training") <= room
        return needs(config, "training") + beside <= room

    choices: list[Any] = [config]
    if trainer_of(config).checkpointing is None:
        key = "trainer.checkpointing" if isinstance(config, RLConfig) else "checkpointing"
        choices = [changed(config, {key: name}) for name in CHECKPOINTING]
    if engine is not None and engine.inference.cuda_graphs is None:
        values = dict.fromkeys([engine.inference.decodes_with_graphs(device), False])
        choices = [changed(choice, {"inference.cuda_graphs": v}) for v in values for choice in choices]
    config = next(filter(fits, choices), choices[-1])
    if engine is None or given is not None:
        return config
    if device == "cpu":
        return _with_cache(config, int(KV_GIB * GIB))
    left = int((room - needs(_with_cache(config, one), "training")) / (1 + PREFIX_SHARE * (turns > 1)))
    size, phases = max(one, min(most, max(left, beside))), PHASES if graphs(config) else ("sampling",)
    while size > one and any(needs(_with_cache(config, size), phase) > room for phase in phases):
        size = max(one, size * 9 // 10)
    return _with_cache(config, size)


def _with_cache(config: Any, size: int) -> Any:
    return changed(config, {"inference.kv_gib": math.ceil(size / MIB) * MIB / GIB})
