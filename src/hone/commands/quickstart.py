"""`hone quickstart`: the whole path on a CPU in minutes: a model from nothing, SFT, RL, an honest evaluation.

Every step is a command that you can run yourself; they are printed as they run. With `--controls`, two more rows answer
the obvious questions: what would SFT alone have reached with the same compute, and with perfect demonstrations?

`hone examples [NAME]` lists the recipes that come with hone, or copies those of one task into `examples/NAME`.
"""

from __future__ import annotations

import json
import os
import resource
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import hone
from hone.commands.status import print_table
from hone.config.init import ExamplesConfig, QuickstartConfig
from hone.errors import UserError

RECIPES = Path("examples/reverse_text")
EQUAL_COMPUTE = (6 + 2) / 6 * 128 / 32
"""SFT steps (of 32 sequences) with the compute of a step of RL (of 128 sequences): 6 FLOP a parameter and trained
token, 2 a sampled one."""
CONTROLS = (("SFT alone, equal compute", "sft_long", 1.0), ("SFT alone, clean", "sft_clean", 0.0))
"""Name, folder and noise of the demonstrations."""


def run(config: QuickstartConfig) -> int:
    """Train, evaluate and print a table; return the exit code, that of the first command that failed."""
    if not RECIPES.exists():
        print("$ hone examples reverse_text", flush=True)
        copy_examples(RECIPES.name)
    recipes = [tomllib.loads((RECIPES / name).read_text()) for name in ("tiny_sft.toml", "tiny.toml")]
    sft_steps, rl_steps = (recipe["max_steps"] for recipe in recipes)
    out, seed = config.output_dir, ["--seed", str(config.seed)]
    sft_weights, rl_weights = out / f"sft/weights/step_{sft_steps}", out / f"rl/weights/step_{rl_steps}"
    sft_command = ["sft", "@", str(RECIPES / "tiny_sft.toml"), "--model.name", str(out / "model")]
    rl_command = ["rl", "@", str(RECIPES / "tiny.toml"), "--model.name", str(sft_weights)]
    rl_command += ["--output-dir", str(out / "rl")]
    try:
        run_command(["hone", "init-model", str(out / "model"), "--preset", "tiny", *seed])
        sft = run_command([*sft_command, "--output-dir", str(out / "sft"), *seed])
        rl = run_command([*rl_command, *seed])
        print("\nEvaluating on held-out phrases ...", flush=True)
        rows = [measure("after SFT", sft_weights, sft, config)]
        rows.append(measure("after SFT + RL", rl_weights, sft + rl, config))
        steps = sft_steps + round(rl_steps * EQUAL_COMPUTE)
        for name, folder, noise in CONTROLS if config.controls else ():
            words = ["--max-steps", str(steps), "--data.env.args", json.dumps({"demo_noise": noise})]
            seconds = run_command([*sft_command, "--output-dir", str(out / folder), *words, *seed])
            rows.append(measure(name, out / folder / f"weights/step_{steps}", seconds, config))
    except subprocess.CalledProcessError as error:
        return error.returncode
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit / 2**30
    summary = {"seed": config.seed, "rows": rows, "peak_memory_gib": round(peak, 3)}
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    print(f"\nreverse-text, {config.num_examples} held-out phrases, seed {config.seed}\n")
    print_table([_cells(row) for row in rows])
    print(
        f"\nTraining took {sft + rl:.0f} s and at most {peak:.2f} GiB. Reward curve: {out / 'rl/report.html'}\nNext:\n"
        f"  hone view {out}   # curves and samples in a browser\n"
        f"  hone eval reverse-text -m {rl_weights} -n 5 -r 3   # samples and their scores\n"
        f"  {shlex.join([*rl_command[:-1], str(out / 'rl-seed1'), '--seed', '1'])}   # another seed\n"
        f"  hone quickstart --controls   # what SFT alone would have reached"
    )
    return 0


def run_command(words: list[str]) -> float:
    """Run a command of hone, shown as it would be typed; return its seconds. Raises CalledProcessError."""
    print(f"\n$ {shlex.join(words)}", flush=True)
    start = time.monotonic()
    # -P: a file of the current folder must not replace a module of hone or of the standard library
    command = [sys.executable, "-P", "-m", "hone.cli", *(words[1:] if words[0] == "hone" else words)]
    subprocess.run(command, check=True, env=os.environ | {"GOMP_SPINCOUNT": "3000"})
    return time.monotonic() - start


def measure(name: str, weights: Path, seconds: float, config: QuickstartConfig) -> dict:
    """Evaluate weights at T=1 and greedy; return their row. `seconds` is what training took in all."""
    from hone.composition.evaluating import Evaluation
    from hone.config.eval import EvalConfig

    row: dict = {"model": name, "weights": str(weights), "train_seconds": seconds}
    for label, temperature in (("sampled", 1.0), ("greedy", 0.0)):
        evaluation = EvalConfig(
            env="reverse-text",
            model=str(weights),
            num_examples=config.num_examples,
            rollouts_per_example=1,
            temperature=temperature,
            max_tokens=32,
            seed=config.seed,
            save=False,
        )
        metrics = Evaluation(evaluation).run().metrics()
        names = ("reward/mean", "ci95/low", "ci95/high", "correct")
        row[label] = {key: metrics[f"eval/reverse-text/{key}"] for key in names}
    return row


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
    """List or copy; return the exit code. Raises UserError rather than overwrite a file."""
    folders = sorted(path for path in find_examples().iterdir() if path.is_dir())
    if config.name is None:
        for folder in folders:
            recipes = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.toml"))
            print(f"{folder.name:<14}{', '.join(recipes)}")
        print("\nhone examples NAME   copies a folder to examples/NAME, from where its commands run as written in them")
        return 0
    name, names = config.name.replace("-", "_"), [folder.name for folder in folders]
    if name not in names:
        raise UserError(f"hone has no recipes {config.name!r}: there are {', '.join(names)}")
    print("\n".join(map(str, copy_examples(name))))
    return 0


def find_examples() -> Path:
    """Return the folder of all recipes: inside the installed package, or `examples` of a checkout."""
    package = Path(hone.__file__).parent
    bundled = package / "examples"
    return bundled if bundled.is_dir() else package.parents[1] / "examples"


def copy_examples(name: str) -> list[Path]:
    """Copy the recipes of a task into `examples/NAME` of the current folder; return the copies."""
    target = Path("examples") / name
    try:
        shutil.copytree(find_examples() / name, target)
    except FileExistsError:
        raise UserError(f"{target} exists already, and nothing is overwritten: move it away first") from None
    except OSError as error:
        raise UserError(f"{target} can't be written ({error}): run this in a folder of yours") from None
    return sorted(path for path in target.rglob("*") if path.is_file())
