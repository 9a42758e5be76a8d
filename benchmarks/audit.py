"""How long an audit takes, and what it says of hone's own tasks.

    .venv/bin/python benchmarks/audit.py --out benchmarks/results/audit.json

For each task the fast part (what `rl` does before step 0, worker processes and all) in a fresh process, and the full
audit as `hone audit TASK`, imports and all. Medians of the rounds, in seconds of the clock; beside them a fixed piece
of pure Python, as a measure of the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from statistics import median

from recording import cpu_model, keep

BIN = Path(sys.executable).parent
TASKS = {
    "reverse-text": {},
    "char-count": {},
    "countdown": {},
    "scramble": {},
    "gsm8k": {},
    "gsm8k sparse": {"mode": "sparse"},
    "math-problems": {},
    "one-shot": {},
    "math-python": {},
    "calculator": {},
}
FAST = """
import json, sys, time
from hone.extensions.audit.environment import audit_before_training
from hone.environments import load_environment
env = load_environment(sys.argv[1], **json.loads(sys.argv[2]))
env.split("train")
env.isolated = True
began = time.perf_counter()
report = audit_before_training(env)
seconds = time.perf_counter() - began
env.close_workers()
print(json.dumps({"seconds": seconds, "texts": report.facts["texts"], "refused": [f.name for f in report.failures]}))
"""


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--examples", type=int, default=32, help="of the full audit")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/audit.json"))
    args = parser.parse_args(argv)
    baseline, rounds = [], {task: [] for task in args.tasks}
    for _ in range(args.rounds):
        for task in args.tasks:
            baseline.append(pure_python())
            rounds[task].append({"fast": fast(task), "full": full(task, args.examples)})
    result = {
        "tasks": {task: summary(measured) for task, measured in rounds.items()},
        "rounds": args.rounds,
        "examples": args.examples,
        "baseline_seconds": median(baseline),
        "machine": {"cpu": cpu_model(), "cores": os.cpu_count(), "python": platform.python_version()},
        "hone": version("hone-rl"),
    }
    keep(result, args.out)
    for task, row in result["tasks"].items():
        failing = ", ".join(row["failures"]) or "nothing"
        print(f"{task:<14} fast {row['fast_seconds']:.2f} s  full {row['full_seconds']:.1f} s  fails: {failing}")


def fast(task: str) -> dict:
    """The fast part in a process of its own."""
    argv = [sys.executable, "-c", FAST, task.split()[0], json.dumps(TASKS[task])]
    return json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def full(task: str, examples: int) -> dict:
    """`hone audit` as a user runs it."""
    argv = [str(BIN / "hone"), "audit", task.split()[0], "-a", json.dumps(TASKS[task]), "-n", str(examples), "--json"]
    began = time.perf_counter()
    done = subprocess.run(argv, capture_output=True, text=True)
    seconds = time.perf_counter() - began
    if done.returncode not in (0, 1):
        raise SystemExit(done.stderr)
    return {"seconds": seconds, "report": json.loads(done.stdout)}


def summary(measured: list[dict]) -> dict:
    """The medians of a task's rounds, and what the last one found."""
    report = measured[-1]["full"]["report"]
    found = [finding for check in report["checks"] for finding in check["findings"]]
    return {
        "fast_seconds": median(one["fast"]["seconds"] for one in measured),
        "fast_texts": measured[-1]["fast"]["texts"],
        "refused": measured[-1]["fast"]["refused"],
        "full_seconds": median(one["full"]["seconds"] for one in measured),
        "full_texts": report["texts"],
        "failures": sorted({finding["name"] for finding in found if finding["verdict"] == "fail"}),
        "warnings": sorted({finding["name"] for finding in found if finding["verdict"] == "warn"}),
    }


def pure_python() -> float:
    """Seconds of a loop of a million additions."""
    began, total = time.perf_counter(), 0
    for number in range(1_000_000):
        total += number
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
