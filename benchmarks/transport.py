"""A weight update of a 0.6B model through the transport while the server samples: through shared memory, and by disk.

    .venv/bin/python benchmarks/transport.py --out benchmarks/results/transport.json

Qwen3-0.6B's shape with random weights. A process of its own is the trainer: it takes an order, writes the weights, and
says so; then the server loads them beside the running engine, and the engine takes them between two steps. `update` is
from the order to that moment; parts of it are `write`, `load`, `wait` (for the end of the decode step that is under
way) and `swap` (what the engine's thread does between two steps). Four completions are sampled on one thread meanwhile.
Updates go through memory and by disk in turns, each pair at another moment of a decode step; figures are medians. `gap`
is the longest time between the ends of two decode steps during an update; `step` what it is otherwise.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from functools import partial
from importlib.metadata import version
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import torch
from recording import keep, show
from sampling import QWEN3_06B

from hone.extensions.server.service import Service
from hone.extensions.server.weights import WeightsFolder
from hone.extensions.split.transport import FileTransport, Order, Result, Session
from hone.inference.engine import Engine
from hone.inference.types import Job, SamplingParams
from hone.loops.machine import configure
from hone.loops.shared_memory import shared_folder
from hone.model.config import DecoderConfig
from hone.model.decoder import Decoder
from hone.model.hf import WEIGHTS, load_model, reserve_files, save_model
from hone.runs.provenance import hardware

JOBS, PROMPT_TOKENS, NEW_TOKENS = 4, 32, 16384
PLACES = ("disk", "memory")
WARM_UP = 2
"""Updates of each kind that don't count: only then have both sides all the memory that they take, and reuse it."""
LIMIT = 300.0
"""Seconds after which the trainer counts as dead."""


def trainer(path: Path, config: DecoderConfig, precision: str) -> None:
    """Publishes a version at each order, in a process of its own."""
    torch.set_num_threads(1)
    model = Decoder(config, precision)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.03, 0.03)
    transport = FileTransport(path)
    transport.session()
    for step in range(10**6):
        order = transport.order(step)
        if order is None or order.kind == "end":
            return
        began = time.perf_counter()
        reserve = partial(reserve_files, model) if PLACES[step % 2] == "memory" else None
        with transport.weights_dir(step, reserve) as (folder, reserved):
            assert reserved == (reserve is not None), "there is no room in memory"
            save_model(model, folder, reserved=reserved)
        seconds = {"publish": time.perf_counter() - began}
        transport.put_result(Result(step, {}, "", (), seconds))


class Sampler:
    """The server's engine at work, and when each of its steps ended."""

    def __init__(self, model: Decoder) -> None:
        engine = Engine(model, kv_bytes=2 * 2**30)
        self.ends: list[float] = []
        step = engine.step

        def timed() -> Any:
            tokens = step()
            self.ends.append(time.perf_counter())
            return tokens

        engine.step = timed  # type: ignore[method-assign]
        self.service = Service(engine)
        self.service.start()
        prompts = [tuple(range(5 + k, 5 + k + PROMPT_TOKENS)) for k in range(JOBS)]
        params = SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True)
        jobs = [Job(prompt, k, NEW_TOKENS, params) for k, prompt in enumerate(prompts)]
        self.service.submit(jobs, lambda news: None, whole=True).result()

    def wait_steps(self, count: int) -> None:
        target = len(self.ends) + count
        while len(self.ends) < target:
            time.sleep(0.005)

    def update(self, weights: WeightsFolder, folder: Path, version: int) -> dict[str, float]:
        """Have the engine take the weights; seconds of the parts."""
        moments = [time.perf_counter()]
        loaded = weights.load(str(folder), self.service.engine.model)
        moments.append(time.perf_counter())
        waits = self.service.call(lambda: moments.append(time.perf_counter()))  # carried out just before the swap
        swap = self.service.update(loaded, version, str(folder))
        waits.result()
        swap.result()
        moments.append(time.perf_counter())
        load, wait, swapped = (later - earlier for earlier, later in pairwise(moments))
        return {"load": load, "wait": wait, "swap": swapped}

    def longest_gap(self, start: float, end: float) -> float:
        """Between the ends of two steps, of which the second is the first after `start`, or a later one up to the
        second after `end`.
        """
        after = sum(moment <= end for moment in self.ends)
        first = max(1, sum(moment <= start for moment in self.ends))
        ends = self.ends[first - 1 : after + 2]
        return max(later - earlier for earlier, later in pairwise(ends))


