"""What `hone plan` predicts for one and two processes, against what they do: bytes on every way, seconds of a step.

    .venv/bin/python benchmarks/scaling.py --out benchmarks/results/scaling.json

- ranks: a train step of a model of 59M parameters on one and on two ranks over gloo, one thread each; then its weights
  are gathered, written, and its canary scored; then a checkpoint is written. The processes have a network namespace of
  their own, whose loopback counts what they send. The prediction knows the machine by rates that the same processes
  measure: square products, a copy, an all-gather of 64 MiB.
- split: the quickstart's RL in three processes: the sizes of its batch and weights files, of its rollouts, and what
  passes the loopback in a step, which is HTTP. The prediction knows the mean lengths of the completions.

A ratio is predicted / measured. Needs root, or another way to be allowed `unshare --net`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from importlib.metadata import version
from pathlib import Path
from statistics import mean, median
from typing import Any

from exactness import EXAMPLES, command
from recording import show

from hone.config.rl import RLConfig
from hone.planning.devices import Device
from hone.planning.lengths import Lengths
from hone.planning.links import loopback
from hone.planning.scaling import Layout, shared_out
from hone.planning.shape import Shape
from hone.planning.traffic import traffic
from hone.runs import Run
from hone.runs.provenance import hardware
from hone.runs.rollouts import rollouts_path

WORKER = Path(__file__).with_name("scaling_worker.py")
INIT = {"layers": 12, "hidden": 640, "heads": 10, "kv_heads": 5, "head_dim": 64, "intermediate": 1920}
LENGTHS = Lengths(24, 72, 24, 72)
PRECISIONS = ("bf16_linear", "bf16")
SFT_STEPS = 150
"""Of the model that the split run starts from: its completions then differ in reward, and are trained on."""
SHORT, LONG = 5, 15
"""Steps of two runs, whose difference is what a step sends."""


def config_of(precision: str, init: dict[str, int] = INIT, batch: int = 16) -> RLConfig:
    """Four micro-batches of a group each."""
    group, size = 4, LENGTHS.prompt + 4 * LENGTHS.completion
    return RLConfig.model_validate(
        {
            "model": {"name": "hone/tiny", "init": init},
            "precision": precision,
            "mode": "split",
            "seq_len": LENGTHS.longest,
            "trainer": {"micro_batch_tokens": int(size)},
            "orchestrator": {"batch_size": batch, "rollouts_per_example": group},
        }
    )


def alone_on_the_wire(argv: list[str], log: Path, env: dict[str, str]) -> str:
    """Runs a command in a network namespace of its own; returns what its loopback counted."""
    counters = log.with_suffix(".net")
    script = 'ip link set lo up && out="$1" && shift && "$@" && cat /proc/net/dev > "$out"'
    with log.open("w") as stream:
        subprocess.run(
            ["unshare", "--net", "sh", "-c", script, "sh", str(counters), *argv],
            check=True,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | env,
        )
    return counters.read_text()


def sent(counters: str) -> int:
    (line,) = [line for line in counters.splitlines() if line.strip().startswith("lo:")]
    return int(line.split(":")[1].split()[8])


def measured_ranks(config: RLConfig, world: int, work: Path) -> dict[str, Any]:
    folder = work / f"{config.precision}-{world}"
    folder.mkdir()
    task = folder / "task.json"
    lengths = {
        name: getattr(LENGTHS, name) for name in ("prompt", "completion", "longest_prompt", "longest_completion")
    }
    task.write_text(json.dumps({"config": config.model_dump(mode="json", exclude_unset=True), "lengths": lengths}))
    launch = [sys.executable]
    if world > 1:
        launch += ["-m", "torch.distributed.run", "--nproc-per-node", str(world)]
    alone_on_the_wire([*launch, str(WORKER), str(task), str(folder)], folder / "log", {})
    return json.loads((folder / "result.json").read_text())


def predicted_ranks(config: RLConfig, world: int, rates: dict[str, float]) -> dict[str, Any]:
    """What plan's code says of the same, given the machine's rates."""
    shape = Shape.of(config.model.name, config.model.init)
    flops = {name: rates[name] for name in ("bf16", "fp32")}
    device = Device("this machine", "cpu", 0, flops, rates["copy"])
    links = loopback(rates.get("wire", 1e9))
    plan = shared_out(config, shape, device, LENGTHS, Layout(1, world), links)
    collectives = plan.traffic.gathered + plan.traffic.reduced * links.reduce_scatter
    return {
        "micro_batches": plan.share.micro_batches,
        "step": {
            "seconds": plan.seconds["training"] + plan.seconds["collectives"],
            "bytes": world * collectives,
            "of": {name: plan.seconds[name] for name in ("training", "collectives")},
        },
        "publish": {"seconds": plan.seconds["writing weights"], "bytes": world * plan.traffic.versioned},
        "weights_bytes": plan.traffic.weights,
        "checkpoint_bytes": plan.traffic.checkpoint,
    }


def ratios(predicted: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    """predicted / measured of what both have, and is not 0."""
    found: dict[str, Any] = {}
    for name, value in predicted.items():
        other = measured.get(name)
        if isinstance(value, dict) and isinstance(other, dict):
            found[name] = ratios(value, other)
        elif isinstance(value, (int, float)) and isinstance(other, (int, float)) and value and other:
            found[name] = value / other
    return found


def compared(predicted: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    return {"predicted": predicted, "measured": measured, "ratio": ratios(predicted, measured)}


def middle(of: list[dict[str, Any]]) -> dict[str, Any]:
    """The medians of nested figures."""
    first = of[0]
    return {
        name: middle([one[name] for one in of]) if isinstance(value, dict) else median(one[name] for one in of)
        for name, value in first.items()
    }


def ranks_part(work: Path, precisions: list[str], init: dict[str, int] = INIT) -> dict[str, Any]:
    """Each round is predicted from the rates around it; figures and ratios are medians of the rounds."""
    found: dict[str, Any] = {}
    for precision in precisions:
        config = config_of(precision, init)
        for world in (1, 2):
            measured = measured_ranks(config, world, work)
            rounds = measured.pop("rounds")
            predicted = [predicted_ranks(config, world, one["rates"]) for one in rounds]
            one = compared(middle(predicted), measured | middle(rounds))
            one["ratio"] |= middle([ratios(guess, seen) for guess, seen in zip(predicted, rounds, strict=True)])
            one["rounds"] = [ratios(guess, seen) for guess, seen in zip(predicted, rounds, strict=True)]
            found.setdefault(precision, {})[str(world)] = one
            print(precision, world, json.dumps(one["ratio"]), flush=True)
    return found


class Watch:
    """Looks at a transport's folder again and again: the largest size seen of its batches, and of its weights."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.sizes = folder, {"batch": {}, "weights": {}}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        patterns = {"batch": "*/orders/step_*.safetensors", "weights": "weights/*/step_*/model*.safetensors"}
        while not self._over.is_set():
            for name, pattern in patterns.items():
                for path in self.folder.glob(pattern):
                    try:
                        found, key = path.stat().st_size, path.parent.name + path.name
                    except OSError:  # taken away meanwhile
                        continue
                    self.sizes[name][key] = max(found, self.sizes[name].get(key, 0))
            time.sleep(0.001)


