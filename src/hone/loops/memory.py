"""Computes the memory of a process, by part, for sampling and training; chooses settings that fit. Needs no torch."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, TypeVar

from hone.config.base import changed, value_of
from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.hardware import HEAD_CACHE_BYTES, MARGIN, ram, takes_products_in_fp32
from hone.inference.memory import (
    GIB,
    KV_GIB,
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
    host_bytes,
    micro_batch_limit,
    trainer_of,
    training_bytes,
    weight_bytes,
)

Config = TypeVar("Config", bound=RLConfig | SFTConfig)

MIB = 2**20
PROCESS = {"rl": 550 * MIB, "sft": 370 * MIB}
"""Measured bytes of the process itself on a CPU: Python, torch and tokenizers. For RL they include grading, recording,
and the kernels that oneDNN compiles for sampling."""
CUDA_CONTEXT = 600 * MIB
"""Bytes of the CUDA context and its libraries' workspaces."""
PHASES = {
    "sampling": ("kv cache", "prefix cache", "sampling logits", "prefill", "server"),
    "training": ("gradients", "activations", "logits or a layer", "server asleep"),
}
"""Phase → the parts of memory that only this phase needs."""
SERVER_GIB = 2.0
"""GiB that a server takes on a GPU besides weights and KV cache; includes CUDA graphs. A guess."""
LEAST_TOKENS = 2048
"""Micro-batches are shrunk to save memory, but not below this number of tokens or the longest sequence."""


@dataclass(frozen=True)
class Memory:
    """Memory in bytes, by part."""

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
    """Return the memory of the process on `device` ("cpu" or "cuda") for sequences of these lengths and `turns`."""
    kind = "rl" if isinstance(config, RLConfig) else "sft"
    parts = {"process": CUDA_CONTEXT if device == "cuda" else PROCESS[kind]}
    parts |= training_bytes(config, model, device, prompt, completion, ranks)
    if isinstance(config, RLConfig) and device == "cuda" and not config.samples_here:
        if config.mode != "split" and config.orchestrator.client.base_url is None:
            parts |= {"server": server_bytes(config, model), "server asleep": int(SERVER_GIB * GIB)}
    elif isinstance(config, RLConfig) and ranks == 1:
        parts |= sampling_bytes(config, model, device, prompt, completion, turns)
        parts["packed weights"] = packed_bytes(model, config.precision, device)[0]
    if isinstance(config, RLConfig) and device == "cpu":
        parts["weights for the server"] = shared_weight_bytes(config, model) // ranks
    if config.ckpt is not None and config.ckpt.background and device == "cpu":
        parts["checkpoint copy"] = checkpoint_bytes(config, model)
    return Memory({name: size for name, size in parts.items() if size})


def ways_to_fill(
    config: Any, model: DecoderConfig, device: str, prompt: int, completion: int, *how: int
) -> list[Memory]:
    """Return `memory` for these lengths, and for the same sum with a prompt of 1 token: then more tokens have loss."""
    return [memory(config, model, device, one, prompt + completion - one, *how) for one in {min(1, prompt), prompt}]


def needed(phase: str, *work: Any) -> int:
    return max(sum(way.of(phase).values()) for way in ways_to_fill(*work))


def with_precision(config: Config, device: str) -> Config:
    chosen = "precision" not in config.model_fields_set and takes_products_in_fp32(device)
    return changed(config, {"precision": "fp32"}) if chosen else config


def versions_in_memory(config: RLConfig) -> int:
    """Count the versions of weights in memory: the server's, the next, `lag` more, and one more for checkpoints."""
    return 2 + config.orchestrator.lag + (config.ckpt is not None)


def shared_weight_bytes(config: RLConfig, model: DecoderConfig) -> int:
    """Return the bytes of weights in shared memory: 0 unless mode is split and the run starts the server."""
    if config.mode != "split" or config.orchestrator.client.base_url is not None:
        return 0
    return versions_in_memory(config) * weight_bytes(model, config.precision)


