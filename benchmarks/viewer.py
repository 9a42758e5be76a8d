"""How fast `hone view` shows a run of 1,000 steps x 512 completions, and how much memory it takes.

    .venv/bin/python benchmarks/viewer.py --out benchmarks/results/viewer.json

`viewer_run.py` makes the run (three minutes; with `--run DIR` it is made there once, and used again). Each round starts
the server as a process of its own, on one thread but for DuckDB, which has two, and asks for its pages one after
another. `launch` is from the start of the process to its first page; all other pages are asked for the first time in
that process, except where `again` says so. Memory is the most that was resident (VmHWM). What is read lies in the page
cache, as after a run: a round before the others reads it, whose slowest answers are kept as `cold_seconds`.

Beside it, in the same rounds: what it takes to import the libraries, and to count the same words by DuckDB alone.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import quote

import httpx
import viewer_run
from recording import show
from viewer_run import ABSENT, COMMON, PHRASE, RARE

from hone.runs import Run
from hone.runs.provenance import hardware

PLACES = 5
"""Steps, and samples, that are looked at in a round."""
SEARCHES = {"rare": RARE, "common": COMMON, "phrase": f'"{PHRASE}"', "absent": ABSENT, "regex": "/rem.inder is 7[0-9]/"}
FILTERS = {
    "wrong": {"outcome": "wrong"},
    "long": {"length_min": "800"},
    "wrong_with_word": {"outcome": "wrong", "q": COMMON},
}
RAW = """
import sys, duckdb
connection = duckdb.connect(config={"threads": 2, "memory_limit": "200MB"})
connection.execute("SET enable_progress_bar = false")
query = "SELECT count(*) FROM read_parquet(?) WHERE contains(lower(text), ?)"
print(connection.execute(query, sys.argv[1:]).fetchone()[0])
"""
LIMIT = 60.0
"""Seconds that an answer may take."""


class Server:
    """`hone view` of a run, as a process."""

    def __init__(self, run: Path, environment: dict[str, str]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        argv = [sys.executable, "-m", "hone.cli", "view", str(run), "--port", str(port)]
        self.began = time.perf_counter()
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith("Showing "):
            raise SystemExit(f"{' '.join(argv)} said {line!r}, and ended with exit code {self.process.wait()}")
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=LIMIT)

    def get(self, path: str) -> tuple[float, httpx.Response]:
        """Seconds, and the answer, which must be a page."""
        began = time.perf_counter()
        answer = self.client.get(path)
        seconds = time.perf_counter() - began
        if answer.status_code != 200:
            raise SystemExit(f"{path} was answered {answer.status_code}: {answer.text[:500]}")
        return seconds, answer

    @property
    def peak_bytes(self) -> int:
        """The most that was resident."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(status.partition("VmHWM:")[2].split()[0])

    def close(self) -> None:
        self.client.close()
        self.process.terminate()
        self.process.wait(30)


@contextmanager
def serving(run: Path, environment: dict[str, str]) -> Iterator[Server]:
    server = Server(run, environment)
    try:
        yield server
    finally:
        server.close()


