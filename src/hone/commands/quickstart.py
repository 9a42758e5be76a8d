"""`hone quickstart`: a new model, SFT, RL and an evaluation, on a CPU in minutes; and `hone examples [NAME]`.

quickstart prints and runs hone commands. After Ctrl-C, `hone quickstart` continues where it stopped. `--controls` adds
two rows for SFT alone with the same compute, on the same and on perfect demonstrations.
"""

from __future__ import annotations

import json
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hone
from hone.commands.status import command, print_table
from hone.config.init import ExamplesConfig, QuickstartConfig
from hone.errors import UserError
from hone.extension import gathered
from hone.model.files import KNOWN
from hone.processes import Process
from hone.runs.display import say
from hone.runs.view import run_info


@dataclass(frozen=True)
class Recipe:
    sft: str
    rl: str
    num_examples: int


RECIPES = {
    "tiny": Recipe("reverse_text/tiny_sft.toml", "reverse_text/tiny.toml", 512),
    "smollm2-135m": Recipe("smollm2/reverse_sft.toml", "smollm2/reverse.toml", 128),
}
"""Recipes for each `--model`: a preset of `hone init-model`, or a pretrained model of `hone.model.files.KNOWN`."""
CONTROLS = (("SFT alone, equal compute", "sft_long", 1.0), ("SFT alone, clean", "sft_clean", 0.0))
"""Rows of `--controls`: name, folder, and noise of the demonstrations."""
SAMPLES = 3
SUMMARY = "summary.json"
"""File written at the end. While it is missing, `hone quickstart` continues with the runs that are there."""


def run(config: QuickstartConfig) -> int:
    recipe, pretrained = RECIPES[config.model], config.model in KNOWN
    files = Path("examples") / recipe.sft, Path("examples") / recipe.rl
    if not files[0].parent.exists():
        say(f"$ hone examples {files[0].parent.name}")
        copy_examples(files[0].parent.name)
    sft, rl = (tomllib.loads(file.read_text(encoding="utf-8")) for file in files)
    sft_steps, rl_steps = sft["max_steps"], rl["max_steps"]
    out, seed = config.output_dir, ["--seed", str(config.seed)]
    base = config.model if pretrained else str(out / "model")
    sft_weights, rl_weights = out / f"sft/weights/step_{sft_steps}", out / f"rl/weights/step_{rl_steps}"
    sft_command = ["sft", "@", str(files[0]), "--model.name", base]
    rl_command = ["rl", "@", str(files[1]), "--model.name", str(sft_weights), "--output-dir", str(out / "rl")]
    measured = Measured(rl["orchestrator"]["env"], config.num_examples or recipe.num_examples, config.seed)
    goes_on = not (out / SUMMARY).exists() and run_info(out / "sft") is not None
    (out / SUMMARY).unlink(missing_ok=True)
    try:
        if not pretrained:
            run_command(["hone", "init-model", base, "--preset", config.model, *seed])
        sft_seconds = train([*sft_command, "--output-dir", str(out / "sft"), *seed], out / "sft", goes_on)
        rl_seconds = train([*rl_command, *seed], out / "rl", goes_on)
        # Evaluate only at the end: a model in this process would take memory during training.
        say("\nEvaluating on held-out phrases ...")
        if pretrained:
            measured.add("pretrained", base, 0.0)
        measured.add("after SFT", str(sft_weights), sft_seconds)
        measured.add("after SFT + RL", str(rl_weights), sft_seconds + rl_seconds)
        # 6 FLOP per parameter and trained token, 2 per sampled token; all sequences have one length
        steps = sft_steps + round(rl_steps * (6 + 2) / 6 * rl["orchestrator"]["batch_size"] / sft["data"]["batch_size"])
        for name, folder, noise in CONTROLS if config.controls else ():
            args = sft["data"]["env"]["args"] | {"demo_noise": noise}
            words = ["--max-steps", str(steps), "--data.env.args", json.dumps(args)]
            seconds = train([*sft_command, "--output-dir", str(out / folder), *words, *seed], out / folder, goes_on)
            measured.add(name, str(out / folder / f"weights/step_{steps}"), seconds)
    except subprocess.CalledProcessError as error:
        if error.returncode > 128:
            given = {name: getattr(config, name) for name in sorted(config.model_fields_set - {"controls"})}
            print(f"To go on: {command('hone', 'quickstart', **given)}{' --controls' * config.controls}")
        return error.returncode
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes
    whose = (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF)
    # The peak before an interruption is not known.
    peak = None if goes_on else round(max(resource.getrusage(who).ru_maxrss for who in whose) * unit / 2**30, 3)
    summary = {"model": config.model, "seed": config.seed, "rows": measured.rows, "peak_memory_gib": peak}
    (out / SUMMARY).write_text(json.dumps(summary, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    measured.print()
    args, model = measured.env.get("args"), config.model if pretrained else None
    added = gathered("COMMANDS", {})
    print(
        f"\nTraining took {sft_seconds + rl_seconds:.0f} s{f' and at most {peak:.2f} GiB' if peak else ''}. "
        + (f"Reward curve: {out / 'rl/report.html'}" if "report" in added else "")
        + "\nNext:\n"
        + (f"  hone view {out}   # curves and samples in a browser\n" if "view" in added else "")
        + f"  {command('hone', 'eval', 'reverse-text', m=rl_weights, n=5, r=3, a=args)}   # samples and their scores\n"
        f"  {shlex.join([*rl_command[:-1], str(out / 'rl-seed1'), '--seed', '1'])}   # another seed\n"
        f"  {command('hone', 'quickstart', '--controls', model=model)}   # what SFT alone would have reached"
    )
    return 0


def train(words: list[str], folder: Path, goes_on: bool) -> float:
    """Run the training command `words` in `folder`, or resume it; return the run's total seconds."""
    begun = run_info(folder) if goes_on else None
    if begun is None or [word for word in begun.get("command", [])[1:] if word != "--resume"] != words:
        return run_command(words)
    took = run_command([*words, "--resume"])
    return (run_info(folder) or {}).get("seconds") or took


def run_command(words: list[str]) -> float:
    """Print and run a hone command, and pass it signals; return its seconds. Raises CalledProcessError if it fails."""
    say(f"\n$ {shlex.join(words)}")
    start, running, early = time.monotonic(), list[Process](), list[int]()
    # -P: a file of the current folder must not replace a module of hone or of the standard library
    words = [sys.executable, "-P", "-m", "hone.cli", *(words[1:] if words[0] == "hone" else words)]

    def pass_on(number: int, _: Any) -> None:
        for process in running:
            process.send(number)
        early.extend([] if running else [number])

    heard = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, pass_on) for number in heard}
    try:
        # In this process group, a terminal's Ctrl-C would arrive twice, and the second ends a run at once.
        running.append(Process(words, env=os.environ | {"GOMP_SPINCOUNT": "3000"}))
        for number in early:
            running[0].send(number)
        code = running[0].wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if code:
        raise subprocess.CalledProcessError(code if code > 0 else 128 - code, words)
    return time.monotonic() - start