def server_bytes(config: RLConfig, model: DecoderConfig) -> int:
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
    here: bool = False,
) -> tuple[Config, str]:
    """Choose the unset settings so that they fit into `room` bytes of the device. Return the config and, on a GPU, a
    text that names the settings chosen to save memory, else "". `here` is true if the config is for this machine.

    The settings are the first of `_choices` that make a train step fit, else the last. A sleeping server takes memory
    beside the step and, with CUDA graphs, so does the KV cache (at most 4 GiB if unset). An unset KV cache gets 4 GiB
    on a CPU. On a GPU it starts at the largest useful size, and shrinks until sampling fits, with graphs also training.
    """
    room, one, most = int((1 - MARGIN) * room), 0, 0
    engine = config if isinstance(config, RLConfig) and config.samples_here else None
    if engine is not None and device == "cuda":
        one = kv_bytes_per_token(model, engine.precision, device) * slot_tokens(prompt + completion)
        most = one * rows_asked_for(engine)[0]
    given = engine and engine.inference.kv_gib
    beside = int(given * GIB) if given and device == "cuda" else min(most, int(KV_GIB * GIB))

    work = (model, device, prompt, completion, turns, ranks)

    def graphs(config: Any) -> bool:
        return engine is not None and uses_graphs(config, device)

    def taken(config: Any) -> int:
        phases = ("training",) if engine is not None and given is None else PHASES
        return max(needed(phase, _with_cache(config, beside) if graphs(config) else config, *work) for phase in phases)

    choices = [*_choices(config, model, device, prompt + completion, ranks, here)]
    config = next((one for one in choices if taken(one) <= room), choices[-1])
    words = _saving(choices[0], config, taken(choices[0]), room) if device == "cuda" else ""
    if engine is None or given is not None:
        return config, words
    if device == "cpu":
        return _with_cache(config, int(KV_GIB * GIB)), words
    size, phases = max(one, most), PHASES if graphs(config) else ("sampling",)
    while size > one and any(needed(phase, _with_cache(config, size), *work) > room for phase in phases):
        size = max(one, size * 49 // 50)
    return _with_cache(config, size), words


def _choices(
    config: Config, model: DecoderConfig, device: str, longest: int, ranks: int, here: bool
) -> Iterator[Config]:
    """Yield the config with its unset settings chosen: first the fastest choice, last the choice of least memory.

    On a GPU the choices are smaller micro-batches, more checkpointing, no CUDA graphs, and then 8-bit moments or an
    optimiser on the host. The head's cache holds a micro-batch's softmax, or `HEAD_CACHE_BYTES` in the last choice.
    """
    rl, settings = isinstance(config, RLConfig), trainer_of(config)
    section, tokens_key = ("trainer.", "trainer.micro_batch_tokens") if rl else ("", "data.micro_batch_tokens")
    tokens = [micro_batch_limit(config, device)]
    while device == "cuda" and not value_of(config, tokens_key) and tokens[-1] // 2 >= max(LEAST_TOKENS, longest):
        tokens.append(tokens[-1] // 2)
    low = model.vocab_size * (4 if config.precision == "fp32" else 2)
    sizes = [(count, max(HEAD_CACHE_BYTES, -(-max(count, longest) * low // GIB) * GIB)) for count in tokens]
    sizes = sizes * (device == "cuda") + [(tokens[-1], HEAD_CACHE_BYTES)]
    if settings.head_cache_bytes is not None:
        sizes = [(count, settings.head_cache_bytes) for count in tokens]
    graphs = [config.inference.cuda_graphs] if isinstance(config, RLConfig) else [None]
    if isinstance(config, RLConfig) and config.samples_here and graphs == [None]:
        graphs = [*dict.fromkeys([config.inference.decodes_with_graphs(device), False])]
    for values in _optimisers(config, model, section, device, ranks, here):
        for decodes in graphs:
            for name in CHECKPOINTING if settings.checkpointing is None else [settings.checkpointing]:
                for count, cache in sizes:
                    more = {tokens_key: count, f"{section}checkpointing": name, f"{section}head_cache_bytes": cache}
                    more |= {"inference.cuda_graphs": decodes} if rl else {}
                    yield changed(config, values | more)


def _optimisers(
    config: RLConfig | SFTConfig, model: DecoderConfig, section: str, device: str, ranks: int, here: bool
) -> Iterator[dict[str, Any]]:
    """Yield changes of the optimiser's settings: first none, then values for unset keys that take less memory."""
    yield {}
    optim = trainer_of(config).optim
    if device == "cpu" or ranks > 1 or optim.type != "adamw" or config.model.lora is not None:
        return
    if "state" not in optim.model_fields_set and not optim.offload and not (here and find_spec("torchao") is None):
        yield {f"{section}optim.state": "8bit"}
    hosted = host_bytes(model, changed(optim, {"offload": True}))
    if "offload" not in optim.model_fields_set and optim.state == "fp32" and not (here and hosted > ram()[1]):
        yield {f"{section}optim.offload": True}


def _saving(usual: RLConfig | SFTConfig, chosen: RLConfig | SFTConfig, needed: int, room: int) -> str:
    """Return a text such as `micro_batch_tokens 4,096: 16,384 tokens would take 31.9 of 23.5 GiB`, or ""."""
    names = ["data.micro_batch_tokens", "checkpointing", "optim.state", "optim.offload"]
    if isinstance(usual, RLConfig):
        names = [f"trainer.{name.removeprefix('data.')}" for name in names] + ["inference.cuda_graphs"]
    words = []
    for name in names:
        if (value := value_of(chosen, name)) != value_of(usual, name):
            text = f"{value:,}" if type(value) is int else str(value).lower()
            words.append(f"{re.sub('^(data|trainer|inference).', '', name)} {text}")
    if not words:
        return ""
    instead = f"{value_of(usual, names[0]):,} tokens" if "micro" in words[0] else "without it a step"
    listed = " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
    return f"{listed}: {instead} would take {needed / GIB:.1f} of {room / GIB:.1f} GiB"


def _with_cache(config: Any, size: int) -> Any:
    return changed(config, {"inference.kv_gib": math.ceil(size / MIB) * MIB / GIB})
