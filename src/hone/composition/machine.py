"""What a run takes from the machine (threads, device, kernels, memory): decided once, so that it can be repeated."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from hone.composition.memory import fitted, memory
from hone.config.base import BaseConfig
from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.errors import UserError
from hone.inference.memory import GIB, KV_GIB
from hone.model.config import DecoderConfig
from hone.orchestrator.placement import CORES, ram, share_of_cores
from hone.runs.outputs import run_info
from hone.runs.settings import read_config
from hone.trainer.memory import longest, micro_batch_limit
from hone.trainer.parallel import ALONE, Ranks

SMALL_MODEL = 10_000_000
"""Below this many parameters a second thread costs more than it brings (and far more on a busy machine)."""


def device_of(name: str) -> str:
    """Resolve `auto`: CUDA if there is one, else the CPU. Raises UserError if this machine lacks the device."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise UserError(f"model.device = {name!r} is no device that hone runs on: use auto, cpu, cuda or cuda:1")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"model.device = {name!r}, but torch finds no CUDA device here: use auto or cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(
            f"model.device = {name!r}, but there are {torch.cuda.device_count()} CUDA devices, counted from cuda:0"
        )
    return name


Config = TypeVar("Config", bound=RLConfig | SFTConfig)
DECIDED = ("threads", "deterministic", "micro_batch_tokens", "checkpointing", "kv_gib")
"""Settings that the machine decides where the user does not, in whichever section of a config they are."""


def resolved(
    config: Config, model: DecoderConfig, device: str, ranks: Ranks = ALONE, threads: int | None = None
) -> Config:
    """Return the config with all that the machine decides where it is left open.

    A run that is resumed keeps what it began with, whatever this machine is like; what an older hone has left open in
    its config.toml stays so, and means that version's default. `threads` are those of a trainer in another process,
    which has chosen by its device's memory.
    """
    kind = torch.device(device).type
    source = config.resume and (config.resume.dir or config.output_dir)
    if source is not None and run_info(source) is not None and (source / "config.toml").exists():
        config = _filled(config, read_config(source, "rl" if isinstance(config, RLConfig) else "sft")[0])
        return _filled(config, {"deterministic": kind == "cpu"})
    tokens = {"micro_batch_tokens": micro_batch_limit(config, kind)}
    counted = threads or default_threads(model.parameters, ranks)
    config = _filled(config, {"threads": counted, "deterministic": kind == "cpu", "trainer": tokens, "data": tokens})
    if threads is not None:
        return config
    room = free_memory(device) // (ranks.local_world if kind == "cpu" else 1)
    work = (*longest(config), ranks.world)
    config = fitted(config, model, kind, room, *work)
    step = sum(memory(config, model, kind, *work).of("training").values())
    if step > room and config.display != "none" and ranks.first:
        section = "trainer." if isinstance(config, RLConfig) else ""
        leaner = "precision = bf16"
        if ranks.alone:
            leaner += f", {section}optim.state = 8bit" + (
                f" or {section}optim.offload = true" if kind == "cuda" else ""
            )
        print(
            f"Warning: a step takes about {step / GIB:.1f} GiB, and {room / GIB:.1f} GiB are free on {device}: lower "
            f"{section or 'data.'}micro_batch_tokens, or set {leaner}",
            flush=True,
        )
    return config


def _filled(config: Any, table: dict[str, Any]) -> Any:
    """Return the config, or a section, with the values of `table` for what the machine decides and is left open."""
    update = {name: table[name] for name in DECIDED if name in table and getattr(config, name, "") is None}
    for name in ("trainer", "data", "inference"):
        if isinstance(section := getattr(config, name, None), BaseConfig) and name in table:
            update[name] = _filled(section, table[name])
    return config.model_copy(update=update)


def free_memory(device: str) -> int:
    """Return the bytes of a device that this process may take: what is free, and what it holds without use."""
    if torch.device(device).type == "cpu":
        return ram()[1]
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused


def serving_kv_gib(device: str) -> float:
    """Return the GiB of keys and values for an engine without a trainer, whose model is loaded: on a GPU half of what
    is free, for sequences that come and go are copied, and logits and prompts take their part.
    """
    if torch.device(device).type == "cpu":
        return KV_GIB
    return max(1, free_memory(device) // 2 // 2**20) * 2**20 / GIB


def _tune_malloc(ranks: Ranks) -> None:
    """Tell glibc how to treat freed memory; does nothing on other C libraries.

    Alone it is reused instead of given back to the system: mapping and clearing activations of a few MB anew took a
    fifth of an SFT step of the tiny preset (63 ms against 50 ms). A model in shards gathers and frees its layers all
    the time, which leaves gaps in the heap: given back at once, 61M parameters take 950 MiB a rank, not 1,550.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return
    mallopt(_M_MMAP_THRESHOLD, 32 * 2**20 if ranks.alone else 2**20)
    if ranks.alone:
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def configure(threads: int | None, parameters: int, deterministic: bool = True, ranks: Ranks = ALONE) -> int:
    """Set the number of CPU threads and, if asked, deterministic kernels; returns the number of threads."""
    _tune_malloc(ranks)
    count = threads or default_threads(parameters, ranks)
    torch.set_num_threads(count)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        # Writing NaN into every fresh tensor is for finding reads of unset memory; it costs 5 % of a step.
        torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]
    return count


def default_threads(parameters: int, ranks: Ranks = ALONE) -> int:
    """Return 1 for a small model, else one per core that this process may use, of which several ranks on a machine have
    equal shares.
    """
    cores = int(os.environ.get(CORES) or share_of_cores(1))  # its share of them, where a run's roles share the machine
    return 1 if parameters < SMALL_MODEL else max(1, cores // ranks.local_world)


@contextmanager
def kept_settings() -> Iterator[None]:
    """Put threads and kernels back, whatever `configure` made of them in the block."""
    threads, pinned = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(pinned, warn_only=warn_only)
        torch.utils.deterministic.fill_uninitialized_memory = filled  # pyright: ignore[reportAttributeAccessIssue]
