"""The other recipes of examples/smollm2 on a seed, recorded as JSON: what SFT and RL change, seconds, memory.

    .venv/bin/python benchmarks/smollm2_recipes.py --out benchmarks/results/smollm2_recipes.json

- sums: the pretrained model, after SFT, after RL; as the task grades, and by whether the number is right anywhere.
  `sums_clean`, which is kept as it is, was the same with `demo_noise` 0 in `sums_sft.toml`.
- char_count: RL of all weights, and of a LoRA adapter of rank 16, from one SFT; a core each, at the same time.

A recipe whose folder is there is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from recording import keep

from hone.runs.provenance import hardware

ROOT = Path(__file__).resolve().parents[1]
HONE = str(Path(sys.executable).parent / "hone")
RECIPES, OUT = "examples/smollm2", Path("outputs")
LORA = ["--model.lora.rank", "16", "--trainer.optim.lr", "3e-4"]
ON_A_CORE = {"cc-full": [], "cc-lora": LORA}
EASY = json.dumps({"easy": True})
EVALUATED = ["-n", "128", "-r", "1", "-t", "40", "-a", EASY]


def ran(folder: str, command: list[str], env: dict[str, str] | None = None) -> None:
    """Run a command whose output is in this folder of OUT, and note the most memory that it had."""
    path = ROOT / OUT / folder
    if path.exists():
        return
    process = subprocess.Popen(
        [HONE, *command, "--output-dir", str(OUT / folder)], cwd=ROOT, env=os.environ | (env or {})
    )
    _, code, usage = os.wait4(process.pid, 0)
    assert code == 0, command
    path.with_suffix(".memory").write_text(str(usage.ru_maxrss / 2**20))


def of_run(folder: str) -> dict[str, Any]:
    """Return what RL changed on held-out examples, by the run's card, and what it took."""
    path = ROOT / OUT / folder
    report, run = (json.loads((path / f"{name}.json").read_text()) for name in ("report", "run"))
    steps = [json.loads(line) for line in (path / "timings.jsonl").read_text().splitlines()]
    names = ("reward", "strict", "lenient")
    return {name: report["changes"][name] for name in names} | {
        "seconds": run["seconds"],
        "train_seconds": sum(line.get("time/train", 0.0) for line in steps),
        "sample_seconds": sum(line.get("time/sample", 0.0) for line in steps),
        "memory_gib": float(memory.read_text()) if (memory := path.with_suffix(".memory")).exists() else None,
        "seed": run["seed"],
    }


def of_evaluation(folder: str) -> dict[str, Any]:
    """Return strict and lenient shares of an evaluation, by its card."""
    subprocess.run([HONE, "report", str(OUT / folder)], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    measures = json.loads((ROOT / OUT / folder / "report.json").read_text())["measures"]
    return {name: measures[name] for name in ("reward", "strict", "lenient")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/smollm2_recipes.json"))
    args = parser.parse_args()
    sft = {"sums": "smollm2-sums-sft", "char_count": "smollm2-char-count-sft"}
    for name, folder in sft.items():
        ran(folder, ["sft", "@", f"{RECIPES}/{name}_sft.toml"])
    ran("smollm2-sums-rl", ["rl", "@", f"{RECIPES}/sums.toml"])
    models = {"pretrained": "smollm2-135m", "after SFT": str(OUT / "smollm2-sums-sft/weights/step_25")}
    models["after SFT + RL"] = str(OUT / "smollm2-sums-rl/weights/step_40")
    evaluations = {name: f"smollm2-sums-eval-{number}" for number, name in enumerate(models)}
    for name, model in models.items():
        ran(evaluations[name], ["eval", "gsm8k", "-m", model, *EVALUATED])
    one_core = {"OMP_NUM_THREADS": "1"}
    beside = [
        threading.Thread(
            target=ran, args=(f, ["rl", "@", f"{RECIPES}/char_count.toml", "--threads", "1", *more], one_core)
        )
        for f, more in ON_A_CORE.items()
    ]
    for thread in beside:
        thread.start()
    for thread in beside:
        thread.join()
    result = {
        "sums": of_run("smollm2-sums-rl") | {"models": {name: of_evaluation(f) for name, f in evaluations.items()}},
        "char_count": {folder: of_run(folder) for folder in ON_A_CORE},
        "machine": hardware(),
    }
    kept = json.loads((ROOT / args.out).read_text()) if (ROOT / args.out).exists() else {}
    result |= {"sums_clean": kept["sums_clean"]} if "sums_clean" in kept else {}
    keep(result, ROOT / args.out)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
