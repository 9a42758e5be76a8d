"""A run on a Ray cluster of this machine: what it costs a step, how fast it recovers, how grading scales.

    unshare --net .venv/bin/python benchmarks/cluster.py --out benchmarks/results/cluster.json

- overhead: a step in mode cluster, its server on another node than its trainer, against mode split; they take turns.
- grading: samples a second of a grader that waits 50 ms, with 1, 2 and 4 graders on two nodes.
- recovery: seconds from SIGKILL until the run has its next step, or its server back.

Ray listens on all interfaces, so this is for a network namespace of its own.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import secrets
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
for folder in ("tests", "tests/commands", "tests/contracts", "tests/extensions/cluster", "tests/extensions/split"):
    sys.path.insert(0, str(ROOT / folder))
os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "OMP_NUM_THREADS": "1"}

import ray
from processes import until
from ray_nodes import ClusterRun, Nodes
from recording import keep
from split_runs import free_ports, records

from hone.config.shared import GradingConfig
from hone.environments import load_environment
from hone.extensions.cluster.graders import RemoteProcess
from hone.extensions.cluster.nodes import connect
from hone.runs.provenance import hardware

WAIT = 0.05
GROUPS, GROUP = 16, 8
RUN = [
    *("--model.name", "hone/tiny", "--seed", "3", "--no-audit", "--display", "plain", "--seq-len", "96"),
    *("--orchestrator.batch-size", str(GROUPS * GROUP), "--orchestrator.rollouts-per-example", str(GROUP)),
    *("--orchestrator.sampling.max-tokens", "24", "--orchestrator.env.id", "slow-task", "--alarms.action", "off"),
    *("--gap.action", "warn", "--orchestrator.env.args.wait", "false"),
]
WORKLOADS = {
    "16 x 8 completions of 24 tokens": [],
    "16 x 32 completions of 64 tokens": [
        *("--orchestrator.batch-size", "512", "--orchestrator.rollouts-per-example", "32"),
        *("--orchestrator.sampling.max-tokens", "64", "--seq-len", "128"),
    ],
}
SLOW = f'''
"""reverse-text with a grader that waits, and gives a random model something to learn."""
import time
import reverse_text
from hone.environments import Rubric


def waits(completion, answer, parser, seconds={WAIT}):
    time.sleep(seconds)
    return len(set(str(completion))) / 64


def load_environment(wait=True):
    env = reverse_text.load_environment()
    env.rubric = Rubric([waits if wait else quick])
    return env


def quick(completion, answer, parser):
    return waits(completion, answer, parser, 0.0)
'''


@contextmanager
def cluster(*cpus: int):
    """Yield a cluster whose nodes have so many cores, all but the head with a memory of their own."""
    nodes = Nodes(cpus[0])
    try:
        for count in cpus[1:]:
            nodes.add(count, apart=[])
        yield nodes
    finally:
        nodes.close()


def step_times(out: Path) -> dict[str, float]:
    """Return the median seconds of a run's steps, and of their phases, after the first two."""
    lines = records(out / "timings.jsonl")[2:]
    names = ("step", "sample", "grade", "train", "publish", "update")
    return {name: median(line.get(f"time/{name}", 0.0) for line in lines) for name in names}


def finish(argv: list[str], out: Path) -> Path:
    """Run to the end, and return where."""
    run = ClusterRun([*RUN, *argv], out)
    try:
        assert run.ended() == 0, run.output
    finally:
        run.kill()
    return out


def overhead(folder: Path, rounds: int) -> dict[str, Any]:
    """Return by workload the ratio of a step's seconds, and the seconds of its phases."""
    found = {}
    with cluster(1, 1) as nodes:
        modes = {"split": ["--mode", "split"], "cluster": ["--cluster.address", nodes.address]}
        for name, more in WORKLOADS.items():
            times: dict[str, list[dict[str, float]]] = {"split": [], "cluster": []}
            for turn in range(rounds):
                for mode in list(modes)[:: 1 if turn % 2 else -1]:
                    flags = [*modes[mode], *more, "--max-steps", "12", "--inference.port", str(free_ports(1))]
                    times[mode].append(step_times(finish(flags, folder / f"{mode}-{len(more)}-{turn}")))
                    seconds = times[mode][-1]["step"]
                    print(f"overhead, {name}, round {turn + 1}/{rounds}: {mode} {seconds:.3f} s a step", flush=True)
            ratios = [c["step"] / s["step"] for s, c in zip(times["split"], times["cluster"], strict=True)]
            found[name] = {"ratio": median(ratios), "ratios": ratios, "times": times}
    return found


