"""What three processes cost and bring on the quickstart's RL: seconds a step against one process, idle times, reward.

    .venv/bin/python benchmarks/split.py --out benchmarks/results/split.json

One process, three in lock-step (k = 0) and three that run up to k = 1 and 2 versions apart take turns, as the commands
that a user would type, on two cores with one thread each. The seconds of step i are the median over the rounds; a ratio
is that of the sums over all steps but the first. Lock-step takes the same draws as one process; what it adds is the
way of the batch, of the weights (write, load, swap) and of the completions as JSON over HTTP. Then each of them runs
the whole recipe once, for the reward on held-out phrases.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import tempfile
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from exactness import EXAMPLES, ROOT, command, recipe, step_seconds, timings
from recording import show

from hone.processes import free_port
from hone.runs import Run
from hone.runs.provenance import hardware

VARIANTS: dict[str, tuple[str, ...]] = {
    "colocated": (),
    "split_0": ("--mode", "split"),
    "split_1": ("--mode", "split", "--orchestrator.max-async-level", "1"),
    "split_2": ("--mode", "split", "--orchestrator.max-async-level", "2"),
}
IDLE = ("idle/orchestrator", "idle/trainer", "idle/inference")


def train(config: Path, variant: str, out: Path, *more: object) -> Run:
    port = ("--inference.port", free_port()) if variant != "colocated" else ()
    flags = ("--output-dir", out, "--display", "none", *VARIANTS[variant], *port, *more)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(command("rl", "@", config, *flags), check=True, stdout=subprocess.DEVNULL, env=environment)
    return Run(out)


def take_turns(config: Path, steps: int, rounds: int, work: Path) -> dict[str, list[Run]]:
    """`rounds` runs of each variant; another variant begins in each round."""
    runs: dict[str, list[Run]] = {name: [] for name in VARIANTS}
    names = list(VARIANTS)
    for index in range(rounds):
        turn = index % len(names)
        for name in names[turn:] + names[:turn]:
            runs[name].append(train(config, name, work / f"{name}-{index}", "--max-steps", steps))
            mean = sum(step_seconds(runs[name][-1:])) / (steps - 1)
            print(f"round {index + 1}/{rounds}, {name}: {1000 * mean:.0f} ms a step", flush=True)
    return runs


def figures(runs: list[Run], baseline: list[Run]) -> dict[str, Any]:
    """Of one variant: seconds a step, the ratio to one process, the share of a step that each role is idle."""
    lines = [line for run in runs for line in timings(run)]
    seconds = sum(step_seconds(runs))
    metrics = [line for run in runs for line in run.metrics().to_pylist() if "staleness/mean" in line]
    stale = [line["staleness/mean"] for line in metrics if line["staleness/mean"] is not None]
    return {
        "seconds_per_step": seconds / len(step_seconds(runs)),
        "ratio": seconds / sum(step_seconds(baseline)),
        "of_rounds": [sum(step_seconds([a])) / sum(step_seconds([b])) for a, b in zip(runs, baseline, strict=True)],
        "idle_share": {
            name.removeprefix("idle/"): sum(line[name] for line in lines) / sum(line["time/step"] for line in lines)
            for name in IDLE
            if name in lines[0]
        },
        "update_seconds": median(line.get("time/update", 0.0) for line in lines),
        "staleness": sum(stale) / len(stale),
    }


def examples(run: Run, steps: int) -> list[list[str]]:
    """The example ids of each step, in order."""
    return [run.rollouts(step)["example_id"].to_pylist() for step in range(steps)]


def cost(config: Path, steps: int, rounds: int, work: Path) -> dict[str, Any]:
    runs = take_turns(config, steps, rounds, work)
    drawn = {name: examples(members[0], steps) for name, members in runs.items()}
    return {
        "workload": {"completions": 128, "steps": steps, "rounds": rounds, "threads": 1},
        "variants": {name: figures(members, runs["colocated"]) for name, members in runs.items()},
        "equal_examples": all(ids == drawn["colocated"] for ids in drawn.values()),
    }


def learned(config: Path, work: Path) -> dict[str, Any]:
    """The reward on held-out phrases after the whole recipe, by variant."""
    found = {}
    for name in VARIANTS:
        evaluate = ("--orchestrator.eval.interval", 1000, "--orchestrator.eval.num-examples", 512)
        run = train(config, name, work / f"learned-{name}", *evaluate)
        first, *_, last = run.metrics().to_pylist()
        key = "eval/reverse-text/reward/mean"
        found[name] = {"before": first[key], "after": last[key], "steps": last["step"]}
        print(f"{name}: reward {first[key]:.3f} -> {last[key]:.3f}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, help="model to start from (default: the quickstart's SFT, a minute)")
    parser.add_argument("--steps", type=int, default=41, help="steps of a run")
    parser.add_argument("--rounds", type=int, default=4, help="runs of each variant")
    parser.add_argument("--part", choices=("both", "cost", "learning"), default="both", help="the rest stays in --out")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        work, weights = Path(tmp), args.weights
        if weights is None:
            print("SFT of the quickstart, about a minute", flush=True)
            sft = command("sft", "@", EXAMPLES / "tiny_sft.toml", "--output-dir", work / "sft", "--display", "none")
            subprocess.run(sft, check=True, cwd=ROOT)
            weights = work / "sft/weights/step_900"
        config = recipe(weights.resolve(), work)
        result: dict[str, Any] = json.loads(args.out.read_text()) if args.part != "both" and args.out.exists() else {}
        if args.part != "learning":
            result |= cost(config, args.steps, args.rounds, work)
        if args.part != "cost":
            result["learned"] = learned(config, work)
    result["versions"] = {"python": platform.python_version(), "torch": version("torch")}
    result["hardware"] = hardware()
    show(result, args.out)


if __name__ == "__main__":
    main()
