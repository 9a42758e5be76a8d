"""Tokens/s of one and of several servers, each with one thread, on the work of an RL step.

    .venv/bin/python benchmarks/replicas.py --out benchmarks/results/replicas.json

Servers are processes, as `hone rl --inference.replicas N` starts them. The counts take turns, round by round; a round
samples groups of 8 completions. The policy is the one that `rl` has. A server that gets half of the groups decodes half
as many sequences a step, which takes more than half of the time: how much more is told by the workloads of one model.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from recording import show

from hone import rng
from hone.client import Endpoint
from hone.inference.policy import Request
from hone.inference.types import SamplingParams
from hone.loops.reach import connect_to_server
from hone.loops.remote import ServerPolicy
from hone.model.chat import load_renderer
from hone.model.hf import load_model, save_model
from hone.processes import free_port
from hone.runs.provenance import hardware

GROUP = 8
WORKLOADS = {"smollm2-135m": (16, (16, 32)), "hone/tiny": (64, (16, 64))}
"""Of each model: new tokens of a completion, and groups of a round."""


def serve(model: str, root: Path, port: int) -> subprocess.Popen[bytes]:
    words = ["inference", "--model.name", model, "--port", str(port), "--weights-root", str(root), "--threads", "1"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "hone.cli", *words],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def work(turn: int, groups: int, tokens: int) -> list[Request]:
    """Other prompts in each turn, so that no cache of prefixes helps."""
    made = []
    for group in range(groups):
        ids = tuple(int(i) for i in rng.stream(0, "bench", turn, group).integers(3, 60, 24))
        keys = [rng.key(0, "bench", turn, group, number) for number in range(GROUP)]
        made += [Request(ids, [], key, f"{group}-{number}", tokens) for number, key in enumerate(keys)]
    return made


def measured(name: str, counts: list[int], number: int) -> list[dict[str, Any]]:
    """Return the figures of each workload of a model."""
    tokens, sizes = WORKLOADS[name]
    model, renderer = load_model(name), load_renderer(name)
    with tempfile.TemporaryDirectory() as tmp, ExitStack() as stack:
        root = Path(tmp)
        save_model(model, root / "step_1")
        policies = {}
        for count in counts:
            ports = [free_port() for _ in range(count)]
            for port in ports:
                process = serve(name, root, port)
                stack.callback(process.wait)
                stack.callback(process.terminate)
            endpoints = [Endpoint(f"http://127.0.0.1:{port}/v1", max_retries=0) for port in ports]
            asked = (name, renderer, 128, root / "none", model.num_parameters, 120.0)
            policies[count] = ServerPolicy([connect_to_server(one, *asked) for one in endpoints], renderer, ())
            policies[count].load(1, root / "step_1")
        found = []
        for groups in sizes:
            rounds: list[dict[int, float]] = []
            for turn in range(number + 1):
                row = {}
                for count in counts if turn % 2 else counts[::-1]:
                    began = time.perf_counter()
                    policies[count].sample(work(turn, groups, tokens), SamplingParams(ignore_eos=True))
                    row[count] = groups * GROUP * tokens / (time.perf_counter() - began)
                if turn:  # the first one warms up
                    rounds.append(row)
                    said = ", ".join(f"{count}: {value:,.0f}" for count, value in row.items())
                    print(f"{name}, {groups} groups, {turn}/{number}: tokens/s by servers {said}", flush=True)
            found.append(
                {
                    "workload": {"model": name, "groups": groups, "group": GROUP, "new_tokens": tokens},
                    "tokens_per_second": {count: median(row[count] for row in rounds) for count in counts},
                    "ratio": {count: median(row[count] / row[counts[0]] for row in rounds) for count in counts},
                    "rounds": len(rounds),
                }
            )
    return found


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args(argv)
    found = [one for name in args.models for one in measured(name, args.replicas, args.rounds)]
    show({"threads_each": 1, "workloads": found, "machine": hardware()}, args.out)


if __name__ == "__main__":
    main()
