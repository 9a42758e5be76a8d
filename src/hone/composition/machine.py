"""Threads, device and kernels of this process: pinned where a run has to be repeatable."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

import numpy as np
import torch

from hone.errors import UserError
from hone.model.decoder import Decoder
from hone.orchestrator.placement import CORES, share_of_cores
from hone.rng import stream
from hone.trainer.logprobs import loss_indices, token_logprobs
from hone.trainer.packing import MICRO_BATCH_TOKENS, Sequence, pack
from hone.trainer.parallel import ALONE, Ranks
from hone.types import PackedBatch

SMALL_MODEL = 10_000_000
"""Below this many parameters a second thread costs more than it brings (and far more on a busy machine)."""


def device_of(name: str) -> str:
    """`auto` resolved: CUDA if there is one, else the CPU. UserError for a device that this machine does not have."""
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


def usable_cores() -> int:
    """Cores that this process may use: its share of them, where a run's roles share the machine."""
    return int(os.environ.get(CORES) or share_of_cores(1))


def keep_freed_memory() -> None:
    """Tells glibc to reuse freed memory instead of giving it back to the system; does nothing on other C libraries.

    Activations of a few MB are allocated and freed all the time; mapping and clearing them anew took a fifth of an SFT
    step of the tiny preset (63 ms against 50 ms).
    """
    if (mallopt := _mallopt()) is not None:
        mallopt(_M_MMAP_THRESHOLD, 32 * 2**20)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def return_freed_memory() -> None:
    """Tells glibc to give freed tensors back to the system at once; does nothing on other C libraries.

    A model in shards gathers and frees its layers all the time. In glibc's heap the pieces of different sizes leave
    gaps: of 61M parameters a rank of two then took 1,550 MiB, as much as one process alone; so it takes 950, in the
    same time.
    """
    if (mallopt := _mallopt()) is not None:
        mallopt(_M_MMAP_THRESHOLD, 2**20)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def _mallopt() -> Callable[[int, int], int] | None:
    return getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None


def configure(threads: int | None, parameters: int, deterministic: bool = True, ranks: Ranks = ALONE) -> int:
    """Sets the number of CPU threads and, if asked, deterministic kernels; returns the number of threads.

    Without `threads`: 1 for a small model, else one per core that this process may use, of which several ranks on a
    machine have equal shares.
    """
    if ranks.alone:
        keep_freed_memory()
    else:
        return_freed_memory()
    count = threads or (1 if parameters < SMALL_MODEL else max(1, usable_cores() // ranks.local_world))
    torch.set_num_threads(count)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        _pin_kernels(True)
    return count


@contextmanager
def kept_settings() -> Iterator[None]:
    """Puts threads and kernels back, whatever `configure` made of them in the block."""
    threads, pinned = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(pinned, warn_only=warn_only)
        torch.utils.deterministic.fill_uninitialized_memory = filled  # pyright: ignore[reportAttributeAccessIssue]


def _pin_kernels(on: bool) -> None:
    torch.use_deterministic_algorithms(on)
    # Writing NaN into every fresh tensor is for finding reads of unset memory; it costs 5 % of a step.
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]


def determinism_note(model: Decoder, seq_len: int, micro_batch_tokens: int | None = None) -> str:
    """What deterministic kernels cost here, as a sentence for the start of a run; "" where they are off or on a CPU.

    Measures for about a second. UserError if the model meets an operation that has no deterministic kernel.
    """
    if model.device.type == "cpu" or not torch.are_deterministic_algorithms_enabled():
        return ""
    tokens = min(micro_batch_tokens or MICRO_BATCH_TOKENS["cuda"], 4096)
    try:
        cost = determinism_cost(model, seq_len, tokens)
    except RuntimeError as error:
        if "deterministic" not in str(error) or isinstance(error, torch.OutOfMemoryError):
            raise
        raise UserError(
            f"deterministic = true, but {str(error).splitlines()[0]}: set --deterministic false; the run is marked "
            "inexact then"
        ) from None
    return cost_sentence(cost, tokens)


def cost_sentence(cost: float, tokens: int) -> str:
    """`cost` as `determinism_cost` gives it, in words."""
    percent = round(100 * cost)
    change = f"{percent} % longer" if percent > 0 else "no longer"
    return (
        f"Deterministic kernels (deterministic = true): forward and backward of {tokens:,} tokens take {change} than "
        "without."
    )


def determinism_cost(
    model: Decoder,
    seq_len: int,
    tokens: int,
    seconds: float = 1.0,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Share by which deterministic kernels lengthen forward and backward of one micro-batch: 0.08 is 8 % longer.

    Both take turns for about `seconds`, after one each that doesn't count; the figures are medians. Leaves the weights,
    the gradients (none) and the choice of kernels as they were.
    """
    batch = _made_up_batch(model, min(seq_len, tokens), tokens)
    before = torch.are_deterministic_algorithms_enabled()
    times: dict[bool, list[float]] = {False: [], True: []}
    try:
        for turn in range(50):
            for pinned in (False, True):
                _pin_kernels(pinned)
                times[pinned].append(_seconds_of_step(model, batch, clock))
            if turn and sum(sum(counted[1:]) for counted in times.values()) > seconds:
                break
    finally:
        _pin_kernels(before)
        model.zero_grad(set_to_none=True)
    return median(times[True][1:]) / median(times[False][1:]) - 1


def _made_up_batch(model: Decoder, length: int, tokens: int) -> PackedBatch:
    """Sequences of `length` random tokens, about `tokens` in all, on the model's device."""
    rng = stream(0, "determinism_cost")
    mask = np.arange(length) > 0
    ids = [rng.integers(model.config.vocab_size, size=length) for _ in range(max(1, tokens // length))]
    return pack([Sequence(token_ids, mask) for token_ids in ids], device=model.device)


def _seconds_of_step(model: Decoder, batch: PackedBatch, clock: Callable[[], float]) -> float:
    def finish() -> None:
        if model.device.type == "cuda":
            torch.cuda.synchronize(model.device)

    model.zero_grad(set_to_none=True)
    finish()
    started = clock()
    logprobs_M, _ = token_logprobs(model, batch, loss_indices(batch))
    logprobs_M.mean().backward()
    finish()
    return clock() - started