class Measured:
    """Rows of the table: each model's results on the same held-out examples, at temperature 1 and greedy."""

    def __init__(self, env: dict[str, Any], num_examples: int, seed: int) -> None:
        self.env, self.num_examples, self.seed = env, num_examples, seed
        self.rows: list[dict[str, Any]] = []

    def add(self, name: str, weights: str, seconds: float) -> None:
        from hone.config.eval import EvalConfig
        from hone.loops.evaluating import Evaluation

        row: dict[str, Any] = {"model": name, "weights": weights, "train_seconds": seconds}
        for label, temperature in (("sampled", 1.0), ("greedy", 0.0)):
            evaluation = EvalConfig(
                env=self.env["id"],
                env_args=self.env.get("args", {}),
                model=weights,
                num_examples=self.num_examples,
                rollouts_per_example=1,
                temperature=temperature,
                max_tokens=32,
                seed=self.seed,
                save=False,
            )
            result = Evaluation(evaluation).run()
            metrics, names = result.metrics(), ("reward/mean", "ci95/low", "ci95/high", "correct")
            row[label] = {key: metrics[f"eval/{self.env['id']}/{key}"] for key in names}
            if label == "sampled":
                row["samples"] = [
                    {"question": one["prompt"][-1]["content"], "text": one["completion"][-1]["content"]}
                    | {key: one[key] for key in ("answer", "reward")}
                    for one in result.rows()[:SAMPLES]
                ]
        self.rows.append(row)

    def print(self) -> None:
        print(f"\n{self.env['id']}, {self.num_examples} held-out phrases, seed {self.seed}\n")
        print_table([_cells(row) for row in self.rows])
        for number, first in enumerate(self.rows[0]["samples"]):
            print(f"\n{first['question']}")
            for row in self.rows:
                sample = row["samples"][number]
                print(f"  {row['model']:<26}{sample['reward']:.2f}  {json.dumps(sample['text'], ensure_ascii=False)}")


def _cells(row: dict) -> dict[str, str]:
    sampled, greedy = row["sampled"], row["greedy"]
    interval = f"[{sampled['ci95/low']:.3f}, {sampled['ci95/high']:.3f}]"
    return {
        "": row["model"],
        "reward, T=1 [95 %]": f"{sampled['reward/mean']:.3f} {interval}",
        "correct, T=1": f"{100 * sampled['correct']:.1f} %",
        "reward, greedy": f"{greedy['reward/mean']:.3f}",
        "correct, greedy": f"{100 * greedy['correct']:.1f} %",
        "training": f"{row['train_seconds']:.0f} s",
    }


def examples(config: ExamplesConfig) -> int:
    folders = sorted(path for path in find_examples().iterdir() if path.is_dir())
    if config.name is None:
        for folder in folders:
            recipes = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.toml"))
            print(f"{folder.name:<24}{', '.join(recipes)}")
        print("\nhone examples NAME   copies the recipes of NAME to examples/NAME; run their commands from this folder")
        return 0
    name, names = config.name.replace("-", "_"), [folder.name for folder in folders]
    if name not in names:
        raise UserError(f"hone has no recipes named {config.name!r}; it has {', '.join(names)}")
    print("\n".join(map(str, copy_examples(name))))
    return 0


def find_examples() -> Path:
    package = Path(hone.__file__).parent
    bundled = package / "examples"
    return bundled if bundled.is_dir() else package.parents[1] / "examples"


def copy_examples(name: str) -> list[Path]:
    target = Path("examples") / name
    try:
        shutil.copytree(find_examples() / name, target)
    except FileExistsError:
        raise UserError(f"{target} exists already and is not overwritten: move it away first") from None
    except OSError as error:
        raise UserError(f"{target} can't be written ({error}): run this in a writable folder") from None
    return sorted(path for path in target.rglob("*") if path.is_file())
