"""What the tiny preset learns of char-count, countdown, scramble and calculator, over seeds, recorded as JSON.

    .venv/bin/python benchmarks/tasks.py --out benchmarks/results/tasks.json

Each run is `examples/TASK/tiny_sft.toml` and then `examples/TASK/tiny.toml` with another seed; both models answer the
same held-out examples, sampled at T=1. Runs of tasks that are not asked for stay in the record.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import time
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

from recording import cpu_model, keep, show

ROOT = Path(__file__).resolve().parents[1]
TASKS = ("char_count", "countdown", "scramble", "calculator")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0, 1, …")
    parser.add_argument("--examples", type=int, default=1000, help="held-out examples")
    parser.add_argument("--max-steps", type=int, help="fewer steps, to try the script")
    parser.add_argument("--work", type=Path, default=Path("outputs/tasks"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/tasks.json"))
    args = parser.parse_args(argv)
    machine = {"cpu": cpu_model(), "threads": 1, "python": platform.python_version(), "torch": version("torch")}
    kept = json.loads(args.out.read_text())["runs"] if args.out.exists() else []
    kept = [run for run in kept if run["task"] not in args.tasks]
    result: dict[str, Any] = {"examples": args.examples, "machine": machine, "runs": kept}
    for seed in range(args.seeds):
        for task in args.tasks:
            result["runs"].append(run(task, seed, args.work / f"{task}-{seed}", args.examples, args.max_steps))
            keep(result, args.out)
    show(result)


def run(task: str, seed: int, folder: Path, examples: int, max_steps: int | None) -> dict[str, Any]:
    """SFT, RL and the accuracy after each; seconds, of the clock and the processor, are those of the whole commands."""
    files = {"sft": ROOT / f"examples/{task}/tiny_sft.toml", "rl": ROOT / f"examples/{task}/tiny.toml"}
    configs = {kind: tomllib.loads(file.read_text()) for kind, file in files.items()}
    record: dict[str, Any] = {"task": task, "seed": seed}
    model: list[str] = []
    for kind, file in files.items():
        steps = max_steps or configs[kind]["max_steps"]
        flags = ["--seed", str(seed), "--output-dir", str(folder / kind), "--max-steps", str(steps), *model]
        started, cpu = time.monotonic(), cpu_seconds()
        subprocess.run([sys.executable, "-m", "hone.cli", kind, "@", str(file), *flags], check=True)
        seconds, cpu = time.monotonic() - started, cpu_seconds() - cpu
        weights = folder / kind / "weights" / f"step_{steps}"
        model = ["--model.name", str(weights)]
        record[kind] = {
            "seconds": seconds,
            "cpu_seconds": cpu,
            **accuracy(configs["rl"]["orchestrator"], weights, examples),
        }
    return record


def cpu_seconds() -> float:
    """Processor time of the commands so far."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def accuracy(orchestrator: dict[str, Any], weights: Path, examples: int) -> dict[str, float]:
    """Share of right answers to held-out examples at T=1, and the mean reward with its 95 % interval."""
    from hone.environments import load_environment
    from hone.inference.types import SamplingParams
    from hone.loops.evaluating import evaluate_weights, load_weights

    env = load_environment(orchestrator["env"]["id"], **orchestrator["env"].get("args", {}))
    found = evaluate_weights(
        load_weights(str(weights), "bf16_linear"),
        env,
        SamplingParams(temperature=1.0),
        num_examples=examples,
        rollouts_per_example=1,
        max_tokens=orchestrator["sampling"]["max_tokens"],
        seed=0,
    ).metrics()
    return {name: found[f"eval/{env.id}/{name}"] for name in ("correct", "reward/mean", "ci95/low", "ci95/high")}


if __name__ == "__main__":
    main()