def pages(slug: str, steps: int, completions: int, turn: int) -> list[tuple[str, str]]:
    """(name, path) of what a round asks for, in order; the places differ from round to round."""
    base = f"/run/{quote(slug)}/"
    at = [(steps * (2 * place + 1) // (2 * PLACES) + turn) % steps for place in range(PLACES)]
    found = [("run", base), ("run_again", base), ("curves", f"/curves/?runs={quote(slug)}")]
    found += [("step", f"{base}step/{step}/") for step in at]
    found += [("sample", f"{base}sample/{step}/{(97 * step + turn) % completions}/") for step in at]
    found += [(f"search_{name}", f"{base}search/?q={quote(words)}") for name, words in SEARCHES.items()]
    found += [(f"filter_{name}", f"{base}search/?{httpx.QueryParams(given)}") for name, given in FILTERS.items()]
    return found


def measured(run: Path, turn: int, environment: dict[str, str]) -> dict[str, Any]:
    """A round: seconds by page, how many completions each search has found, bytes of pages, and peak memory."""
    facts = Run(run)
    steps, completions = len(facts.rollout_steps()), facts.rollouts(0, ["step"]).num_rows
    seconds: dict[str, list[float]] = {}
    sizes: dict[str, int] = {}
    hits: dict[str, int] = {}
    with serving(run, environment) as server:
        first, _ = server.get("/")
        seconds["first_page"], seconds["launch"] = [first], [time.perf_counter() - server.began]
        seconds["first_page_again"] = [server.get("/")[0] for _ in range(PLACES)]
        memory = {"start": server.peak_bytes}
        for name, path in pages(run.resolve().name, steps, completions, turn):
            took, answer = server.get(path)
            seconds.setdefault(name, []).append(took)
            sizes[name] = max(sizes.get(name, 0), len(answer.content))
            if name.startswith("search_"):
                hits[name.removeprefix("search_")] = hits_of(answer.text)
                memory["searched"] = server.peak_bytes
        memory["end"] = server.peak_bytes
    return {"seconds": seconds, "page_bytes": sizes, "hits": hits, "peak_memory_bytes": memory}


def hits_of(page: str) -> int:
    """The number of completions that a page of results says it found."""
    found = re.search(r"<b>([\d,]+)</b> completions? of ", page)
    assert found is not None, "the page does not say how many it found"
    return int(found[1].replace(",", ""))


def baseline(run: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Seconds of what can't be saved: starting Python with the libraries, and one reading of all texts."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import duckdb, pyarrow, fastapi, uvicorn"], check=True, env=environment)
    found: dict[str, Any] = {"imports": time.perf_counter() - began, "hits": {}}
    for name, word in (("rare", RARE), ("common", COMMON), ("phrase", PHRASE)):
        began = time.perf_counter()
        words = [sys.executable, "-c", RAW, str(run / "rollouts" / "*.parquet"), word]
        said = subprocess.run(words, check=True, env=environment, capture_output=True, text=True).stdout
        found[f"duckdb_{name}"], found["hits"][name] = time.perf_counter() - began, int(said)
    return found


def spread(values: list[float]) -> dict[str, float]:
    return {"median": median(values), "least": min(values), "most": max(values)}


def measure(run: Path, rounds: int) -> dict[str, Any]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    seen, raw = [], []
    cold = {name: max(values) for name, values in measured(run, rounds, environment)["seconds"].items()}
    for turn in range(rounds):
        raw.append(baseline(run, environment))
        seen.append(measured(run, turn, environment))
        brief = ", ".join(f"{name} {max(values):.3f}" for name, values in seen[-1]["seconds"].items())
        print(f"round {turn + 1}/{rounds}, the slowest of each, in seconds: {brief}", flush=True)
        for name, count in raw[-1]["hits"].items():
            assert seen[-1]["hits"][name] == count, f"{name}: {seen[-1]['hits'][name]} found, DuckDB has {count}"
    names = seen[0]["seconds"]
    peaks = seen[0]["peak_memory_bytes"]
    return {
        "rounds": rounds,
        "seconds": {name: spread([value for row in seen for value in row["seconds"][name]]) for name in names},
        "cold_seconds": cold,
        "page_bytes": {name: max(row["page_bytes"][name] for row in seen) for name in seen[0]["page_bytes"]},
        "hits": seen[0]["hits"],
        "peak_memory_bytes": {name: max(row["peak_memory_bytes"][name] for row in seen) for name in peaks},
        "baseline_seconds": {name: spread([row[name] for row in raw]) for name in raw[0] if name != "hits"},
    }


def workload(run: Path) -> dict[str, Any]:
    """What there is to show."""
    facts = Run(run)
    steps = facts.rollout_steps()
    sizes = {name: sum(file.stat().st_size for file in (run / name).glob("*")) for name in ("rollouts", "tokens")}
    return {
        "steps": len(steps),
        "completions": facts.rollouts(steps[0], ["step"]).num_rows,
        "tokens": max(filter(None, facts.metrics()["tokens/total"].to_pylist())),
        "characters_of_the_last_step": sum(map(len, facts.rollouts(steps[-1], ["text"])["text"].to_pylist())),
        "bytes": sizes,
        "threads": {"openmp": 1, "duckdb": 2},
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="where the run is, or is to be made (default: a temporary folder)")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--completions", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as work:
        run = args.run or Path(work) / "run"
        if not (run / "run.json").exists():
            viewer_run.make(run, args.steps, args.completions)
        result = {"workload": workload(run)} | measure(run, args.rounds)
    names = ("duckdb", "pyarrow", "fastapi", "jinja2")
    result["versions"] = {name: version(name) for name in names} | {"python": platform.python_version()}
    result["machine"] = hardware()
    show(result, args.out)


if __name__ == "__main__":
    main()
