"""What a call of the sandbox costs, beside a plain start of the interpreter and one under bubblewrap alone.

    .venv/bin/python benchmarks/sandbox.py --out benchmarks/results/sandbox.json

The variants take turns, one call each, so that they share what else the machine does. All run `pass`: `python` is
`python -I -S -c pass`, `bubblewrap` the same interpreter in the sandbox's namespaces and file system, without the
filter, the limits, and what watches them; `sandbox` is `Sandbox.run`. Then calls per second with 1, 2, … at once, in
threads. Latencies are in milliseconds, from before the process is started until all of it is gone.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from recording import show

from hone.extensions.sandbox.bubblewrap import base_executable, executable, readable
from hone.grading import Sandbox
from hone.runs.provenance import hardware

CODE = "pass"


def python() -> None:
    """A plain start of the interpreter."""
    subprocess.run(
        [base_executable(), "-I", "-S", "-c", CODE], check=True, capture_output=True, stdin=subprocess.DEVNULL
    )


def bubblewrap() -> None:
    """The interpreter in namespaces, with the files of the sandbox."""
    shown = readable()
    words = [executable(), "--unshare-all", "--die-with-parent", "--new-session", "--setenv", "LD_LIBRARY_PATH", "/lib"]
    for source, target in shown.binds:
        words += ["--ro-bind", source, target]
    words += ["--size", str(64 << 20), "--tmpfs", "/scratch", "--remount-ro", "/", "--chdir", "/scratch"]
    command = [*words, shown.executable, "-I", "-S", "-c", CODE]
    subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL)


def in_sandbox(sandbox: Sandbox) -> None:
    ran = sandbox.run(CODE)
    assert ran.status == "ok", ran


def latencies(variants: dict[str, Callable[[], None]], calls: int) -> dict[str, dict[str, float]]:
    """Median and 95th percentile of each, in milliseconds."""
    taken: dict[str, list[float]] = {name: [] for name in variants}
    for i in range(calls + 2):
        for name, call in variants.items():
            began = time.perf_counter()
            call()
            if i >= 2:  # the first ones read files that are then in memory
                taken[name].append(1000 * (time.perf_counter() - began))
    return {name: {"median": median(ms), "p95": quantiles(ms, n=20)[-1]} for name, ms in taken.items()}


def calls_per_second(sandbox: Sandbox, at_once: int, calls: int) -> float:
    with ThreadPoolExecutor(at_once) as pool:
        began = time.perf_counter()
        list(pool.map(lambda _: in_sandbox(sandbox), range(calls)))
        return calls / (time.perf_counter() - began)


def versions() -> dict[str, str]:
    said = subprocess.run([executable(), "--version"], capture_output=True, text=True, check=True).stdout
    return {"python": platform.python_version(), "bubblewrap": said.split()[-1], "kernel": platform.release()}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=200, help="calls of each variant")
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 2], help="calls that run at the same time")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args(argv)
    sandbox = Sandbox()
    variants = {"python": python, "bubblewrap": bubblewrap, "sandbox": lambda: in_sandbox(sandbox)}
    milliseconds = latencies(variants, args.calls)
    for name, figures in milliseconds.items():
        print(f"{name}: {figures['median']:.1f} ms, 95 % within {figures['p95']:.1f} ms", flush=True)
    result: dict[str, Any] = {
        "workload": {"calls": args.calls, "root": os.geteuid() == 0},
        "milliseconds": milliseconds,
        "calls_per_second": {str(n): calls_per_second(sandbox, n, args.calls) for n in args.at_once},
        "machine": {**hardware(), **versions()},
    }
    show(result, args.out)


if __name__ == "__main__":
    main()
