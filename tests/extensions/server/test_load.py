"""Many clients at once, well-behaved and not, while the weights change under them."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from processes import until
from real_server import Served, serving

from .test_app import ask

CLIENTS, FINISHED, LEFT = 64, 32, 4
"""How many there are at once, and how many answers must have been heard to the end, and left, for a test of them."""
VALID: dict[str, Any] = {"prompt": "abc", "max_tokens": 3, "n": 2, "stop": ["xy"], "temperature": 0.5, "logprobs": 1}


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("seconds", [2, pytest.param(60, marks=pytest.mark.long)])
def test_streams_leavers_nonsense_and_updates(seconds: int, weights: Path) -> None:
    """64 clients for a while: a third of them leave mid-stream. Nothing breaks, nothing is left, memory stays flat."""
    with serving(weights_root=weights) as served:
        finished, left, refused, versions, memory = asyncio.run(crowd(served, seconds))
        service = served.service
        until(lambda: not service.running and not service.engine.busy, "the engine is idle")
        assert service.failures == 0 and service.alive
        assert finished >= FINISHED and left >= LEFT and refused > 0 and len(versions) > 1
        assert service.updates == max(versions)
        if len(memory) > 30:
            early, late = np.median(memory[5:15]), np.median(memory[-10:])
            assert late < early * 1.15, f"{early / 2**20:.0f} MiB became {late / 2**20:.0f}"


async def crowd(served: Served, seconds: float) -> tuple[int, int, int, set[int], list[int]]:
    """So many seconds of it, and longer where a slow machine has not heard enough by then."""
    client = openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=300)
    finished = left = refused = 0
    seen: set[int] = set()
    memory: list[int] = []
    began = time.monotonic()

    def goes_on() -> bool:
        gone = time.monotonic() - began
        return gone < seconds or (gone < seconds + 300 and not (finished >= FINISHED and left >= LEFT and refused))

    async def stream(number: int) -> None:
        nonlocal finished, left
        rng = np.random.default_rng(number)
        while goes_on():
            length, leaves = int(rng.integers(1, 40)), number % 3 == 0
            chunks = await client.completions.create(
                model="hone/tiny",
                prompt="x" * int(rng.integers(1, 30)),
                max_tokens=length,
                n=int(rng.integers(1, 3)),
                stream=True,
                extra_body={"return_token_ids": True, "ignore_eos": True},
            )
            by_index: dict[int, list[int]] = {}
            async for chunk in chunks:
                choice = chunk.choices[0]
                by_index.setdefault(choice.index, []).extend(choice.model_extra["policy_versions"])  # type: ignore[index]
                if leaves and rng.random() < 0.2:
                    await chunks.close()
                    left += 1
                    break
            else:
                finished += 1
                assert all(len(of_sample) == length for of_sample in by_index.values())
            for of_sample in by_index.values():
                assert of_sample == sorted(of_sample)
                seen.update(of_sample)

    async def update() -> None:
        version = 0
        while goes_on():
            version += 1
            body = {"path": "step_1", "version": version}
            status, _ = await asyncio.to_thread(ask, served, "/update_weights", body)
            assert status == 200
            memory.append(resident_bytes())
            await asyncio.sleep(0.5)
        seen.add(version)

    async def nonsense() -> None:
        nonlocal refused
        rng = np.random.default_rng(0)
        whole = json.dumps(VALID).encode()
        while goes_on():
            body = bytearray(whole)
            for at in rng.integers(0, len(body), 3):
                body[at] = rng.integers(0, 256)
            body = bytes(body) if rng.random() < 0.8 else json.dumps({"prompt": "x" * 2**20}).encode()
            status, answer = await asyncio.to_thread(ask, served, "/v1/completions", body)
            assert status in (200, 400), answer
            refused += status == 400
            await asyncio.sleep(0.05)

    await asyncio.gather(*(stream(number) for number in range(CLIENTS)), update(), nonsense())
    await client.close()
    return finished, left, refused, seen, memory
