"""What exactness costs on the quickstart's RL: deterministic kernels, checkpoints, a resume, rollouts on disk.

    .venv/bin/python benchmarks/exactness.py --out benchmarks/results/exactness.json

Three variants of one run take turns: as the recipe has it, with `--deterministic false`, and with `--ckpt.interval 10`.
On a CPU all three take the same steps, so step i of one is compared with step i of another: a cost is the ratio of the
sums of medians over all steps but the first. Then runs are killed after a checkpoint, and resumed. The fingerprint of
the weights, which every step takes, is timed by itself.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import tomli_w
import torch
from recording import show

from hone.model.hf import load_model
from hone.runs import Run
from hone.runs.files import is_complete
from hone.runs.provenance import hardware
from hone.runs.view import read_lines
from hone.trainer.fingerprint import fingerprint

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
EXAMPLES = ROOT / "examples/reverse_text"
INTERVAL = 10
VARIANTS = {
    "recipe": (),
    "not_deterministic": ("--deterministic", "false"),
    "checkpoints": ("--ckpt.interval", str(INTERVAL)),
}


def command(name: str, *arguments: object) -> list[str]:
    return [str(BIN / name), *map(str, arguments)]


def recipe(weights: Path, folder: Path) -> Path:
    """The quickstart's RL on `weights`, without evaluation, which would hide what is measured."""
    config = tomllib.loads((EXAMPLES / "tiny.toml").read_text())
    config["model"]["name"] = str(weights)
    del config["orchestrator"]["eval"]
    path = folder / "rl.toml"
    path.write_text(tomli_w.dumps(config))
    return path


def take_turns(config: Path, steps: int, rounds: int, work: Path) -> dict[str, list[Run]]:
    """`rounds` runs of each variant; another variant begins in each round."""
    runs: dict[str, list[Run]] = {name: [] for name in VARIANTS}
    names = list(VARIANTS)
    for index in range(rounds):
        for name in names[index % len(names) :] + names[: index % len(names)]:
            out = work / f"{name}-{index}"
            flags = ("--max-steps", steps, "--output-dir", out, "--display", "none", *VARIANTS[name])
            subprocess.run(command("rl", "@", config, *flags), check=True, stdout=subprocess.DEVNULL)
            runs[name].append(Run(out))
            mean = sum(step_seconds(runs[name][-1:])) / (steps - 1)
            print(f"round {index + 1}/{rounds}, {name}: {1000 * mean:.1f} ms a step", flush=True)
    return runs


def timings(run: Run) -> list[dict[str, Any]]:
    """The lines of the steps but the first, whose kernels are still being made, and without that of the end."""
    return run.timings().to_pylist()[1 : run.config["max_steps"]]


def step_seconds(runs: list[Run]) -> list[float]:
    """Seconds of each step: the median over the runs."""
    return [
        median(times) for times in zip(*([line["time/step"] for line in timings(run)] for run in runs), strict=True)
    ]


def metrics_bytes(runs: dict[str, list[Run]]) -> set[bytes]:
    return {(run.path / "metrics.jsonl").read_bytes() for members in runs.values() for run in members}


def blocking_milliseconds(runs: list[Run]) -> list[float]:
    """How long the loop waited for each checkpoint."""
    return [1000 * line["time/checkpoint"] for run in runs for line in timings(run) if line["step"] % INTERVAL == 0]


def bytes_per_token(run: Run) -> list[float]:
    """Of each step's rollouts: the size of the file over the tokens of prompts and completions."""
    result = []
    for step in run.rollout_steps():
        tokens = sum(map(len, run.rollouts(step)["token_ids"].to_pylist()))
        result.append((run.path / "rollouts" / f"step_{step:06d}.parquet").stat().st_size / tokens)
    return result


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def last_step(run: Path) -> int:
    lines = read_lines(run / "timings.jsonl")
    return lines[-1]["step"] if lines else -1


