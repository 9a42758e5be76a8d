"""The vocabulary head, forward and backward: hone's one function against chunks under torch.utils.checkpoint.

    .venv/bin/python benchmarks/head.py --out benchmarks/results/head.json

Sizes are those of SmolLM2-135M: V = 49,152, D = 576; 3,072 tokens with loss, fp32 parameters. The other side is how
hone 0.1 did it, and what most trainers do: chunks of 682 tokens, log_softmax by autograd, the entropy apart. Both take
turns on the same inputs; figures are medians of seconds.

Then the peak of a whole train step with V = 151,936 and no cache, beyond what it has to hold: parameters, gradients,
optimiser state, and activations as checkpointed. It is counted by torch's MemTracker, in bytes of tensors.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import torch
from recording import cpu_model, show
from torch import Tensor
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils.checkpoint import checkpoint

from hone.algorithms.losses import sft_objective
from hone.config.shared import OptimConfig, SchedulerConfig
from hone.model.config import DecoderConfig
from hone.model.head import MAX_LOGITS, head_logprobs
from hone.model.presets import random_decoder
from hone.trainer.packing import Sequence, pack
from hone.trainer.step import Trainer

VOCAB, HIDDEN, TOKENS, ROUNDS = 49_152, 576, 3_072, 5
LARGE_VOCAB = 151_936
Head = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def checkpointed(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Chunks of autograd's own operations, computed again in the backward pass."""

    def chunk(hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logprobs = torch.log_softmax(hidden @ weight.T, dim=-1)
        with torch.no_grad():
            entropy = -(logprobs.exp() * logprobs).sum(-1)
        return logprobs.gather(1, targets[:, None]).squeeze(1), entropy

    rows = MAX_LOGITS // weight.shape[0]
    chunks = zip(hidden.split(rows), targets.split(rows), strict=True)
    parts = [checkpoint(chunk, *part, use_reentrant=False) for part in chunks]
    return torch.cat([logprobs for logprobs, _ in parts]), torch.cat([entropy for _, entropy in parts])


HEADS: dict[str, Head] = {
    "chunks under checkpoint": checkpointed,
    "hone, fp32": lambda h, w, t: head_logprobs(h, w, t, precision="fp32"),
    "hone, bf16_linear, no cache": lambda h, w, t: head_logprobs(h, w, t, precision="bf16_linear", cache_bytes=0),
    "hone, bf16_linear": lambda h, w, t: head_logprobs(h, w, t, precision="bf16_linear"),
}


def timed(threads: int) -> dict[str, dict[str, float]]:
    """Seconds of each head on so many threads, and how far its values and gradients are from the first one's."""
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(rows, HIDDEN, generator=generator) for rows in (TOKENS, VOCAB))
    weight *= 0.05
    targets = torch.randint(0, VOCAB, (TOKENS,), generator=generator)
    loss_weights = torch.randn(TOKENS, generator=generator)
    seconds: dict[str, list[float]] = {name: [] for name in [*HEADS, "limit"]}
    found: dict[str, tuple[Tensor, ...]] = {}
    for _ in range(ROUNDS):
        for name, head in HEADS.items():
            inputs = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
            began = time.perf_counter()
            logprobs, entropies = head(*inputs, targets)
            (logprobs * loss_weights).sum().backward()
            seconds[name].append(time.perf_counter() - began)
            gradients = [tensor.grad for tensor in inputs if tensor.grad is not None]
            found[name] = (logprobs.detach(), entropies.detach(), *gradients)
        began = time.perf_counter()
        torch.mm(hidden[:682], weight.T)
        seconds["limit"].append(3 * (time.perf_counter() - began) * TOKENS / 682)
    first = found["chunks under checkpoint"]
    result: dict[str, dict[str, float]] = {"limit": {"seconds": median(seconds["limit"])}}
    for name in HEADS:
        logprobs, entropies, *gradients = found[name]
        result[name] = {
            "seconds": median(seconds[name]),
            "logprobs_max": float((logprobs - first[0]).abs().max()),
            "entropies_max": float((entropies - first[1]).abs().max()),
            "gradients_relative": max(
                float((a - b).norm() / b.norm()) for a, b in zip(gradients, first[2:], strict=True)
            ),
        }
    return result


def step_peak(tokens: int) -> dict[str, float]:
    """Bytes of a train step on one sequence of `tokens` tokens, at its peak."""
    torch.set_num_threads(2)
    config = DecoderConfig(
        family="qwen3",
        vocab_size=LARGE_VOCAB,
        hidden_size=64,
        intermediate_size=128,
        num_layers=4,
        num_heads=2,
        num_kv_heads=1,
        head_dim=32,
        qk_norm=True,
        max_position_embeddings=tokens,
    )
    model = random_decoder(config)
    trainer = Trainer(
        model, OptimConfig(), SchedulerConfig(), 10, sft_objective, checkpointing="layer", head_cache_bytes=0
    )
    batch = pack([Sequence(np.arange(tokens) % LARGE_VOCAB, np.arange(tokens) > 0)])
    trainer.step([batch])  # makes the optimiser's state
    tracker = MemTracker()
    tracker.track_external(model, trainer.optimizer.adamw)
    with tracker:
        trainer.step([batch])
    peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    weights = 4 * model.num_parameters
    held = 4 * weights + 4 * config.num_layers * tokens * config.hidden_size
    return {"peak": peak, "held": held, "beyond": peak - held, "chunks": (peak - held) / (4 * MAX_LOGITS)}


def main() -> None:
    """Measure, show and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    show(
        {
            "cpu": cpu_model(),
            "torch": torch.__version__,
            "sizes": {"vocab": VOCAB, "hidden": HIDDEN, "tokens": TOKENS},
            "threads": {threads: timed(threads) for threads in (1, 2)},
            "step_peak": {tokens: step_peak(tokens) for tokens in (4096, 8192)},
        },
        parser.parse_args().out,
    )


if __name__ == "__main__":
    main()