def split_run(weights: Path, steps: int, work: Path) -> tuple[Run, int, dict[str, dict[str, int]]]:
    """A run of so many steps: the run, the bytes on its loopback, and the sizes of its files, those that were seen."""
    out = work / f"split-{steps}"
    flags = ["--model.name", weights, "--max-steps", steps, "--mode", "split", "--orchestrator.max-async-level", 1]
    flags += ["--orchestrator.eval", "None", "--output-dir", out, "--display", "none", "--no-audit"]
    with Watch(out / ".transport") as watch:
        counters = alone_on_the_wire(
            command("rl", "@", EXAMPLES / "tiny.toml", *flags), work / f"split-{steps}.log", {}
        )
    watch.sizes["batch"].pop(f"ordersstep_{steps}.safetensors", None)  # the order to end
    return Run(out), sent(counters), watch.sizes


def split_part(work: Path) -> dict[str, Any]:
    sft = ["sft", "@", EXAMPLES / "tiny_sft.toml", "--max-steps", SFT_STEPS, "--output-dir", work / "sft"]
    subprocess.run(command(*sft, "--display", "none"), check=True, stdout=subprocess.DEVNULL)
    weights = work / f"sft/weights/step_{SFT_STEPS}"
    short, long = split_run(weights, SHORT, work), split_run(weights, LONG, work)
    run, sizes = long[0], long[2]
    tables = [run.rollouts(step) for step in range(LONG)]
    rows = [ids for table in tables for ids in table["token_ids"].to_pylist()]
    sampled = sum(sum(mask) for table in tables for mask in table["sampled_mask"].to_pylist())
    trained = sum(state == "trained" for table in tables for state in table["state"].to_pylist()) / len(rows)
    completion = sampled / len(rows)
    prompt = sum(map(len, rows)) / len(rows) - completion
    config = RLConfig.model_validate(run.config)
    lengths = Lengths(prompt, completion, 0, 0)
    plan = traffic(config, Shape.of(config.model.name), lengths, 1, 1, split=True)
    files = [rollouts_path(run.path, step).stat().st_size for step in range(LONG)]
    measured = {
        "batch_bytes": mean(sizes["batch"].values()),
        "weights_bytes": median(sizes["weights"].values()),
        "http_bytes": (long[1] - short[1]) / (LONG - SHORT),
        "rollouts_bytes": sum(files) / LONG,
        "seen": {name: len(found) for name, found in sizes.items()},
    }
    predicted = {
        "batch_bytes": trained * plan.batch,  # of groups that differ in reward
        "weights_bytes": plan.weights,
        "http_bytes": plan.http,
        "rollouts_bytes": plan.rollouts,
    }
    found = compared(predicted, measured) | {"lengths": {"prompt": prompt, "completion": completion}, "steps": LONG}
    found["trained_share"] = trained
    print("split", json.dumps(found["ratio"]), flush=True)
    return found


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("both", "ranks", "split"), default="both", help="the rest stays in --out")
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=list(PRECISIONS), help="of the ranks")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args(argv)
    result: dict[str, Any] = json.loads(args.out.read_text()) if args.out and args.out.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        if args.part != "split":
            shape = Shape.of("hone/tiny", config_of("bf16").model.init)
            result["workload"] = {
                "parameters": shape.parameters,
                "completions": 16,
                "prompt": LENGTHS.prompt,
                "completion": LENGTHS.completion,
                "threads": 1,
            }
            result["ranks"] = result.get("ranks", {}) | ranks_part(work, args.precision)
        if args.part != "ranks":
            result["split"] = split_part(work)
    result["versions"] = {"python": platform.python_version(), "torch": version("torch")}
    result["hardware"] = hardware()
    show(result, args.out)


if __name__ == "__main__":
    main()