def graded_per_second(graders: int, samples: int) -> float:
    env = load_environment("slow-task")
    env.make_process = RemoteProcess
    env.use_workers(GradingConfig(workers=graders))
    example = env.split("train")[0]
    work = [(example, f"<reversed_text>{number}</reversed_text>") for number in range(samples)]
    try:
        env.grade_many(work[:graders], 0)
        while not all(process and process.ready for process in env._workers.pool._processes):
            env.grade_many(work[:graders], 0)  # a round that is answered by the first leaves the others to start
        began = time.perf_counter()
        env.grade_many(work, 0)
        return samples / (time.perf_counter() - began)
    finally:
        env.close_workers()


def grading(folder: Path, samples: int = 400) -> dict[str, Any]:
    sys.path.insert(0, str(folder))
    rates = {}
    with cluster(2, 2) as nodes:
        connect(nodes.address, "bench")
        try:
            for graders in (1, 2, 4):
                rates[graders] = graded_per_second(graders, samples)
                print(f"grading, {graders} graders: {rates[graders]:.1f} samples/s of {graders / WAIT:.0f}", flush=True)
        finally:
            ray.shutdown()
    return {"samples_per_second": rates, "of_ideal": {n: rate * WAIT / n for n, rate in rates.items()}}


def recovery(folder: Path) -> dict[str, float]:
    seconds = {}

    def measured(what: str, kill: Callable[[], Any], back: Callable[[], Any]) -> None:
        kill()
        began = time.monotonic()
        until(back)
        seconds[what] = time.monotonic() - began
        print(f"recovery from the death of {what}: {seconds[what]:.1f} s", flush=True)

    with cluster(3) as nodes:
        other = nodes.add(4, apart=[])
        more = ["--cluster.address", nodes.address, "--cluster.graders", "2", "--inference.replicas", "2"]
        more += ["--ckpt.interval", "1", "--max-steps", "2000", "--orchestrator.env.args.wait", "true"]
        run = ClusterRun([*RUN, *more, "--inference.port", str(free_ports(2)), "--restarts", "9"], folder / "faults")
        try:
            run.at_step(3)

            def next_step() -> Callable[[], bool]:
                at = run.steps()
                return lambda: run.steps() > at + 1

            grader = other.pids("process_main.py")[0]
            measured("a grader", lambda: os.kill(grader, signal.SIGKILL), next_step())
            server = run.pids("inference-1")[0]
            backs = run.output.count("is back")
            lost = lambda: run.output.count("is back") > backs  # noqa: E731
            measured("a server", lambda: os.kill(server, signal.SIGKILL), lost)
            (trainer,) = run.pids("trainer")
            measured("the trainer", lambda: os.kill(trainer, signal.SIGKILL), next_step())
            measured("a node", other.kill, next_step())
        finally:
            run.kill()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ("overhead", "grading", "recovery")
    parser.add_argument("--only", choices=parts, nargs="+", default=parts)
    parser.add_argument("--rounds", type=int, default=3, help="of the overhead")
    parser.add_argument("--out", type=Path, required=True, help="JSON file; what is in it of other parts stays")
    args = parser.parse_args()
    interfaces = [line.split(":")[0].strip() for line in Path("/proc/net/dev").read_text().splitlines()[2:]]
    if interfaces != ["lo"]:
        parser.error("give it a network namespace of its own: unshare --net .venv/bin/python benchmarks/cluster.py")
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh", b"lo", 1))
    folder = Path(tempfile.mkdtemp(prefix="cluster-bench-"))
    result: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    try:
        for part in args.only:
            (folder / part).mkdir()
            (folder / part / "slow_task.py").write_text(SLOW)
            measure = {"grading": grading, "recovery": recovery}
            result[part] = overhead(folder / part, args.rounds) if part == "overhead" else measure[part](folder / part)
            keep(result | {"machine": hardware()}, args.out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
