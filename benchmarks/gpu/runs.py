"""Stages (d) to (f): whole RL steps, a run that is killed and resumed, the cost of exactness, the quickstart."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from gpu import rewards
from gpu.bench import Bench

import hone
from hone.loops.memory import memory

PRECISIONS: dict[str, dict[str, Any]] = {
    "bf16_linear": {},
    "bf16": {"precision": "bf16"},
    "bf16, compiled": {"precision": "bf16", "model.compile": True},
}
MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "deterministic": {"deterministic": True},
    "batch-invariant": {"inference.batch_invariant": True},
}
"""Variants of a run of RL: settings that are not the default's."""
STEPS = 4
"""Of which the first does not count."""
EXACT = {"max_steps": 8, "layers": 4, "hidden": 512, "heads": 8, "kv_heads": 4, "head_dim": 64, "intermediate": 1536}
ROWS = [{"prompt": [{"role": "user", "content": f"Say {i} words."}]} for i in range(100, 200)]
RECIPES = Path("examples/reverse_text")
TOYS: dict[str, dict[str, Any]] = {
    "tiny_sft.toml": {"max_steps": 8, "data.batch_size": 8, "data.env.args.num_train_examples": 99},
    "tiny.toml": {
        "max_steps": 8,
        "model.name": "outputs/tiny-sft/weights/step_8",
        "orchestrator.batch_size": 8,
        "orchestrator.env.args.num_train_examples": 99,
        "orchestrator.eval.num_examples": 8,
    },
}
"""Keys of the recipes that are others for a toy."""


def rl(bench: Bench, shape: str, prompts: int, rollouts: int, new_tokens: int, compiled: bool = False) -> None:
    """Time whole steps: with hone's defaults, and in bf16; or compiled."""
    variants = {name: settings for name, settings in PRECISIONS.items() if ("compiled" in name) == compiled}
    _time_variants(bench, variants, shape, prompts, rollouts, new_tokens)


def modes(bench: Bench, shape: str, prompts: int, rollouts: int, new_tokens: int) -> None:
    """Time whole steps that are deterministic, and whose samples are batch-invariant, beside the default."""
    _time_variants(bench, MODES, shape, prompts, rollouts, new_tokens)
    times = {name: found.get("seconds_per_step") for name, found in bench.figures["steps"].items()}
    cost = {name: each / times["default"] for name, each in times.items() if each and times["default"]}
    bench.figures["cost"] = cost


def _time_variants(
    bench: Bench, variants: dict[str, dict[str, Any]], shape: str, prompts: int, rollouts: int, new_tokens: int
) -> None:
    if bench.tiny:
        prompts, rollouts, new_tokens = 2, 2, 6
    bench.figures["workload"] = {"prompts": prompts, "rollouts": rollouts, "new_tokens": new_tokens}
    model = bench.model_folder(shape)
    for name, settings in variants.items():
        measure = partial(_time_steps, bench, model, settings, prompts, rollouts, new_tokens)
        bench.part(("steps", name), measure, needs=15)


def _time_steps(
    bench: Bench,
    model: Path,
    settings: dict[str, Any],
    prompts: int,
    rollouts: int,
    new_tokens: int,
    found: dict[str, Any],
) -> None:
    out = bench.work / "rl"
    shutil.rmtree(out, ignore_errors=True)
    steps = 2 if bench.tiny else STEPS
    run = hone.RL(
        dataset=ROWS,
        reward_funcs=rewards.letters,
        **{
            "model.name": str(model),
            "model.device": str(bench.device),
            "output_dir": out,
            "max_steps": steps,
            "seq_len": new_tokens + 64,
            "orchestrator.batch_size": prompts * rollouts,
            "orchestrator.rollouts_per_example": rollouts,
            "orchestrator.sampling.max_tokens": new_tokens,
            "orchestrator.grading.workers": 2,
            "gap.action": "warn",
            "display": "none",
        },
        **settings,
    )
    times, lengths, skipped = [], [], []
    with run, _captures() as captures:
        if bench.device.type == "cuda":
            found["planned_bytes"] = memory(run.config, run.decoder, "cuda", 64, new_tokens).total
        while not run.done:
            captures.append(0)
            times.append(bench.timed(run.step))
            found["captures"] = captures
            metrics = run.steps.metrics
            lengths.append(metrics["completion/length/mean"])
            skipped.append(metrics["optimizer/skipped"])
            found.update(seconds_per_step=median(times[1:] or times), first_seconds=times[0], seconds=times[1:])
            found.update(completion_tokens=lengths[-1], logprob_gap=metrics.get("logprob_gap/mean"))
            bench.note_peak(found)
            if bench.left < 2 * times[-1] and not bench.tiny:
                break
    assert not any(skipped), "steps made no update"
    timings = [json.loads(line) for line in (out / "timings.jsonl").read_text().splitlines()]
    timings = timings[min(1, len(times) - 1) : len(times)]
    names = [name for name in timings[0] if name.startswith("time/") and name != "time/total"]
    found["phases"] = {name: median(row.get(name, 0.0) for row in timings) for name in names}


def resume(bench: Bench) -> None:
    """Kill a deterministic run of RL once it has a checkpoint, resume it, and compare it with one that ran through."""
    with _device_memory(bench):
        bench.part((), partial(_resume, bench))


