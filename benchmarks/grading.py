"""What worker processes cost: graded completions per second against plain loops, and what a hostile grader costs.

    .venv/bin/python benchmarks/grading.py --out benchmarks/results/grading.json

- math: completions of math-problems, no two alike. `plain` loops grade in processes of their own, each its share, and
  know no limits; `pool` is hone's grading, with one worker and with one per core. The sides take turns, round by round.
- hostile: 1,000 completions of which 50 hang, crash, leave a process behind, allocate 8 GB or print 1 GB.
- startup: until a worker is ready, and the round trip of a question that takes no time.

Beside it stands Pebble (extra `bench`), where it is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from itertools import chain, pairwise
from pathlib import Path
from statistics import median
from typing import Any

import grading_peer
from recording import show

from hone.config.shared import GradingConfig
from hone.environments import Environment, load_environment
from hone.environments.workers import cores
from hone.grading import GraderFailure
from hone.grading.pool import Pool
from hone.runs.provenance import hardware
from hone.types import Example

HERE = Path(__file__).resolve().parent
Pairs = list[tuple[str, str]]
Side = Callable[[Pairs], tuple[float, list[float]]]
"""Answers with their golds -> seconds, and the rewards."""
BAD = ("hang", "crash", "fork", "allocate", "print")
DEADLINE = 1.0


def workload(count: int, turn: int) -> Pairs:
    """Answers and golds, equal or not, that are in no other turn: fractions and expressions by turns."""
    pairs = []
    for i in range(count):
        n = turn * count + i
        a, b = 7 * n + 3, n % 97 + 5
        wrong = n % 3 == 0
        if i % 2:
            pairs.append((rf"\frac{{{2 * a}}}{{{2 * b}}}", rf"\frac{{{a + wrong}}}{{{b}}}"))
        else:
            pairs.append((f"(x+{a})^2", f"x^2+{2 * a}x+{a * a + wrong}"))
    return pairs


class PlainLoops:
    """Processes with a loop each, which grade their share at the same time."""

    def __init__(self, count: int) -> None:
        command = [sys.executable, str(HERE / "grading_loop.py")]
        self.loops = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)
        ]

    def __call__(self, pairs: Pairs) -> tuple[float, list[float]]:
        cuts = [len(pairs) * i // len(self.loops) for i in range(len(self.loops) + 1)]
        shares = [pairs[start:end] for start, end in pairwise(cuts)]
        for loop, share in zip(self.loops, shares, strict=True):
            self._say(loop, json.dumps(share))
        for loop in self.loops:
            assert self._hear(loop) == "ready\n"
        began = time.perf_counter()
        for loop in self.loops:
            self._say(loop, "")
        rewards = [json.loads(self._hear(loop)) for loop in self.loops]
        return time.perf_counter() - began, list(chain.from_iterable(rewards))

    def close(self) -> None:
        for loop in self.loops:
            loop.communicate()

    @staticmethod
    def _say(loop: subprocess.Popen[str], line: str) -> None:
        assert loop.stdin is not None
        loop.stdin.write(line + "\n")
        loop.stdin.flush()

    @staticmethod
    def _hear(loop: subprocess.Popen[str]) -> str:
        assert loop.stdout is not None
        return loop.stdout.readline()


class HonePool:
    """hone's grading."""

    def __init__(self, workers: int) -> None:
        self.env = load_environment("math-problems")
        self.env.use_workers(GradingConfig(workers=workers))

    def __call__(self, pairs: Pairs) -> tuple[float, list[float]]:
        graded = [(self.env.example(question="?", answer=gold), rf"\boxed{{{answer}}}") for answer, gold in pairs]
        began = time.perf_counter()
        scores = self.env.grade_many(graded)
        return time.perf_counter() - began, [score.reward for score in scores]

    def close(self) -> None:
        self.env.close_workers()


class PebblePool:
    """Pebble's pool: the comparisons alone, a task each, with a deadline by the clock."""

    def __init__(self, workers: int) -> None:
        import pebble  # pyright: ignore[reportMissingImports]

        self.pool = pebble.ProcessPool(workers, context=multiprocessing.get_context("spawn"))

    def __call__(self, pairs: Pairs) -> tuple[float, list[float]]:
        began = time.perf_counter()
        futures = [self.pool.schedule(grading_peer.equal, args=[list(pair)], timeout=60) for pair in pairs]
        rewards = [future.result() for future in futures]
        return time.perf_counter() - began, rewards

    def close(self) -> None:
        self.pool.stop()
        self.pool.join()


