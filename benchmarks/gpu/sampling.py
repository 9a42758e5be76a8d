"""Sampling on a GPU: decoded tokens/s of hone's engine and of transformers, and the gap to the trainer's logprobs.

    .venv/bin/python benchmarks/gpu/sampling.py --out benchmarks/results/gpu_sampling.json

Qwen3-0.6B's shape with random weights in bf16, batches of several sizes, prompts of 64 tokens and 128 new ones. The
time until the first token is measured by itself and left out. All sides take turns, as in `benchmarks/sampling.py`;
figures are medians of the rounds. The gap is that of contract 3, on the sampled tokens of one batch: mean and largest
|Δ| in nats, for each precision. Without a GPU it says so and measures nothing.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what the benchmarks share

import numpy as np
import torch
from limits import gemm_gflops, read_gigabytes, sampling_limits
from recording import show
from sampling import QWEN3_06B, HoneSide, Prompts, Side, TransformersSide, Workload, make_model, speedups, take_turns

from hone.config.shared import InitConfig
from hone.inference.types import SamplingParams
from hone.model.presets import tiny_config
from hone.runs.provenance import hardware
from hone.trainer.logprobs import token_logprobs
from hone.trainer.packing import Sequence, pack

PROMPT_TOKENS, NEW_TOKENS = 64, 128
PRECISIONS = ("fp32", "bf16_linear", "bf16")
HONE: dict[str, dict[str, Any]] = {"hone_graphs": {"cuda_graphs": True}, "hone": {}}
"""hone's sides: options of the engine."""


def decoding(side: Side) -> Side:
    """Seconds as if the first token were decoded like the others: prefill is left out."""

    def seconds(prompts: Prompts, new_tokens: int) -> float:
        return (side(prompts, new_tokens) - side(prompts, 1)) * new_tokens / (new_tokens - 1)

    return seconds


def gap(side: HoneSide, prompts: Prompts, new_tokens: int) -> dict[str, float]:
    """Mean and largest |Δ| between the engine's logprobs of its samples and the trainer's, in nats."""
    model = side.engine.model
    with torch.no_grad():
        model.embed.mul_(4)  # peaked, as a trained model is: different tokens have clearly different logprobs
    model.refresh()
    side.engine.weights_changed(1)
    samples = side.engine.generate(prompts, SamplingParams(max_tokens=new_tokens, ignore_eos=True))
    sequences = []
    for prompt, (sample,) in zip(prompts, samples, strict=True):
        ids = np.array([*prompt, *sample.token_ids])
        sequences.append(Sequence(ids, np.arange(len(ids)) >= len(prompt)))
    batch = pack(sequences, device=model.device)
    with torch.no_grad():
        trained, _ = token_logprobs(model, batch, batch.loss_indices)
    sampled = np.concatenate([sample.logprobs for (sample,) in samples])
    apart = np.abs(sampled - trained.cpu().numpy())
    return {"mean": float(apart.mean()), "max": float(apart.max()), "tokens": len(apart)}


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    config = HoneSide(folder, "bf16", args.device).engine.model.config
    gflops = {name: gemm_gflops(getattr(torch, name), args.device, args.gemm) for name in ("float32", "bfloat16")}
    gigabytes = read_gigabytes(args.device)
    batches: dict[str, Any] = {}
    for size in args.batches:
        work = Workload(size, args.prompt_tokens, args.new_tokens)
        sides: dict[str, Side] = {
            name: HoneSide(folder, "bf16", args.device, **options) for name, options in HONE.items()
        }
        sides["transformers"] = TransformersSide(folder, torch.bfloat16, args.device)
        decode = {name: decoding(side) for name, side in sides.items()}
        rounds = take_turns(decode, work, config.vocab_size, args.rounds, f"{size} sequences")
        shape = (work.prompts, work.prompt_tokens, work.new_tokens)
        batches[str(size)] = {
            "decoded_tokens_per_second": {name: median(row[name] for row in rounds) for name in rounds[0]},
            "speedup": speedups(rounds, next(iter(HONE)), "transformers"),
            "limits_tokens_per_second": sampling_limits(config, "bf16", *shape, gflops, gigabytes),
            "rounds": rounds,
        }
    prompts = Workload(16, args.prompt_tokens, 1).make(config.vocab_size, 0)
    gaps = {name: gap(HoneSide(folder, name, args.device), prompts, args.new_tokens) for name in PRECISIONS}
    return {
        "workload": {"prompt_tokens": args.prompt_tokens, "new_tokens": args.new_tokens, "precision": "bf16"},
        "batches": batches,
        "logprob_gap": gaps,
        "gemm_gflops": gflops,
        "read_gigabytes_per_second": gigabytes,
        "versions": {name: version(name) for name in ("torch", "transformers")} | {"python": platform.python_version()},
        "machine": hardware(),
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64, 256], help="sequences at once")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side that count")
    parser.add_argument("--quick", action="store_true", help="a toy of everything, on the CPU: says only that it runs")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args(argv)
    args.prompt_tokens, args.new_tokens, args.gemm, args.device = PROMPT_TOKENS, NEW_TOKENS, 8192, "cuda"
    config = QWEN3_06B
    if args.quick:
        args.prompt_tokens, args.new_tokens, args.gemm, args.device = 6, 5, 64, "cpu"
        config = tiny_config(InitConfig(layers=1, hidden=32, heads=2, kv_heads=1, head_dim=16, intermediate=32))
    elif not torch.cuda.is_available():
        print("Nothing is measured: torch finds no CUDA device here.")
        return
    with tempfile.TemporaryDirectory() as tmp:
        print("Making Qwen3-0.6B's shape with random weights", flush=True)
        result = measure(args, make_model(Path(tmp) / "model", config, "bf16"))
    show(result, args.out)


if __name__ == "__main__":
    main()
