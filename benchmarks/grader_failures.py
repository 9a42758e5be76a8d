"""What a run learns whose reward function raises on 5 % of the completions, and what becomes of one that always raises.

    .venv/bin/python benchmarks/grader_failures.py --seeds 5 --out benchmarks/results/grader_failures.json

Each seed is the quickstart's SFT, then its RL twice: on reverse-text as it is, and with a similarity that raises by
chance. Both are evaluated on reverse-text itself, on the same held-out phrases. Then the same RL with a function that
raises on every completion. Rewards are exactly repeatable on one machine.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from statistics import mean, stdev

from recording import cpu_model, keep

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
EXAMPLES = ROOT / "examples/reverse_text"
TASK = '''
"""reverse-text whose similarity raises on a share of the completions, drawn by chance."""

import functools

import reverse_text
from hone.environments import Rubric


def similarity(completion, answer, parser, rng, share=0.0):
    if rng.random() < share:
        raise RuntimeError("the reward function is broken")
    return reverse_text.similarity(completion, answer, parser)


def load_environment(share: float = 0.05):
    env = reverse_text.load_environment()
    funcs = [functools.partial(similarity, share=share), reverse_text.exact]
    env.id, env.rubric = "raising", Rubric(funcs, [1.0, 0.0], correctness=reverse_text.exact)
    return env
'''


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0, 1, …")
    parser.add_argument("--sft-steps", type=int, default=900)
    parser.add_argument("--rl-steps", type=int, default=150)
    parser.add_argument("--examples", type=int, default=512, help="held-out phrases")
    parser.add_argument("--work", type=Path, default=Path("outputs/grader-failures"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/grader_failures.json"))
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    (args.work / "raising.py").write_text(TASK)
    runs = [one_seed(seed, args) for seed in range(args.seeds)]
    rewards = {name: [run[name]["reward"] for run in runs] for name in ("clean", "raising")}
    differences = [b - a for a, b in zip(*rewards.values(), strict=True)]
    result = {
        "runs": runs,
        "means": {name: mean(values) for name, values in rewards.items()},
        "seed_std": {name: stdev(values) for name, values in rewards.items()} if len(runs) > 1 else None,
        "difference": {"mean": mean(differences), "of_seeds": differences},
        "always_raising": broken(args),
        "machine": {"cpu": cpu_model(), "threads": 1, "python": platform.python_version(), "torch": version("torch")},
    }
    keep(result, args.out)
    print(json.dumps({name: result[name] for name in ("means", "seed_std", "difference", "always_raising")}, indent=2))


def one_seed(seed: int, args: argparse.Namespace) -> dict:
    """Held-out reward and share correct of both runs, and how many completions could not be graded."""
    flags, folder = ["--seed", str(seed), "--display", "none"], Path(str(seed))
    shell(args, "hone", "init-model", folder / "model", "--preset", "tiny", "--seed", seed)
    sft = ["sft", "@", EXAMPLES / "tiny_sft.toml", "--model.name", folder / "model", "--max-steps", args.sft_steps]
    shell(args, *sft, "--output-dir", folder / "sft", *flags)
    found: dict = {"seed": seed}
    for name, more in (("clean", []), ("raising", ["--orchestrator.env.id", "raising"])):
        shell(args, *rl(args, seed), "--output-dir", folder / name, *more, *flags)
        weights = folder / name / "weights" / f"step_{args.rl_steps}"
        flags_of_eval = [
            "-n",
            args.examples,
            "-r",
            1,
            "-t",
            32,
            "--seed",
            seed,
            "--output-dir",
            folder / f"{name}-eval",
        ]
        shell(args, "hone", "eval", "reverse-text", "-m", weights, *flags_of_eval)
        metrics = json.loads((args.work / folder / f"{name}-eval" / "metadata.json").read_text())["metrics"]
        lines = (args.work / folder / name / "metrics.jsonl").read_text().splitlines()
        failed = sum(128 * json.loads(line).get("outcome/grader_error", 0) for line in lines)
        found[name] = {
            "reward": metrics["eval/reverse-text/reward/mean"],
            "correct": metrics["eval/reverse-text/correct"],
            "failed": round(failed),
            "completions": 128 * args.rl_steps,
        }
    return found


def broken(args: argparse.Namespace) -> dict:
    """How a run ends whose reward function raises on every completion."""
    share = ["--orchestrator.env.id", "raising", "--orchestrator.env.args.share", "1"]
    command = [*rl(args, 0), "--output-dir", "broken", *share]
    done = subprocess.run(words(command), cwd=args.work, capture_output=True, text=True)
    lines = (args.work / "broken" / "metrics.jsonl").read_text().splitlines()
    said = done.stderr.strip().splitlines()
    return {"exit_code": done.returncode, "steps": len(lines), "says": said[0], "last_line": said[-1]}


def rl(args: argparse.Namespace, seed: int) -> list:
    weights = Path(str(seed)) / "sft" / "weights" / f"step_{args.sft_steps}"
    return ["rl", "@", EXAMPLES / "tiny.toml", "--model.name", weights, "--no-audit", "--max-steps", args.rl_steps]


def shell(args: argparse.Namespace, *command: object) -> None:
    print("$", *command, flush=True)
    subprocess.run(words(command), check=True, cwd=args.work, stdout=subprocess.DEVNULL)


def words(command: object) -> list[str]:
    name, *rest = map(str, command)  # type: ignore[call-overload]
    return [str(BIN / name), *rest]


if __name__ == "__main__":
    main()
