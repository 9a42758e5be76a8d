"""A reward that falls because its parser loses the answers: the run, and what `hone regrade` says of it, as JSON.

    .venv/bin/python benchmarks/parser_drift.py --out benchmarks/results/parser_drift.json

A tiny model learns counting-aloud from demonstrations of two styles; RL prefers the one that counts along, for it is
right more often. The parser reads the first 14 characters; as words grow, the answers come later than that. `hone
regrade` grades the same completions with a parser that reads all. Each seed takes two minutes of one core.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from recording import cpu_model, keep
from tasks import cpu_seconds

RECIPES = Path(__file__).resolve().parent / "counting_aloud"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--max-steps", type=int, help="fewer steps, to try the script")
    parser.add_argument("--work", type=Path, default=Path("outputs/parser_drift"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/parser_drift.json"))
    args = parser.parse_args(argv)
    machine = {"cpu": cpu_model(), "threads": 1, "python": platform.python_version(), "torch": version("torch")}
    kept = json.loads(args.out.read_text())["runs"] if args.out.exists() else []
    runs = [run for run in kept if run["seed"] not in args.seeds]
    for seed in args.seeds:
        runs.append(drift(seed, args.work.resolve() / str(seed), args.max_steps))
        result = {"machine": machine, "runs": sorted(runs, key=lambda run: run["seed"])}
        keep(result, args.out)
        print(runs[-1]["regrade"]["verdict"]["sentence"])


def drift(seed: int, folder: Path, max_steps: int | None = None) -> dict[str, Any]:
    """SFT, RL and the regrading of one seed, in `folder`; processor seconds of the whole commands."""
    sft, rl, scores = folder / "sft", folder / "rl", folder / "regrade.json"
    common = ["--seed", seed, "--display", "plain", *(["--max-steps", max_steps] if max_steps else [])]
    trained = sft / "weights" / f"step_{max_steps or 1500}"
    commands = {
        "sft": ["sft", "@", "sft.toml", "--output-dir", sft, *common],
        "rl": ["rl", "@", "rl.toml", "--output-dir", rl, "--model.name", trained, *common, "--no-audit"],
        "regrade": ["regrade", rl, "--env", "counting-aloud", "--json", scores],
    }
    seconds = {}
    for name, words in commands.items():
        if name == "rl":
            assert hone(*words[:-1]).returncode == 2, "the audit lets it start"
        started = cpu_seconds()
        hone(*words, check=True)
        seconds[name] = round(cpu_seconds() - started, 1)
    audit = json.loads(hone("audit", "counting-aloud", "-a", '{"reads": 14}', "--json", stdout=subprocess.PIPE).stdout)
    fails = [
        finding["name"] for check in audit["checks"] for finding in check["findings"] if finding["verdict"] == "fail"
    ]
    regrade = json.loads(scores.read_text())
    verdict = regrade["verdict"]
    for steps in ("from", "to"):
        verdict[steps] = {name: verdict[steps][name] for name in ("first", "last", "recorded", "regraded")}
    found = {
        "curve": curve(rl),
        "regrade": {name: regrade[name] for name in ("completions", "failed", "check", "verdict")},
    }
    return {"seed": seed, "cpu_seconds": seconds, "audit": fails} | found


def hone(*words: Any, **how: Any) -> subprocess.CompletedProcess:
    """Runs a command of hone in the folder of the task and its recipes."""
    return subprocess.run([sys.executable, "-m", "hone.cli", *map(str, words)], cwd=RECIPES, **how)


def curve(run: Path) -> list[dict[str, float]]:
    """The first and the last step: recorded reward, share of groups of one reward, and tokens of a completion."""
    names = ("reward/mean", "frac_reward_zero_std", "completion/length/mean", "outcome/unparsable")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if "reward/mean" in line]
    return [{name: line[name] for name in ("step", *names) if name in line} for line in (lines[0], lines[-1])]


if __name__ == "__main__":
    main()