def measure(precision: str, rounds: int, work: Path, memory: Path, config: DecoderConfig = QWEN3_06B) -> dict[str, Any]:
    """Updates in turns: by disk, and through memory; of each kind two that don't count, then `rounds` that do."""
    transport = FileTransport(work / "transport")
    transport.open(Session("bench", 0, None, str(work), {}, 1.0, (), memory=str(memory)))
    process = get_context("spawn").Process(target=trainer, args=(work / "transport", config, precision), daemon=True)
    process.start()

    def alive() -> None:
        assert process.is_alive(), "the trainer has ended"

    transport.interrupt = alive
    transport.put(Order(0, "batch"))
    transport.result(0)
    weights = WeightsFolder(transport.weights_root, memory)
    sampler = Sampler(load_model(transport.weights(0), precision=precision))
    sampler.wait_steps(3)
    size = (transport.weights(0) / WEIGHTS).stat().st_size
    seen: dict[str, list[dict[str, float]]] = {place: [] for place in PLACES}
    for step in range(1, 2 * (rounds + WARM_UP) + 1):
        os.sync()
        sampler.wait_steps(3)
        at_rest = median(later - earlier for earlier, later in pairwise(sampler.ends[-4:]))
        time.sleep(at_rest * ((step - 1) // 2 % rounds) / rounds)
        began = time.perf_counter()
        transport.put(Order(step, "batch"))
        result = transport.result(step)
        assert result is not None
        parts = sampler.update(weights, transport.weights(step), step)
        ended = time.perf_counter()
        sampler.wait_steps(2)
        times = {"update": ended - began, "write": result.seconds["publish"], **parts}
        times |= {"gap": sampler.longest_gap(began, ended), "step": at_rest}
        transport.drop(step - 1)
        print(precision, PLACES[step % 2], {name: round(value, 2) for name, value in times.items()}, flush=True)
        seen[PLACES[step % 2]].append(times)
    transport.put(Order(2 * (rounds + WARM_UP) + 1, "end"))
    process.join(LIMIT)
    sampler.service.close()
    transport.close()
    counted = {place: found[WARM_UP:] for place, found in seen.items()}
    seconds = {
        place: {name: median(times[name] for times in found) for name in found[0]} for place, found in counted.items()
    }
    at_work = {place: median(t["update"] - t["wait"] for t in found) for place, found in counted.items()}
    return {
        "bytes": size,
        "seconds": seconds,
        "faster": seconds["disk"]["update"] / seconds["memory"]["update"],
        "faster_without_wait": at_work["disk"] / at_work["memory"],
        "rounds": counted,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precision", nargs="+", default=["bf16", "fp32"])
    parser.add_argument("--folder", type=Path, help="on the disk to measure; by default the one for temporary files")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    configure(1, 0)  # as the server's command does
    result: dict[str, Any] = {
        "workload": {
            "model": "Qwen3-0.6B's shape, random weights",
            "rounds": args.rounds,
            "completions": JOBS,
            "threads": torch.get_num_threads(),
        }
    }
    result["machine"] = {**hardware(), "python": platform.python_version(), "torch": version("torch")}
    for precision in args.precision:
        with tempfile.TemporaryDirectory(dir=args.folder) as work, shared_folder(print) as memory:
            assert memory is not None
            result[precision] = measure(precision, args.rounds, Path(work), memory)
        if args.out:
            keep(result, args.out)
    show(result)


if __name__ == "__main__":
    main()
