"""Alarms on runs made to raise them, and on healthy ones: what is raised, and how many steps after the fault, as JSON.

    .venv/bin/python benchmarks/alarms.py --out benchmarks/results/alarms.json

Each fault begins at step 40 of a healthy run of the quickstart (`--resume.dir`, `--allow-drift`) and goes on to step
100; counting-aloud falls ill by itself. `--healthy` runs the quickstart over 21 seeds besides. The metrics of all runs
are kept beside the JSON (`.parquet`), so that tests can look at them again. About 10 minutes of one core, and 30 more.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from recording import cpu_model, keep

from hone.extensions.alarms.config import AlarmsConfig
from hone.extensions.alarms.watch import MetricAlarms
from hone.runs.alarms import Alarms

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples" / "reverse_text"
SICK = Path(__file__).resolve().parent / "sick_runs"
ONSET, END = 40, 100
SEEDS = 21
LR, NORMALIZE = "--trainer.optim.lr", "--orchestrator.advantage.scale"


def sick(kind: str) -> list[str]:
    """Flags of a fault of the task `sick-text`."""
    return ["--orchestrator.env", "sick-text", "--orchestrator.env.args.kind", kind]


CASES: dict[str, tuple[list[str], list[str]]] = {
    "a bonus worth more than the answer": (sick("bonus"), ["component"]),
    "one answer pays whatever is asked": (sick("constant"), ["identical", "wrong"]),
    "no answer is ever right": (sick("never"), ["zero_std", "no_signal", "dead_pool"]),
    "every answer is right": (sick("anything"), ["solved_pool", "zero_std"]),
    "every token pays": (sick("long"), ["wrong", "component"]),
    "every new character pays": (sick("variety"), ["entropy_blowup"]),
    "the reward counts three hundredfold": ([*sick("scale"), NORMALIZE, "none"], ["grad_spike"]),
    "the grader raises on some texts": ([*sick("fails"), "--orchestrator.grading.max_failed", "1"], ["grader"]),
    "the parser finds short answers only": (sick("narrow"), ["unparsable"]),
    "a learning rate of 1e-2": ([LR, "1e-2"], ["truncation", "dead_pool"]),
    "a learning rate of 3e-3 and a KL term": ([LR, "3e-3", "--trainer.loss.kl_coef", "1e-4"], ["kl"]),
}
"""Flags of each fault, and the alarms that must be raised."""
OUTGROWN = (80, ["falling_reward", "unparsable"])
"""Counting-aloud: from step 80 on words have eight letters, and who counts along gives the answer too late."""
LAST = 10
"""Steps at a run's end that say whether it is healthy."""
NOT_READ = ("eval/", "canary/", "staleness/", "reward/std", "groups/f", "lr", "loss", "logprob_gap/", "dropped")
NOT_READ += ("ratio_clamped", "optimizer/", "tokens/")
"""Beginnings of metrics that no rule reads; they are not recorded."""


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--healthy", action="store_true", help="the quickstart over many seeds as well")
    parser.add_argument("--only", nargs="+", help="cases whose name has one of these words")
    parser.add_argument("--work", type=Path, default=Path("outputs/alarms"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/alarms.json"))
    args = parser.parse_args(argv)
    work = args.work.resolve()
    runs = {f"healthy/{seed}": quickstart(work / "healthy" / str(seed), seed) for seed in range(SEEDS * args.healthy)}
    for name, (flags, _) in CASES.items():
        if args.only is None or any(word in name for word in args.only):
            runs[f"sick/{name}"] = fallen_ill(work, name, flags)
    if args.only is None or "counting" in args.only:
        runs["sick/counting-aloud"] = counting_aloud(work / "counting-aloud")
    rows = [row for name, run in runs.items() for row in metrics_of(name, run)]
    earlier = args.out.with_suffix(".parquet")
    kept = [row for row in pq.read_table(earlier).to_pylist() if row["run"] not in runs] if earlier.exists() else []
    args.out.parent.mkdir(parents=True, exist_ok=True)
    save(earlier, kept + rows)
    result = recorded(earlier) | {"machine": machine()}
    keep(result, args.out)
    print(json.dumps({name: found["delays"] for name, found in result["sick"].items()}, indent=2))


def recorded(metrics: Path) -> dict[str, Any]:
    """What alarms find in recorded metrics: of each sick run which are raised when, of the healthy ones how many."""
    by_run: dict[str, list[dict[str, Any]]] = {}
    for row in pq.read_table(metrics).to_pylist():
        by_run.setdefault(row.pop("run"), []).append({key: value for key, value in row.items() if value is not None})
    weights = {name: json.loads(rows[0].pop("weights")) for name, rows in by_run.items()}
    found = {name: raised(rows, weights[name]) for name, rows in by_run.items()}
    sick_runs = {}
    for name, alarms in sorted(found.items()):
        if not name.startswith("sick/"):
            continue
        case = name.removeprefix("sick/")
        onset, due = (ONSET, CASES[case][1]) if case in CASES else OUTGROWN
        sick_runs[case] = {
            "onset": onset,
            "expected": due,
            "raised": alarms,
            "delays": {alarm: alarms[alarm] - onset if alarm in alarms else None for alarm in due},
        }
    seeds = {name.removeprefix("healthy/"): rows for name, rows in by_run.items() if name.startswith("healthy/")}
    ill = [seed for seed, rows in seeds.items() if never_ends(rows)]
    alarms_of = {seed: found[f"healthy/{seed}"] for seed in seeds}
    healthy = {
        "seeds": len(seeds) - len(ill),
        "steps": sum(len(rows) for seed, rows in seeds.items() if seed not in ill),
        "false_alarms": {seed: alarms for seed, alarms in alarms_of.items() if alarms and seed not in ill},
        "ill_by_themselves": {seed: alarms_of[seed] for seed in ill},
    }
    return {"sick": sick_runs, "healthy": healthy}


def never_ends(rows: list[dict[str, Any]]) -> bool:
    """Whether a run of the quickstart has learned to write on after its answer: most completions are cut at its end."""
    last = sorted(rows, key=lambda row: row["step"])[-LAST:]
    return sum(row["completion/truncated"] for row in last) / len(last) > 0.5


def raised(rows: list[dict[str, Any]], weights: dict[str, float]) -> dict[str, int]:
    """Step at which each alarm was raised first."""
    alarms, found = MetricAlarms(AlarmsConfig(), Alarms(), {"reward_weights": weights}), {}
    for row in sorted(rows, key=lambda row: row["step"]):
        for alarm in alarms.look(row["step"], row)[0]:
            found.setdefault(alarm["name"], alarm["step"])
    return found


def quickstart(folder: Path, seed: int) -> Path:
    """SFT and RL of the quickstart. Returns the run of RL."""
    if not (folder / "rl" / "weights" / "step_150").exists():
        hone("sft", "@", EXAMPLES / "tiny_sft.toml", "--seed", seed, "--output-dir", folder / "sft")
        model = folder / "sft" / "weights" / "step_900"
        flags = ["--model.name", model, "--seed", seed, "--output-dir", folder / "rl"]
        hone("rl", "@", EXAMPLES / "tiny.toml", *flags)
    return folder / "rl"


def fallen_ill(work: Path, name: str, flags: list[str]) -> Path:
    """A healthy run that goes on with a fault from step 40 on."""
    base, folder = work / "base", work / name.replace(" ", "-")
    model = base / "sft" / "weights" / "step_900"
    common = ["@", EXAMPLES / "tiny.toml", "--model.name", model, "--ckpt", "--orchestrator.eval", "None", "--no-audit"]
    if not (base / "rl" / "weights" / f"step_{ONSET}").exists():
        hone("sft", "@", EXAMPLES / "tiny_sft.toml", "--output-dir", base / "sft")
        hone("rl", *common, "--max-steps", ONSET, "--output-dir", base / "rl")
    if not (folder / "weights" / f"step_{END}").exists():
        branch = ["--resume.dir", base / "rl", "--allow-drift", "--max-steps", END, "--output-dir", folder]
        hone("rl", *common, *branch, *flags)
    return folder


def counting_aloud(folder: Path) -> Path:
    """The run of `parser_drift.py`, whose parser is outgrown."""
    recipes = SICK.parent / "counting_aloud"
    if not (folder / "rl" / "weights" / "step_120").exists():
        hone("sft", "@", recipes / "sft.toml", "--output-dir", folder / "sft", cwd=recipes)
        model = folder / "sft" / "weights" / "step_1500"
        flags = ["--output-dir", folder / "rl", "--model.name", model, "--no-audit"]
        hone("rl", "@", recipes / "rl.toml", *flags, cwd=recipes)
    return folder / "rl"


def hone(*words: Any, cwd: Path = SICK) -> None:
    """Runs a command of hone beside the sick tasks."""
    subprocess.run([sys.executable, "-m", "hone.cli", *map(str, words), "--display", "plain"], cwd=cwd, check=True)


def metrics_of(name: str, run: Path) -> list[dict[str, Any]]:
    """The run's steps, each with the name of the run, and the first with the weights of the reward's components."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [
        {"run": name} | {key: value for key, value in line.items() if not key.startswith(NOT_READ)}
        for line in lines
        if "reward/mean" in line or "groups/trained" in line
    ]
    rows[0]["weights"] = json.dumps(json.loads((run / "run.json").read_text())["reward_weights"])
    return rows


def save(path: Path, rows: list[dict[str, Any]]) -> None:
    """Writes rows, floats with four digits."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: [_rounded(row.get(name)) for row in rows] for name in names}
    pq.write_table(pa.table(columns), path, compression="zstd", compression_level=22, use_dictionary=cast(Any, ["run"]))


def _rounded(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def machine() -> dict[str, Any]:
    return {"cpu": cpu_model(), "threads": 1, "python": platform.python_version(), "torch": version("torch")}


if __name__ == "__main__":
    main()