def measure_math(count: int, rounds: int, workers: int) -> dict[str, Any]:
    kinds: dict[str, tuple[Callable[[int], Any], int]] = {
        "plain_one": (PlainLoops, 1),
        "plain_all": (PlainLoops, workers),
        "pool_one": (HonePool, 1),
        "pool_all": (HonePool, workers),
    }
    if importlib.util.find_spec("pebble"):
        kinds["pebble_all"] = (PebblePool, workers)
    with ExitStack() as stack:
        sides: dict[str, Side] = {}
        for name, (make, size) in kinds.items():
            sides[name] = side = make(size)
            stack.callback(side.close)
            side(workload(max(8, count // 10), 10_000))  # what is imported and cached at first
        rows = []
        for turn in range(rounds):
            pairs = workload(count, turn)
            order = list(sides)[turn % len(sides) :] + list(sides)[: turn % len(sides)]
            told = {name: sides[name](pairs) for name in order}
            right = told["plain_one"][1]
            assert all(rewards == right for _, rewards in told.values()) and 0 < sum(right) < count
            rows.append({name: count / told[name][0] for name in sides})
    figures = {name: median(row[name] for row in rows) for name in sides}
    result = {
        "workload": {"completions": count, "workers": workers, "milliseconds_each": 1000 / figures["plain_one"]},
        "answers_per_second": figures,
        "one_worker_vs_plain": median(row["pool_one"] / row["plain_one"] for row in rows),
        "speedup_vs_plain": median(row["pool_all"] / row["plain_all"] for row in rows),
        "rounds": len(rows),
    }
    if "pebble_all" in sides:
        result["pool_vs_pebble"] = median(row["pool_all"] / row["pebble_all"] for row in rows)
    return result


def measure_hostile(count: int, bad_each: int, workers: int, folder: Path) -> dict[str, Any]:
    """The wall time is compared with (work + bad x deadline) / workers, where the work is that of a plain loop."""
    env = load_environment("hostile-grader")
    example = env.example(question="?", info={"folder": str(folder)})
    good = [f"text {i}" for i in range(count)]
    texts = list(good)
    every = max(1, count // (bad_each * len(BAD)))
    for i in range(bad_each * len(BAD)):
        texts[i * every] = BAD[i % len(BAD)]
    env.use_workers(GradingConfig(workers=0))
    began = time.perf_counter()
    right = [score.reward for score in env.grade_many([(example, text) for text in good])]
    work = time.perf_counter() - began
    env.use_workers(GradingConfig(workers=workers, timeout=DEADLINE))
    began = time.perf_counter()
    scores = env.grade_many([(example, text) for text in texts])
    seconds = time.perf_counter() - began
    wrong = [i for i, text in enumerate(texts) if text not in BAD and scores[i].reward != right[i]]
    env.close_workers()
    bad = bad_each * len(BAD)
    return {
        "completions": count,
        "bad": bad,
        "deadline_seconds": DEADLINE,
        "workers": workers,
        "work_seconds": work,
        "wall_seconds": seconds,
        "bound_seconds": (work + bad * DEADLINE) / workers,
        "wall_vs_bound": seconds / ((work + bad * DEADLINE) / workers),
        "wrong": len(wrong),
        "outcomes": {kind: _outcomes(kind, texts, scores) for kind in BAD},
        "processes_left": sum(_alive(int(path.name)) for path in folder.iterdir()),
        "processes_forked": len(list(folder.iterdir())),
    }


def _outcomes(kind: str, texts: list[str], scores: list[Any]) -> dict[str, int]:
    found = [score.outcome.value for text, score in zip(texts, scores, strict=True) if text == kind]
    return {outcome: found.count(outcome) for outcome in sorted(set(found))}


def measure_startup(rounds: int, trips: int) -> dict[str, Any]:
    """Seconds until a first answer, of an environment and of an empty pool; microseconds of a round trip."""
    result: dict[str, Any] = {"environment_seconds": median(_first_grade() for _ in range(rounds))}
    sides: dict[str, Callable[[], Any]] = {"pool": _hone_asking}
    if importlib.util.find_spec("pebble"):
        sides["pebble"] = _pebble_asking
    for name, opened in sides.items():
        starts, seconds = [], []
        for _ in range(rounds):
            began = time.perf_counter()
            with opened() as ask:
                ask(0)
                starts.append(time.perf_counter() - began)
                began = time.perf_counter()
                for i in range(trips):
                    assert ask(i) == i
                seconds.append((time.perf_counter() - began) / trips)
        result[name] = {"start_seconds": median(starts), "round_trip_microseconds": 1e6 * median(seconds)}
    return result


def _first_grade() -> float:
    env: Environment = load_environment("hostile-grader")
    example: Example = env.example(question="?")
    began = time.perf_counter()
    env.grade(example, "text")
    seconds = time.perf_counter() - began
    env.close_workers()
    return seconds


@contextmanager
def _hone_asking() -> Iterator[Callable[[int], Any]]:
    with Pool(HERE / "grading_peer.py", [], "answering") as pool:
        yield lambda i: pool.ask_all([["itself", i]], 10, 60)[0]


@contextmanager
def _pebble_asking() -> Iterator[Callable[[int], Any]]:
    import pebble  # pyright: ignore[reportMissingImports]

    with pebble.ProcessPool(1, context=multiprocessing.get_context("spawn")) as pool:
        yield lambda i: pool.schedule(grading_peer.itself, args=[i], timeout=60).result()


def measure_traces(folder: Path) -> dict[str, Any]:
    """Of tasks that hang, with a deadline of a second: until the next is answered, and what they leave behind."""
    result: dict[str, dict[str, Any]] = {"pool": {}}
    with Pool(HERE / "grading_peer.py", [], "answering") as pool:
        pool.ask_all([["itself", 0]], 10, 60)
        for name, argument in _traces(folder, "pool"):
            began = time.perf_counter()
            (answer,) = pool.ask_all([[name, *argument]], None, DEADLINE)
            seconds = time.perf_counter() - began
            failed = isinstance(answer, GraderFailure)
            result["pool"][name] = {"failed": failed, "seconds": seconds} | _left(argument)
        (result["pool"]["memory_limit_gib"],) = pool.ask_all([["memory_limit"]], 10, 60)
    if not importlib.util.find_spec("pebble"):
        return result
    import pebble  # pyright: ignore[reportMissingImports]

    result["pebble"] = {}

    with pebble.ProcessPool(1, context=multiprocessing.get_context("spawn")) as pool:
        pool.schedule(grading_peer.itself, args=[0]).result()
        for name, argument in _traces(folder, "pebble"):
            began = time.perf_counter()
            future = pool.schedule(getattr(grading_peer, name), args=argument, timeout=DEADLINE)
            failed = future.exception() is not None
            pool.schedule(grading_peer.itself, args=[0]).result()  # when it is at work again
            seconds = time.perf_counter() - began
            result["pebble"][name] = {"failed": failed, "seconds": seconds} | _left(argument)
        result["pebble"]["memory_limit_gib"] = pool.schedule(grading_peer.memory_limit).result()
    return result


def _traces(folder: Path, side: str) -> list[tuple[str, list[Any]]]:
    return [("leave_grandchildren", [str(folder / f"{side}.pid")]), ("hear_nothing", [])]


def _left(argument: list[Any]) -> dict[str, int]:
    """How many processes a task has left, if it says which it started; ends them."""
    if not argument:
        return {}
    pid = int(Path(argument[0]).read_text())
    alive = _alive(pid)
    if alive:
        os.kill(pid, 9)
    return {"left": int(alive)}


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def run(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    workers = cores()
    result: dict[str, Any] = {}
    if "math" in args.cases:
        count, rounds = (24, 1) if args.quick else (400, args.rounds)
        result["math"] = measure_math(count, rounds, workers)
    if "hostile" in args.cases:
        count, each = (40, 1) if args.quick else (1000, 10)
        (folder / "forked").mkdir()
        result["hostile"] = measure_hostile(count, each, workers, folder / "forked")
    if "startup" in args.cases:
        result["startup"] = measure_startup(*((1, 20) if args.quick else (args.rounds, 1000)))
    if "traces" in args.cases:
        result["traces"] = measure_traces(folder)
    pebble = version("pebble") if importlib.util.find_spec("pebble") else None
    versions = {"python": sys.version.split()[0], "math-verify": version("math-verify"), "pebble": pebble}
    return result | {"versions": versions, "hardware": hardware()}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cases = ["math", "hostile", "startup", "traces"]
    parser.add_argument("--cases", nargs="+", default=cases, choices=cases)
    parser.add_argument("--rounds", type=int, default=7, help="turns of each side")
    parser.add_argument("--quick", action="store_true", help="a toy of everything: says nothing but that it runs")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args(argv)
    if not importlib.util.find_spec("pebble"):
        print("Pebble is left out: it is not installed (pip install pebble)")
    with tempfile.TemporaryDirectory() as folder:
        result = run(args, Path(folder))
    show(result, args.out)


if __name__ == "__main__":
    main()