def _resume(bench: Bench, found: dict[str, Any]) -> None:
    sizes = EXACT | ({"max_steps": 4, "layers": 1, "hidden": 48, "intermediate": 64} if bench.tiny else {})
    steps = sizes.pop("max_steps")
    data = bench.work / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    words = [
        "rl",
        "--reward",
        f"{rewards.__file__}:letters",
        "--data",
        str(data),
        "--model.name",
        "hone/tiny",
        "--model.device",
        str(bench.device),
        "--deterministic",
    ]
    words += [word for name, value in sizes.items() for word in (f"--model.init.{name.replace('_', '-')}", str(value))]
    words += ["--max-steps", str(steps), "--ckpt.interval", "1" if bench.tiny else "2", "--seq-len", "96"]
    words += ["--orchestrator.batch-size", "8" if bench.tiny else "64", "--orchestrator.rollouts-per-example", "4"]
    words += ["--orchestrator.sampling.max-tokens", "8" if bench.tiny else "32", "--trainer.optim.lr", "1e-3"]
    words += ["--inference.kv-gib", "1", "--trainer.checkpointing", "none", "--display", "plain"]
    words += ["--no-report", "--no-audit"]
    whole, parts = bench.work / "whole", bench.work / "parts"
    # Side by side: what is free on the GPU decides nothing here.
    through = _start(bench, [*words, "--output-dir", str(whole)])
    checkpoint = parts / "checkpoints" / ("step_1" if bench.tiny else "step_2") / "COMPLETE"
    cut = _start(bench, [*words, "--output-dir", str(parts)], {rewards.HOLD: str(checkpoint)})
    while not checkpoint.exists() and cut.poll() is None:
        threading.Event().wait(0.005)
    os.kill(cut.pid, signal.SIGKILL)
    assert cut.wait() == -signal.SIGKILL, "it ended before it was killed"
    found["killed_after_steps"] = len((parts / "metrics.jsonl").read_text().splitlines())
    codes = [_start(bench, ["rl", "@", str(parts / "config.toml"), "--resume"]).wait(), through.wait()]
    assert codes == [0, 0], f"exit codes {codes}"
    lines = (whole / "metrics.jsonl").read_text().splitlines()
    found["updates"] = sum(json.loads(line).get("optimizer/skipped") == 0 for line in lines)
    assert found["updates"] == steps, "steps made no update"
    for name, file in (
        ("metrics", "metrics.jsonl"),
        ("hashes", "hashes.jsonl"),
        ("weights", f"weights/step_{steps}/model.safetensors"),
    ):
        one, other = (hashlib.sha256((folder / file).read_bytes()).hexdigest() for folder in (whole, parts))
        found[name] = {"sha256": one, "same": one == other}
    found["exact"] = all(found[name]["same"] for name in ("metrics", "hashes", "weights"))
    assert found["exact"], "the resumed run has other bytes"


def quickstart(bench: Bench) -> None:
    """Run `hone quickstart`: a model from nothing, SFT, RL and evaluation."""
    bench.part((), partial(_quickstart, bench))


def _quickstart(bench: Bench, found: dict[str, Any]) -> None:
    here = bench.work / "quickstart"
    here.mkdir()
    if bench.tiny:
        import tomli_w

        shutil.copytree(Path(hone.__file__).parents[2] / RECIPES, here / RECIPES)
        for name, settings in TOYS.items():
            file = here / RECIPES / name
            recipe = tomllib.loads(file.read_text())
            for key, value in settings.items():
                *sections, last = key.split(".")
                section = recipe
                for one in sections:
                    section = section.setdefault(one, {})
                section[last] = value
            file.write_text(tomli_w.dumps(recipe))
    with _device_memory(bench):
        number = "8" if bench.tiny else "256"
        code = _start(bench, ["quickstart", "--output-dir", "q", "--num-examples", number], folder=here).wait()
    assert code == 0, f"exit code {code}"
    summary = json.loads((here / "q/summary.json").read_text())
    names = ("reward/mean", "ci95/low", "ci95/high", "correct")
    for row in summary["rows"]:
        sampled = {name: row["sampled"][name] for name in names}
        found[row["model"]] = {"train_seconds": row["train_seconds"], **sampled}


@contextmanager
def _captures() -> Iterator[list[int]]:
    """Count CUDA graphs that are made in the block, in the last number of the list that it gives."""
    counts, made = list[int](), torch.cuda.CUDAGraph

    def count(*args: Any, **kwargs: Any) -> Any:
        counts[-1] += 1
        return made(*args, **kwargs)

    torch.cuda.CUDAGraph = count  # pyright: ignore
    try:
        yield counts
    finally:
        torch.cuda.CUDAGraph = made


@contextmanager
def _device_memory(bench: Bench) -> Iterator[None]:
    """Note the most memory of the device that all processes together take in the block."""
    ended = threading.Event()

    def watch() -> None:
        before = least = torch.cuda.mem_get_info()[0]
        while not ended.wait(0.1):
            least = min(least, torch.cuda.mem_get_info()[0])
            bench.peak = max(bench.peak, before - least)

    watcher = threading.Thread(target=watch) if bench.device.type == "cuda" else None
    if watcher:
        watcher.start()
    try:
        yield
    finally:
        ended.set()
        if watcher:
            watcher.join()


def _start(
    bench: Bench, words: list[str], variables: dict[str, str] | None = None, folder: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start a command of hone with these variables of the environment besides."""
    print(f"$ hone {' '.join(words)}", flush=True)
    command = [sys.executable, "-P", "-m", "hone.cli", *words]
    return subprocess.Popen(command, cwd=folder or bench.work, env=os.environ | (variables or {}))