def resume_seconds(config: Path, out: Path) -> float:
    """Kills a run after its first checkpoint, resumes it: from the start of that process to the start of its next step.

    The step's start is the moment that its timings are written, less the seconds of its phases.
    """
    arguments = command("rl", "@", config, "--output-dir", out, "--display", "none", "--ckpt.interval", INTERVAL)
    killed = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
    wait_for(lambda: is_complete(out / f"checkpoints/step_{INTERVAL}"), killed)
    killed.kill()
    killed.wait()
    step = Run(out).checkpoints.steps()[-1]
    began = time.perf_counter()
    resumed = subprocess.Popen([*arguments, "--resume"], stdout=subprocess.DEVNULL)
    wait_for(lambda: last_step(out) < step, resumed)
    wait_for(lambda: last_step(out) >= step, resumed)
    seconds = time.perf_counter() - began
    resumed.kill()
    resumed.wait()
    line = next(line for line in read_lines(out / "timings.jsonl") if line["step"] == step)
    phases = {name: value for name, value in line.items() if name.startswith("time/")}
    return seconds - sum(value for name, value in phases.items() if name not in ("time/step", "time/total"))


def wait_for(condition: Callable[[], bool], process: subprocess.Popen) -> None:
    while not condition():
        assert process.poll() is None, f"{process.args} ended with {process.returncode}"
        time.sleep(0.002)


def fingerprint_milliseconds(weights: Path) -> float:
    parameters = dict(load_model(weights).named_parameters())
    times = []
    for _ in range(50):
        began = time.perf_counter()
        fingerprint(parameters)
        times.append(1000 * (time.perf_counter() - began))
    return median(times)


def spread(values: list[float]) -> dict[str, float]:
    return {"median": median(values), "max": max(values), "count": len(values)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, help="model to start from (default: the quickstart's SFT, a minute)")
    parser.add_argument("--steps", type=int, default=61, help="steps of a run")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each variant")
    parser.add_argument("--resumes", type=int, default=3, help="runs that are killed and resumed")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as tmp:
        work, weights = Path(tmp), args.weights
        if weights is None:
            print("SFT of the quickstart, about a minute", flush=True)
            sft = command("sft", "@", EXAMPLES / "tiny_sft.toml", "--output-dir", work / "sft", "--display", "none")
            subprocess.run(sft, check=True, cwd=ROOT)
            weights = work / "sft/weights/step_900"
        result = measure(args, recipe(weights.resolve(), work), work)
        result["workload"]["parameters"] = load_model(weights).num_parameters
        result["fingerprint_milliseconds"] = fingerprint_milliseconds(weights)
    show(result, args.out)


def measure(args: argparse.Namespace, config: Path, work: Path) -> dict[str, Any]:
    runs = take_turns(config, args.steps, args.rounds, work)
    seconds = {name: sum(step_seconds(members)) for name, members in runs.items()}
    per_token = bytes_per_token(runs["recipe"][0])
    resumes = [resume_seconds(config, work / f"resumed-{index}") for index in range(args.resumes)]
    orchestrator = tomllib.loads(config.read_text())["orchestrator"]
    return {
        "workload": {
            "completions": orchestrator["batch_size"],
            "steps": args.steps,
            "rounds": args.rounds,
            "checkpoint_interval": INTERVAL,
        },
        "seconds_per_step": {name: value / (args.steps - 1) for name, value in seconds.items()},
        "equal_metrics": len(metrics_bytes(runs)) == 1,
        "deterministic_cost": seconds["recipe"] / seconds["not_deterministic"] - 1,
        "checkpoint": {
            "cost": seconds["checkpoints"] / seconds["recipe"] - 1,
            "blocking_milliseconds": spread(blocking_milliseconds(runs["checkpoints"])),
            "bytes": folder_bytes(runs["checkpoints"][0].path / f"checkpoints/step_{INTERVAL}"),
        },
        "resume_seconds": spread(resumes),
        "rollout_bytes_per_token": spread(per_token),
        "machine": {**hardware(), "python": platform.python_version(), "torch": version("torch")},
    }


if __name__ == "__main__":
    main()
