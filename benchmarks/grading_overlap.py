"""Seconds of an RL step whose completions are graded while others are sampled, and after that, for several graders.

    .venv/bin/python benchmarks/grading_overlap.py --out benchmarks/results/grading_overlap.json

The tiny preset, after a short SFT so that its completions end at different lengths, takes steps of 8 prompts x 8
rollouts on reverse-text. Its reward function, in worker processes, is cheap, burns 20 ms of processor time, or waits
50 ms as for an HTTP judge. The two runs are in one process and take turns, step by step; both take the same steps, to
the byte. A figure is the median over the steps, a speedup that of the pairs. Each setting is so many
cores for engine and graders together (one worker per core), and so many threads of the engine.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import sys
import tempfile
import time
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from recording import cpu_model, show

os.environ.setdefault("GOMP_SPINCOUNT", "3000")
ROOT = Path(__file__).resolve().parents[1]
PROMPTS, ROLLOUTS, MAX_TOKENS = 8, 8, 40
MILLISECONDS = {"cheap": 0, "burns": 20, "waits": 50}
SETTINGS = {"2 cores, 1 thread": (2, 1), "1 core, 1 thread": (1, 1)}


def similarity(completion: Any, answer: str, parser: Any, grader: str) -> float:
    """reverse-text's, at a cost."""
    import reverse_text

    if grader == "waits":
        time.sleep(MILLISECONDS[grader] / 1000)
    end = time.thread_time() + MILLISECONDS["burns"] / 1000
    while grader == "burns" and time.thread_time() < end:
        pass
    return reverse_text.similarity(completion, answer, parser)


def load_environment(grader: str) -> Any:
    """reverse-text with that grader."""
    import reverse_text

    from hone.environments import Rubric

    env = reverse_text.load_environment(min_chars=4, max_chars=32)
    funcs = [functools.partial(similarity, grader=grader), reverse_text.exact]
    env.id, env.rubric = "grading-overlap", Rubric(funcs, [1.0, 0.0], correctness=reverse_text.exact)
    return env


def warm_model(folder: Path, steps: int) -> Path:
    """The tiny preset, as far as to end its answers."""
    import hone

    settings: dict[str, Any] = {"data.env.id": "reverse-text", "data.env.args": {"min_chars": 4, "max_chars": 32}}
    settings |= {"data.batch_size": 32, "data.pack": False, "data.seq_len": 96, "optim.lr": 3e-3, "threads": 1}
    hone.sft(model="hone/tiny", max_steps=steps, output_dir=folder, display="none", **settings)
    return folder / "weights" / f"step_{steps}"


def take_turns(model: Path, grader: str, threads: int, steps: int, work: Path) -> list[dict[str, dict[str, float]]]:
    """Return the timings of each step of both runs, but for the first, whose processes start."""
    from hone import RL

    settings: dict[str, Any] = {"orchestrator.env.id": "grading-overlap", "orchestrator.env.args": {"grader": grader}}
    settings |= {"orchestrator.batch_size": PROMPTS * ROLLOUTS, "orchestrator.rollouts_per_example": ROLLOUTS}
    settings |= {"orchestrator.sampling.max_tokens": MAX_TOKENS, "seq_len": 128, "trainer.optim.lr": 1e-5}
    settings |= {"max_steps": steps + 1, "threads": threads, "audit": False, "report": False, "display": "none"}
    with ExitStack() as stack:
        runs = {}
        for name in ("after", "overlap"):
            rl = RL(model=model, **settings, output_dir=work / f"{grader}-{name}")
            rl.env.grades_early = name == "overlap"
            runs[name] = stack.enter_context(rl)
        rows = []
        for step in range(steps + 1):
            row = {}
            for name in list(runs)[:: 1 if step % 2 else -1]:
                began = time.perf_counter()
                groups = runs[name].sample()
                sampled = time.perf_counter()
                runs[name].update(groups)
                row[name] = {"step": time.perf_counter() - began, "sample_and_grade": sampled - began}
            rows.append(row)
    kept = [(work / f"{grader}-{name}" / "metrics.jsonl").read_bytes() for name in runs]
    assert kept[0] == kept[1], "both take the same steps"
    return rows[1:]


def measure(model: Path, setting: str, args: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Return the figures of each grader."""
    cores, threads = SETTINGS[setting]
    available = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(available)[:cores])
    try:
        assert len(os.sched_getaffinity(0)) == cores
        result: dict[str, Any] = {}
        for grader in args.graders:
            rows = take_turns(model, grader, threads, args.steps, work / setting)
            seconds = {name: {key: median(row[name][key] for row in rows) for key in rows[0][name]} for name in rows[0]}
            speedup = median(row["after"]["step"] / row["overlap"]["step"] for row in rows)
            result[grader] = {"seconds": seconds, "speedup": speedup, "steps": rows}
            print(f"{setting}, {grader}: {speedup:.2f} x", flush=True)
        return result
    finally:
        os.sched_setaffinity(0, available)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graders", nargs="+", choices=list(MILLISECONDS), default=list(MILLISECONDS))
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--steps", type=int, default=8, help="counted steps of each run")
    parser.add_argument("--model", type=Path, help="model to start from (default: a short SFT of the tiny preset)")
    parser.add_argument("--sft-steps", type=int, default=100)
    parser.add_argument("--out", type=Path, help="JSON file to write; what is not measured stays in it")
    args = parser.parse_args(argv)
    args.out, args.model = args.out and args.out.resolve(), args.model and args.model.resolve()
    os.chdir(ROOT / "benchmarks")  # where workers find the task
    sys.path[:0] = [str(ROOT / "environments")]
    with tempfile.TemporaryDirectory() as tmp:
        model = args.model or warm_model(Path(tmp) / "sft", args.sft_steps)
        settings = {setting: measure(model, setting, args, Path(tmp)) for setting in args.settings}
    before = json.loads(args.out.read_text())["settings"] if args.out and args.out.exists() else {}
    settings = before | {setting: before.get(setting, {}) | figures for setting, figures in settings.items()}
    workload = {"prompts": PROMPTS, "rollouts": ROLLOUTS, "max_tokens": MAX_TOKENS, "milliseconds": MILLISECONDS}
    versions = {"torch": version("torch"), "python": platform.python_version()}
    show({"workload": workload, "settings": settings, "cpu": cpu_model(), "versions": versions}, args.out)


if __name__ == "__main__":
    main()
