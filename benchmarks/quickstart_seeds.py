"""The quickstart over several seeds, with its controls, recorded as JSON.

    .venv/bin/python benchmarks/quickstart_seeds.py --seeds 5 --controls --out benchmarks/results/quickstart.json
    .venv/bin/python benchmarks/quickstart_seeds.py --seeds 3 --model smollm2-135m --out benchmarks/results/smollm2.json

Each seed is a run of `hone quickstart`: the model's initial weights, the order of the data, the noise of the
demonstrations and the sampling all differ. Rewards are exactly repeatable on one machine; seconds are not. A seed that
is in `--work` already is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from statistics import median

from recording import cpu_model, keep

ROOT = Path(__file__).resolve().parents[1]
HONE = Path(sys.executable).parent / "hone"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0, 1, …")
    parser.add_argument("--model", default="tiny", choices=["tiny", "smollm2-135m"])
    parser.add_argument("--controls", action="store_true", help="with the control rows, in the first seed only")
    parser.add_argument("--work", type=Path, default=Path("outputs/quickstart-seeds"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/quickstart.json"))
    args = parser.parse_args()
    runs = []
    for seed in range(args.seeds):
        folder = args.work / str(seed)
        command = [str(HONE), "quickstart", "--model", args.model, "--seed", str(seed), "--output-dir", str(folder)]
        if not (ROOT / folder / "summary.json").exists():
            subprocess.run(command + (["--controls"] if args.controls and seed == 0 else []), check=True, cwd=ROOT)
        summary = json.loads((ROOT / folder / "summary.json").read_text())
        for row in summary["rows"]:
            row["weights"] = Path(row["weights"]).name
            row["samples"] = row["samples"] if args.model != "tiny" else []  # those of the tiny model are in the README
        runs.append(summary)
    result = {
        "runs": runs,
        "medians": {row["model"]: medians(runs, row["model"]) for row in runs[-1]["rows"]},
        "machine": {
            "cpu": cpu_model(),
            "threads": 1 if args.model == "tiny" else os.cpu_count(),
            "python": platform.python_version(),
            "torch": version("torch"),
        },
    }
    keep(result, ROOT / args.out)
    print(json.dumps(result["medians"], indent=2))


def medians(runs: list[dict], name: str) -> dict[str, float]:
    """Median over seeds of reward and share correct, sampled at T=1 and greedy, and of the training seconds so far."""
    rows = [row for run in runs for row in run["rows"] if row["model"] == name]
    figures = {f"{how}/{what}": [r[how][what] for r in rows] for how in ("sampled", "greedy") for what in KEYS}
    figures["train_seconds"] = [row["train_seconds"] for row in rows]
    return {key: median(values) for key, values in figures.items()}


KEYS = ("reward/mean", "correct")


if __name__ == "__main__":
    main()
