"""What LoRA learns of reverse-text with the tiny preset beside training all weights, over seeds, recorded as JSON.

    .venv/bin/python benchmarks/lora.py --jobs 2

For each seed one SFT run of all weights (examples/reverse_text/tiny_sft.toml), and from its model an RL run of each way
(examples/algorithms/tiny.toml). All models answer the same held-out examples, sampled at T=1. Seconds a step are the
processor's, of the whole command; bytes those of weights, gradients and optimiser state by `hone plan`'s table.
"""

from __future__ import annotations

import argparse
import multiprocessing
import platform
import shutil
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

from algorithms import BASELINE, RL, cell, course, held_out, summary, train
from recording import cpu_model, keep, show

WAYS: dict[str, list[str]] = {
    "all weights": [],
    "rank 8": ["--model.lora.rank", "8", "--trainer.optim.lr", "3e-3"],
    "rank 8, base in 8 bits": ["--model.lora.rank", "8", "--model.lora.base", "8bit", "--trainer.optim.lr", "3e-3"],
    "rank 8, base in 4 bits": ["--model.lora.rank", "8", "--model.lora.base", "4bit", "--trainer.optim.lr", "3e-3"],
}
"""Flags of each way of training."""


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0, 1, …")
    parser.add_argument("--examples", type=int, default=512, help="held-out examples")
    parser.add_argument("--sft-steps", type=int, default=900)
    parser.add_argument("--steps", type=int, default=150, help="steps of RL")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side, of one thread each")
    parser.add_argument("--work", type=Path, default=Path("outputs/lora"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/lora.json"))
    args = parser.parse_args(argv)
    common = args.work, args.sft_steps, args.steps, args.examples
    with ProcessPoolExecutor(args.jobs, multiprocessing.get_context("spawn")) as pool:
        baselines = [pool.submit(cell, BASELINE, seed, *common) for seed in range(args.seeds)]
        begun = [one.result() for one in baselines]
        runs = {way: [pool.submit(learned, way, seed, *common) for seed in range(args.seeds)] for way in args.ways}
        found = {way: summary([one.result() for one in futures]) for way, futures in runs.items()}
    result = {
        "workload": {"sft_steps": args.sft_steps, "steps": args.steps, "examples": args.examples, "jobs": args.jobs},
        "after SFT": summary(begun),
        "ways": {way: of | {"bytes": bytes_of(way)} for way, of in found.items()},
        "machine": {"cpu": cpu_model(), "threads": 1, "python": platform.python_version(), "torch": version("torch")},
    }
    keep(result, args.out)
    show(result)


def learned(way: str, seed: int, work: Path, sft_steps: int, steps: int, examples: int) -> dict[str, Any]:
    """Train from the seed's SFT, and evaluate."""
    folder = work / f"{way.replace(' ', '-')}-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    start = work / f"{BASELINE.replace(' ', '-')}-{seed}" / "weights" / f"step_{sft_steps}"
    flags = ["--seed", str(seed), "--output-dir", str(folder), "--model.name", str(start), "--max-steps", str(steps)]
    seconds = train("rl", RL, *flags, "--no-orchestrator.eval", *WAYS[way]) / steps
    return {"seed": seed, "seconds_per_step": seconds} | held_out(folder, examples) | course(folder)


def bytes_of(way: str) -> int:
    """Return what weights, gradients and optimiser state take."""
    from hone.config.parse import parse
    from hone.config.rl import RLConfig
    from hone.model.presets import tiny_config
    from hone.trainer.memory import training_bytes

    config = parse(RLConfig, ["@", str(RL), *WAYS[way]], "rl")
    parts = training_bytes(config, tiny_config(config.model.init), "cpu", 24, 19)
    return sum(parts[name] for name in ("weights", "gradients", "optimiser"))


if __name__ == "__main__":
    main()
