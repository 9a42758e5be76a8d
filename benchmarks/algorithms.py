"""What each algorithm learns of reverse-text with the tiny preset, over seeds, recorded as JSON and as a table.

    .venv/bin/python benchmarks/algorithms.py --jobs 2

For each seed one SFT run (examples/reverse_text/tiny_sft.toml), and from its model one RL run of each algorithm
(examples/algorithms/tiny.toml). All models answer the same held-out examples, sampled at T=1. What is done is kept in
`--work`, so the command goes on where it was ended; `--fresh` begins anew.

`steps_to` is the first step by which the mean training reward of ten steps is 0.9. With one update a batch on fresh
samples the ratio is 1: only advantages, and what each token counts, show here.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from recording import cpu_model, keep, show

ROOT = Path(__file__).resolve().parents[1]
SFT, RL = ROOT / "examples/reverse_text/tiny_sft.toml", ROOT / "examples/algorithms/tiny.toml"
BASELINE, DEFAULTS = "after SFT", "defaults"
LEARNING_RATES: dict[str, float] = {}
"""Of algorithms that learn more with another one than the recipe's."""
OWN_FLAGS: dict[str, list[str]] = {"maxrl": ["--orchestrator.truncated", "mask"]}
"""Of algorithms that cannot take the recipe's: a penalty makes rewards negative, and maxrl divides by their mean."""
LEARNED, WINDOW = 0.9, 10


