"""Tokens/s of one and of several servers, each with one thread, on the work of an RL step.

    .venv/bin/python benchmarks/replicas.py --out benchmarks/results/replicas.json

Servers are processes, as `hone rl --inference.replicas N` starts them. The counts take turns, round by round; a round
samples 16 groups of 8 completions of 64 tokens of the tiny preset. The policy is the one that `rl` has.
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

from recording import show

from hone import rng
from hone.inference.endpoint import Endpoint
from hone.inference.types import SamplingParams
from hone.inference.vllm.server import free_port
from hone.model.chat import load_renderer
from hone.model.hf import load_model, save_model
from hone.orchestrator.reach import reach
from hone.orchestrator.remote import ServerPolicy
from hone.orchestrator.types import Request
from hone.runs.provenance import hardware

GROUPS, GROUP, TOKENS = 16, 8, 64
MODEL = "hone/tiny"


def serve(root: Path, port: int) -> subprocess.Popen[bytes]:
    words = ["inference", "--model.name", MODEL, "--port", str(port), "--weights-root", str(root), "--threads", "1"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "hone.cli", *words],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def work(renderer, turn: int) -> list[Request]:
    """Other prompts in each turn, so that no cache of prefixes helps."""
    made = []
    for group in range(GROUPS):
        ids = tuple(int(i) for i in rng.stream(0, "bench", turn, group).integers(3, 60, 24))
        keys = [rng.key(0, "bench", turn, group, number) for number in range(GROUP)]
        made += [Request(ids, [], key, f"{group}-{number}", TOKENS) for number, key in enumerate(keys)]
    return made


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args(argv)
    model, renderer = load_model(MODEL), load_renderer(MODEL)
    with tempfile.TemporaryDirectory() as tmp, ExitStack() as stack:
        root = Path(tmp)
        save_model(model, root / "step_1")
        policies = {}
        for count in args.replicas:
            ports = [free_port("127.0.0.1") for _ in range(count)]
            for port in ports:
                process = serve(root, port)
                stack.callback(process.wait)
                stack.callback(process.terminate)
            endpoints = [Endpoint(f"http://127.0.0.1:{port}/v1", max_retries=0) for port in ports]
            asked = (MODEL, renderer, 128, root / "none", model.num_parameters)
            policies[count] = ServerPolicy([reach(one, *asked, patience=120.0) for one in endpoints], renderer, ())
            policies[count].load(1, root / "step_1")
        rounds: list[dict[int, float]] = []
        for turn in range(args.rounds + 1):
            row = {}
            for count in args.replicas if turn % 2 else args.replicas[::-1]:
                began = time.perf_counter()
                policies[count].sample(work(renderer, turn), SamplingParams(ignore_eos=True))
                row[count] = GROUPS * GROUP * TOKENS / (time.perf_counter() - began)
            if turn:
                rounds.append(row)
                said = ", ".join(f"{count}: {value:,.0f}" for count, value in row.items())
                print(f"round {turn}/{args.rounds}, tokens/s by servers: {said}", flush=True)
    first = args.replicas[0]
    result = {
        "workload": {"groups": GROUPS, "group": GROUP, "new_tokens": TOKENS, "threads_each": 1},
        "tokens_per_second": {count: median(row[count] for row in rounds) for count in args.replicas},
        "ratio": {count: median(row[count] / row[first] for row in rounds) for count in args.replicas},
        "rounds": rounds,
        "machine": hardware(),
    }
    show(result, args.out)


if __name__ == "__main__":
    main()
