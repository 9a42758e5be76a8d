r"""What `hone plan` says of a run, and what the run then is: peak memory and seconds, and where a budget stops it.

    .venv/bin/python benchmarks/plan.py --weights outputs/quickstart/sft/weights/step_900 \
        --out benchmarks/results/plan.json

For each of four configs of different kinds: `hone plan --calibrate --json`, then the run itself, to its end: its wall
seconds, and the peak of its resident memory. A ratio is predicted / measured, with several rounds the median; beside it
stands the plan without a calibration. Part `budget`: the quickstart's RL under `--budget.hours`, `.usd` and `.tokens`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from recording import keep, show

from hone.runs.provenance import hardware
from hone.runs.view import read_lines

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
QUICKSTART = ("rl", "@", "examples/reverse_text/tiny.toml")


@dataclass(frozen=True)
class Case:
    """A command as a user would type it, but for its output; `cwd` is where its task is found."""

    command: tuple[str, ...]
    cwd: Path = ROOT
    learned: bool = False
    """Whether it begins with the quickstart's SFT weights."""


def large(hidden: int, layers: int) -> tuple[str, ...]:
    """Flags of a model made from nothing."""
    sizes = {"hidden": hidden, "layers": layers, "heads": hidden // 64, "kv-heads": hidden // 128, "head-dim": 64}
    sizes["intermediate"] = hidden * 8 // 3
    return tuple(word for name, size in sizes.items() for word in (f"--model.init.{name}", str(size)))


VOWELS = ("--orchestrator.env.id", "vowels", "--audit", "false", "--trainer.optim.lr", "1e-4")
CASES = {
    "quickstart": Case(QUICKSTART, learned=True),
    "long_completions": Case(
        (
            *("rl", *VOWELS, "--seq-len", "320", "--max-steps", "25", "--orchestrator.sampling.max-tokens", "256"),
            *("--orchestrator.batch-size", "64", "--orchestrator.rollouts-per-example", "8", "--ckpt.interval", "5"),
            *("--orchestrator.eval.num-examples", "64", "--orchestrator.eval.interval", "10"),
        ),
        HERE,
    ),
    "85m_parameters": Case(
        (
            *("rl", *VOWELS, *large(768, 12), "--seq-len", "128", "--max-steps", "6"),
            *("--orchestrator.sampling.max-tokens", "64", "--orchestrator.batch-size", "16"),
            *("--orchestrator.rollouts-per-example", "4"),
        ),
        HERE,
    ),
    "sft": Case(("sft", "@", "examples/reverse_text/tiny_sft.toml", "--max-steps", "300")),
}


def hone(words: Sequence[str], cwd: Path) -> tuple[str, float, int]:
    """Runs a command of hone; returns what it printed, its wall seconds, and its peak resident memory in bytes."""
    environment = os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    began = time.perf_counter()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen([sys.executable, "-m", "hone.cli", *words], cwd=cwd, stdout=out, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        out.seek(0)
        printed = out.read().decode()
    if status:
        raise SystemExit(f"hone {' '.join(words)} ended with {os.waitstatus_to_exitcode(status)}:\n{printed}")
    return printed, seconds, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def plan(words: Sequence[str], cwd: Path, *more: str) -> dict[str, Any]:
    """The plan of that command, as JSON."""
    return json.loads(hone(["plan", *words[1:], *more, "--json"], cwd)[0])


def compared(case: Case, weights: Path, rounds: int, work: Path) -> dict[str, Any]:
    """Predicted and measured, with their ratios."""
    command = [*case.command, *(["--model.name", str(weights)] if case.learned else [])]
    out = ["--output-dir", str(work / "run")]
    static = plan([*command, *out], case.cwd)
    found = []
    for _ in range(rounds):
        planned = plan([*command, *out], case.cwd, "--calibrate")
        calibration = planned["calibration"]
        _, seconds, memory = hone([*command, *out, "--display", "none"], case.cwd)
        found.append(
            {
                "predicted_memory": calibration["memory"],
                "predicted_memory_at_most": calibration["memory_worst"],
                "measured_memory": memory,
                "predicted_seconds": calibration["usual"]["total"],
                "measured_seconds": seconds,
                "calibration_seconds": calibration["seconds"],
                "steps_taken": calibration["steps"],
            }
        )
        print(json.dumps(found[-1]), flush=True)
    measured = {name: median(row[f"measured_{name}"] for row in found) for name in ("memory", "seconds")}
    return {
        "command": " ".join(["hone", *case.command]),
        "parameters": planned["parameters"],
        "rounds": found,
        "memory_ratio": median(row["predicted_memory"] / row["measured_memory"] for row in found),
        "memory_at_most_ratio": median(row["predicted_memory_at_most"] / row["measured_memory"] for row in found),
        "seconds_ratio": median(row["predicted_seconds"] / row["measured_seconds"] for row in found),
        "static": {
            "memory": static["memory"]["total"],
            "seconds": static["seconds"]["usual"]["total"],
            "memory_ratio": static["memory"]["total"] / measured["memory"],
            "seconds_ratio": static["seconds"]["usual"]["total"] / measured["seconds"],
        },
    }


BUDGETS = {
    "hours": ("--budget.hours", "0.0175"),
    "usd": ("--budget.usd", "0.05", "--budget.usd-per-hour", "3"),
    "tokens": ("--budget.tokens", "400000"),
}


def budget(name: str, weights: Path, work: Path) -> dict[str, Any]:
    """What the quickstart's RL, with more steps than it has time for, has spent of this limit when it has ended."""
    flags, folder = BUDGETS[name], work / f"budget-{name}"
    words = [*QUICKSTART, "--model.name", str(weights), "--output-dir", str(folder), "--display", "none", *flags]
    printed, seconds, _ = hone([*words, "--max-steps", "2000"], ROOT)
    info = json.loads((folder / "run.json").read_text())
    limit = float(flags[1])
    spent = {"hours": seconds / 3600, "usd": seconds / 3600 * 3, "tokens": _tokens(folder)}[name]
    found = {"limit": limit, "spent": spent, "share": spent / limit, "status": info["status"]}
    found |= {
        "steps": read_lines(folder / "timings.jsonl")[-1]["step"],
        "said": printed.strip().splitlines()[-2].partition(" Saved")[0],
    }
    print(json.dumps(found), flush=True)
    return found


def _tokens(folder: Path) -> int:
    return max(line["tokens/total"] for line in read_lines(folder / "metrics.jsonl") if "tokens/total" in line)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True, help="the quickstart's SFT weights")
    parser.add_argument("--rounds", type=int, default=1, help="of a plan and its run")
    parts = [*CASES, *(f"budget_{name}" for name in BUDGETS)]
    parser.add_argument("--part", nargs="+", default=parts, choices=parts, help="the rest stays in --out")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args(argv)
    result: dict[str, Any] = json.loads(args.out.read_text()) if args.out and args.out.exists() else {}
    result["machine"] = {**hardware(), "python": platform.python_version(), "torch": version("torch")}
    with tempfile.TemporaryDirectory() as folder:
        for name in args.part:
            work = Path(folder)
            weights = args.weights.resolve()
            kind, _, limit = name.partition("_")
            if kind == "budget":
                result.setdefault("budget", {})[limit] = budget(limit, weights, work)
            else:
                result.setdefault("cases", {})[name] = compared(CASES[name], weights, args.rounds, work)
            if args.out:
                keep(result, args.out)
    show(result)


if __name__ == "__main__":
    main()
