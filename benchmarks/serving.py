"""Throughput and latency of `inference` under 64 streaming clients: hone's engine against vLLM, same load and threads.

    .venv/bin/python benchmarks/serving.py --out benchmarks/results/serving.json

Each client (the public openai client, all in this process) streams one completion after another: a prompt of 32 token
ids, 64 new tokens, the tiny preset. The servers take turns; what comes in the first seconds of a turn does not count.
Each computes on one thread in its default precision. `client_cpu` is the share of one core that the clients themselves
took: near 1 they are the limit, not the server. vLLM needs an environment of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import openai
from recording import show

from hone import rng
from hone.model.hf import load_model, save_model
from hone.model.tokenizer import VOCAB_SIZE, save_tokenizer
from hone.runs.provenance import hardware

ROOT = Path(__file__).resolve().parents[1]
PROMPT_TOKENS, NEW_TOKENS = 32, 64
PERCENTILES = (50, 99)


@dataclass
class Seen:
    """What the clients saw between `start` and `end`, in seconds of the monotonic clock."""

    start: float
    end: float
    tokens: int = 0
    completed: int = 0
    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)

    def chunk(self, began: float, before: float | None, now: float, tokens: int) -> None:
        """Tokens that came at once; `before` is when the request's last ones came."""
        if not self.start <= now < self.end:
            return
        self.tokens += tokens
        if before is None:
            self.first.append(now - began)
        else:
            self.gaps.append(now - before)


@contextmanager
def server(folder: Path, work: Path, *flags: str) -> Iterator[str]:
    """The URL of `hone inference` on the model in `folder`, until the block is left."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    argv = ["inference", "--model.name", str(folder), "--port", str(port), "--threads", "1", *flags]
    process = subprocess.Popen([sys.executable, "-m", "hone.cli", *argv], cwd=work, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("Serving "):
                break
            print(line, end="", flush=True)
        else:
            raise SystemExit(f"{' '.join(argv)} ended with exit code {process.wait()}")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait(60)


async def one_client(client: openai.AsyncOpenAI, model: str, prompts: np.random.Generator, seen: Seen) -> None:
    """Streams completions until the end of what is counted, and leaves."""
    while (began := time.monotonic()) < seen.end:
        prompt = prompts.integers(3, VOCAB_SIZE, PROMPT_TOKENS).tolist()
        stream = await client.completions.create(
            model=model,
            prompt=prompt,
            max_tokens=NEW_TOKENS,
            temperature=1.0,
            stream=True,
            extra_body={"ignore_eos": True, "return_token_ids": True},
        )
        before, total = None, 0
        async for chunk in stream:
            ids = (chunk.choices[0].model_extra or {}).get("token_ids") if chunk.choices else None
            if ids:
                now = time.monotonic()
                seen.chunk(began, before, now, len(ids))
                before, total = now, total + len(ids)
                if now >= seen.end:
                    await stream.close()
                    return
        assert total == NEW_TOKENS, f"{total} tokens"
        seen.completed += seen.start <= time.monotonic() < seen.end


async def load(url: str, clients: int, warm: float, seconds: float) -> dict[str, float]:
    """One turn: throughput, latencies in milliseconds, and the clients' own share of a core."""
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=120) as client:
        (model,) = (await client.models.list()).data
        seen = Seen(time.monotonic() + warm, time.monotonic() + warm + seconds)
        busy = time.process_time()
        streams = (one_client(client, model.id, rng.stream(0, "bench", i), seen) for i in range(clients))
        await asyncio.gather(*streams)
        busy = time.process_time() - busy
    found = {"tokens_per_second": seen.tokens / seconds, "completed": seen.completed}
    for name, values in (("first_token", seen.first), ("between_chunks", seen.gaps)):
        for percent in PERCENTILES:
            found[f"{name}_ms_p{percent}"] = 1000 * float(np.percentile(values, percent))
    return found | {"client_cpu": busy / (warm + seconds)}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=20, help="counted seconds of a turn")
    parser.add_argument("--warm", type=float, default=3, help="seconds of a turn before that")
    parser.add_argument("--rounds", type=int, default=3, help="turns that each server takes")
    parser.add_argument("--servers", nargs="+", default=["hone", "vllm"], choices=["hone", "vllm"])
    parser.add_argument("--vllm-python", type=Path, help="the Python of vLLM's environment (default: .venv-vllm's)")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args(argv)
    python = args.vllm_python or ROOT / ".venv-vllm/bin/python"
    if "vllm" in args.servers and not python.exists():
        print(f"vLLM is left out: there is no {python} (make vllm-env makes it, or name one with --vllm-python)")
        args.servers.remove("vllm")
    flags = {"hone": [], "vllm": ["--backend", "vllm", "--vllm-python", str(python.absolute()), "--kv-gib", "0.5"]}
    with tempfile.TemporaryDirectory() as tmp, ExitStack() as ends:
        folder = Path(tmp) / "model"
        save_model(load_model("hone/tiny", seed=0), folder)
        save_tokenizer(folder)
        urls = {name: ends.enter_context(server(folder, Path(tmp), *flags[name])) for name in args.servers}
        result = measure(args, urls)
    show(result, args.out)


def measure(args: argparse.Namespace, urls: dict[str, str]) -> dict[str, Any]:
    rounds: list[dict[str, dict[str, float]]] = []
    for index in range(args.rounds):
        row = {}
        for name in list(urls)[:: -1 if index % 2 else 1]:
            row[name] = asyncio.run(load(urls[name], args.clients, args.warm, args.seconds))
            said = ", ".join(f"{key} {value:,.4g}" for key, value in row[name].items())
            print(f"round {index + 1}/{args.rounds}, {name}: {said}", flush=True)
        rounds.append({name: row[name] for name in urls})
    medians = {name: {key: median(row[name][key] for row in rounds) for key in rounds[0][name]} for name in urls}
    result: dict[str, Any] = {
        "workload": {
            "clients": args.clients,
            "prompt_tokens": PROMPT_TOKENS,
            "new_tokens": NEW_TOKENS,
            "seconds": args.seconds,
            "threads": 1,
        },
        "medians": medians,
        "rounds": rounds,
        "versions": {"torch": version("torch"), "openai": version("openai"), "python": platform.python_version()},
        "machine": hardware(),
    }
    if len(urls) == 2:
        key = "tokens_per_second"
        result["throughput_vs_vllm"] = median(row["hone"][key] / row["vllm"][key] for row in rounds)
    return result


if __name__ == "__main__":
    main()
