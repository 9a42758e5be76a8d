"""The whole path on a CPU in minutes: a model from nothing, SFT, RL, an honest evaluation. `make quickstart` runs this.

Every step is a command that you can run yourself; they are printed as they run. With `--controls`, two more rows answer
the obvious questions: what would SFT alone have reached with the same compute, and with perfect demonstrations?
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "3000")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
EXAMPLES = Path("examples/reverse_text")
SEQUENCE = 42  # tokens of a typical sequence, to compare the compute of SFT and RL


def shell(*arguments: str) -> float:
    """Runs a command of the environment, shown as it would be typed; returns its seconds."""
    print(f"\n$ {shlex.join(arguments)}", flush=True)
    start = time.monotonic()
    code = subprocess.run([str(BIN / arguments[0]), *arguments[1:]], cwd=ROOT).returncode
    if code:
        sys.exit(code)
    return time.monotonic() - start


def equal_compute_steps(sft_steps: int, sft_batch: int, rl_steps: int, rl_batch: int) -> int:
    """SFT steps that cost what SFT and RL cost together: 6 FLOP per parameter and trained token, 2 per sampled one."""
    per_sft_step = 6 * sft_batch * SEQUENCE
    per_rl_step = (6 + 2) * rl_batch * SEQUENCE
    return round((sft_steps * per_sft_step + rl_steps * per_rl_step) / per_sft_step)


class Table:
    """Held-out results by model, at T=1 and greedy."""

    def __init__(self, examples: int, seed: int) -> None:
        from hone.environments import load_environment

        self.env = load_environment("reverse-text")
        self.examples, self.seed = examples, seed
        self.rows: list[dict] = []

    def add(self, name: str, weights: Path, seconds: float) -> None:
        """Evaluates `weights` and adds its row; `seconds` is what training took in all."""
        from hone.composition.evaluating import evaluate_weights, load_weights
        from hone.inference.types import SamplingParams

        policy = load_weights(str(weights), "bf16_linear")
        row: dict = {"model": name, "weights": str(weights), "train_seconds": seconds}
        for label, temperature in (("sampled", 1.0), ("greedy", 0.0)):
            result = evaluate_weights(
                policy,
                self.env,
                SamplingParams(temperature=temperature),
                num_examples=self.examples,
                rollouts_per_example=1,
                max_tokens=32,
                seed=self.seed,
            )
            prefix = f"eval/{self.env.id}/"
            metrics = {k.removeprefix(prefix): v for k, v in result.metrics().items()}
            row[label] = {k: metrics[k] for k in ("reward/mean", "ci95/low", "ci95/high", "exact")}
        self.rows.append(row)

    def print(self) -> None:
        from rich.console import Console
        from rich.table import Table as RichTable

        table = RichTable(title=f"reverse-text, {self.examples} held-out phrases, seed {self.seed}")
        for column in ("", "reward, T=1 [95 %]", "exact, T=1", "reward, greedy", "exact, greedy", "training"):
            table.add_column(column, justify="left" if not column else "right")
        for row in self.rows:
            sampled, greedy = row["sampled"], row["greedy"]
            table.add_row(
                row["model"],
                f"{sampled['reward/mean']:.3f} [{sampled['ci95/low']:.3f}, {sampled['ci95/high']:.3f}]",
                f"{100 * sampled['exact']:.1f} %",
                f"{greedy['reward/mean']:.3f}",
                f"{100 * greedy['exact']:.1f} %",
                f"{row['train_seconds']:.0f} s",
            )
        Console(width=None if sys.stdout.isatty() else 112).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("outputs/quickstart"), help="folder for all that is made")
    parser.add_argument("--examples", type=int, default=512, help="held-out phrases in the table")
    parser.add_argument(
        "--controls", action="store_true", help="add SFT alone: equal compute, and clean demonstrations"
    )
    args = parser.parse_args()
    os.chdir(ROOT)
    seed, out = ("--seed", str(args.seed)), args.out

    sft_file, rl_file = str(EXAMPLES / "tiny_sft.toml"), str(EXAMPLES / "tiny.toml")
    sft_weights, rl_weights = out / "sft/weights/step_900", out / "rl/weights/step_150"
    shell("hone", "init-model", str(out / "model"), "--preset", "tiny", *seed)
    sft = shell("sft", "@", sft_file, "--model.name", str(out / "model"), "--output-dir", str(out / "sft"), *seed)
    rl = shell("rl", "@", rl_file, "--model.name", str(sft_weights), "--output-dir", str(out / "rl"), *seed)

    table = Table(args.examples, args.seed)
    print("\nEvaluating on held-out phrases ...", flush=True)
    table.add("after SFT", sft_weights, sft)
    table.add("after SFT + RL", rl_weights, sft + rl)
    if args.controls:
        controls(table, out, seed, sft_file)
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit / 2**30
    print()
    table.print()
    summary = {"seed": args.seed, "rows": table.rows, "peak_memory_gib": round(peak, 3)}
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    curve = draw_curve(out)
    print(
        f"Training took {sft + rl:.0f} s and at most {peak:.2f} GiB. Reward curve: {curve}\n\nNext:\n"
        "  source .venv/bin/activate                                  # once, to have the commands on the path\n"
        f"  hone eval reverse-text -m {rl_weights} -n 5 -r 3          # see samples and their scores\n"
        f"  rl @ {rl_file} --model.name {sft_weights} --seed 1        # another seed\n"
        f"  make quickstart-controls                                  # what SFT alone would have reached"
    )
    if args.controls:
        print(
            "\nSFT alone on clean demonstrations wins here: with a perfect teacher there is nothing left to discover.\n"
            "RL's worth is that it needs only the verifier: it went past an unreliable teacher."
        )


def controls(table: Table, out: Path, seed: tuple[str, str], sft_file: str) -> None:
    """SFT alone, on the same demonstrations and on clean ones, with the compute of SFT and RL together."""
    steps = equal_compute_steps(sft_steps=900, sft_batch=32, rl_steps=150, rl_batch=128)
    for name, folder, noise in (
        ("SFT alone, equal compute", "sft_long", "1.0"),
        ("SFT alone, clean", "sft_clean", "0.0"),
    ):
        args = ("--model.name", str(out / "model"), "--max-steps", str(steps), "--output-dir", str(out / folder))
        env_args = json.dumps({"demo_noise": float(noise)})
        seconds = shell("sft", "@", sft_file, *args, "--data.env.args", env_args, *seed)
        table.add(name, out / folder / f"weights/step_{steps}", seconds)


def draw_curve(out: Path) -> Path:
    from hone.runs.curve import reward_curve

    path = out / "reward.svg"
    reward_curve([out / "rl"], path, "reverse-text: reward during RL")
    return path


if __name__ == "__main__":
    main()