def main(argv: list[str] | None = None) -> None:
    from hone.config.algorithms import ALGORITHMS

    names = (DEFAULTS, *ALGORITHMS)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", nargs="+", choices=names, default=list(names))
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0, 1, …")
    parser.add_argument("--examples", type=int, default=512, help="held-out examples")
    parser.add_argument("--sft-steps", type=int, default=900)
    parser.add_argument("--steps", type=int, default=150, help="steps of RL")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side, of one thread each")
    parser.add_argument("--fresh", action="store_true", help="do again what is done")
    parser.add_argument("--work", type=Path, default=Path("outputs/algorithms"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/algorithms.json"))
    args = parser.parse_args(argv)
    if args.fresh:
        shutil.rmtree(args.work, ignore_errors=True)
    common = args.work, args.sft_steps, args.steps, args.examples
    with ProcessPoolExecutor(args.jobs, multiprocessing.get_context("spawn")) as pool:
        baselines = [pool.submit(cell, BASELINE, seed, *common) for seed in range(args.seeds)]
        runs = []
        for seed, baseline in enumerate(baselines):
            baseline.result()  # its model is what the runs of the seed start from
            runs += [pool.submit(cell, name, seed, *common) for name in args.algorithms]
        cells = [one.result() for one in baselines + runs]
    result = {
        "workload": {"sft_steps": args.sft_steps, "steps": args.steps, "examples": args.examples, "jobs": args.jobs},
        "algorithms": {
            name: summary([one for one in cells if one["algorithm"] == name]) for name in (BASELINE, *args.algorithms)
        },
        "machine": {"cpu": cpu_model(), "threads": 1, "python": platform.python_version(), "torch": version("torch")},
    }
    keep(result, args.out)
    show(result)
    print(table(result))


def cell(algorithm: str, seed: int, work: Path, sft_steps: int, steps: int, examples: int) -> dict[str, Any]:
    """Train and evaluate, unless that is done; `BASELINE` is the SFT that RL starts from."""
    done, folder = work / "cells" / f"{algorithm}-{seed}.json", work / f"{algorithm.replace(' ', '-')}-{seed}"
    settings: dict[str, Any] = {"sft_steps": sft_steps, "examples": examples}
    if algorithm != BASELINE:
        settings |= {"steps": steps, "lr": LEARNING_RATES.get(algorithm), "flags": OWN_FLAGS.get(algorithm, [])}
    if done.exists() and (record := json.loads(done.read_text()))["settings"] == settings:
        return record
    shutil.rmtree(folder, ignore_errors=True)
    flags = ["--seed", str(seed), "--output-dir", str(folder)]
    if algorithm == BASELINE:
        seconds = train("sft", SFT, *flags, "--max-steps", str(sft_steps)) / sft_steps
    else:
        start = work / f"{BASELINE.replace(' ', '-')}-{seed}" / "weights" / f"step_{sft_steps}"
        flags += ["--model.name", str(start), "--max-steps", str(steps), "--no-orchestrator.eval"]
        flags += [] if algorithm == DEFAULTS else ["--algorithm", algorithm]
        flags += settings["flags"]
        flags += ["--trainer.optim.lr", str(settings["lr"])] if settings["lr"] else []
        seconds = train("rl", RL, *flags) / steps
    record = {"algorithm": algorithm, "seed": seed, "settings": settings, "seconds_per_step": seconds}
    record |= held_out(folder, examples) | course(folder)
    keep(record, done)
    return record


def train(kind: str, file: Path, *flags: str) -> float:
    """Run a command of hone; returns the seconds of the processor that it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "hone.cli", kind, "@", str(file), *flags, "--threads", "1"], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def held_out(folder: Path, examples: int) -> dict[str, Any]:
    """Return the rewards of held-out examples at T=1, and the share of right answers."""
    from hone.environments import load_environment
    from hone.inference.types import SamplingParams
    from hone.loops.evaluating import evaluate_weights, load_weights
    from hone.runs import Run

    weights = Run(folder).weights()
    found = evaluate_weights(
        load_weights(str(weights[max(weights)]), "bf16_linear", threads=1),
        load_environment("reverse-text"),
        SamplingParams(temperature=1.0),
        num_examples=examples,
        rollouts_per_example=1,
        max_tokens=19,
        seed=0,
    )
    return {"rewards": found.rewards.tolist(), "correct": found.correct}


def course(folder: Path) -> dict[str, Any]:
    """Return what a run's metrics say: its learning rate, and the training reward by step."""
    from hone.runs import Run

    columns = {name: [v for v in values if v is not None] for name, values in Run(folder).metrics().to_pydict().items()}
    found: dict[str, Any] = {"lr": columns["lr"][-1]}
    if "reward/mean" in columns:
        found["curve"] = [round(value, 4) for value in columns["reward/mean"]]
    return found


def steps_to(curve: Sequence[float]) -> int | None:
    """Return the number of steps after which the mean of the last `WINDOW` rewards is `LEARNED`; None if never."""
    means = np.convolve(curve, np.full(WINDOW, 1 / WINDOW), "valid") if len(curve) >= WINDOW else np.zeros(0)
    reached = np.flatnonzero(means >= LEARNED)
    return int(reached[0]) + WINDOW if len(reached) else None


def summary(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of one algorithm. The interval is over held-out examples, each with one completion a seed."""
    from hone.evaluation.intervals import mean_interval

    rewards_SE = np.array([one["rewards"] for one in cells])
    interval = mean_interval(list(rewards_SE.T))
    assert interval is not None
    found = {
        "reward": float(rewards_SE.mean()),
        "ci95/low": interval.low,
        "ci95/high": interval.high,
        "reward_by_seed": rewards_SE.mean(axis=1).tolist(),
        "correct": float(np.mean([one["correct"] for one in cells])),
        "lr": cells[0]["lr"],
        "seconds_per_step": median(one["seconds_per_step"] for one in cells),
    }
    if "curve" in cells[0]:
        found["steps_to"] = [steps_to(one["curve"]) for one in cells]
    return found


def table(result: dict[str, Any]) -> str:
    """Markdown: a row for each algorithm. Steps are the median over seeds, "—" where most seeds never come there."""
    lines = [
        "| `algorithm` | reward, 95 % interval | worst seed | right | steps to 0.9 | s a step |",
        "|---|---|---|---|---|---|",
    ]
    for name, of in result["algorithms"].items():
        label = name if name in (BASELINE, DEFAULTS) else f"`{name}`"
        if name in LEARNING_RATES:
            label += f", lr {of['lr']:.0e}"
        steps = median(np.inf if s is None else s for s in of["steps_to"]) if "steps_to" in of else np.inf
        cells = [
            label,
            f"{of['reward']:.3f} ({of['ci95/low']:.3f} to {of['ci95/high']:.3f})",
            f"{min(of['reward_by_seed']):.3f}",
            f"{100 * of['correct']:.0f} %",
            f"{steps:.0f}" if steps < np.inf else "—",
            f"{of['seconds_per_step']:.2f}" if "steps_to" in of else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
