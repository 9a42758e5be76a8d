"""The quickstart over several seeds, with its controls, recorded as JSON.

    .venv/bin/python benchmarks/quickstart_seeds.py --seeds 5 --controls --out benchmarks/results/quickstart.json
    .venv/bin/python benchmarks/quickstart_seeds.py --seeds 3 --model smollm2-135m --out benchmarks/results/smollm2.json

Each seed is a run of `hone quickstart`: initial weights, order of the data, noise of the demonstrations and sampling
all differ. A seed that is in `--work` already is not run again. Beside those of the pretrained model stands what
`hone plan --calibrate` says of its RL, and what that took.
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
            row.pop("samples", None)
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
    if args.model != "tiny":
        result["plan"] = planned(ROOT / args.work, args.seeds)
    keep(result, ROOT / args.out)
    print(json.dumps(result["medians"], indent=2))


def planned(work: Path, seeds: int) -> dict[str, object]:
    """Return the seconds of RL that a calibrated plan says, and those of each seed's run."""
    recipe = ["plan", "@", "examples/smollm2/reverse.toml", "--model.name", str(work / "0/sft/weights/step_50")]
    said = subprocess.run([str(HONE), *recipe, "--calibrate", "--json"], capture_output=True, check=True, cwd=ROOT)
    taken = [json.loads((work / f"{seed}/rl/run.json").read_text())["seconds"] for seed in range(seeds)]
    return {"predicted": json.loads(said.stdout)["calibration"]["seconds"]["usual"]["total"], "taken": taken}


def medians(runs: list[dict], name: str) -> dict[str, float]:
    """Median over seeds of reward and share correct, sampled at T=1 and greedy, and of the training seconds so far."""
    rows = [row for run in runs for row in run["rows"] if row["model"] == name]
    figures = {f"{how}/{what}": [r[how][what] for r in rows] for how in ("sampled", "greedy") for what in KEYS}
    figures["train_seconds"] = [row["train_seconds"] for row in rows]
    return {key: median(values) for key, values in figures.items()}


KEYS = ("reward/mean", "correct")


if __name__ == "__main__":
    main()
