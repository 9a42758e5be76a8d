"""Many clients at once, some of whom leave mid-stream, while the weights change: memory stays flat."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import openai
import pytest
from processes import until
from real_server import serving

from .test_app import ask


@pytest.mark.parametrize("rounds", [6, pytest.param(40, marks=pytest.mark.long)])
def test_streams_leavers_and_updates(rounds: int, weights: Path) -> None:
    with serving(weights_root=weights) as served:

        async def stream(client: openai.AsyncOpenAI, number: int) -> set[int]:
            """The versions that one client saw; every third leaves after the first chunk."""
            length, versions = 5 + number % 40, []
            chunks = await client.completions.create(
                model="hone/tiny",
                prompt="x" * (1 + number % 30),
                max_tokens=length,
                stream=True,
                extra_body={"return_token_ids": True, "ignore_eos": True},
            )
            async for chunk in chunks:
                versions += chunk.choices[0].model_extra["policy_versions"]  # type: ignore[index]
                if number % 3 == 0:
                    await chunks.close()
                    break
            assert versions == sorted(versions) and (number % 3 == 0 or len(versions) == length)
            return set(versions)

        async def crowd() -> tuple[set[int], list[int]]:
            seen, memory = set(), []
            async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
                for version in range(1, rounds + 1):
                    body = {"path": "step_1", "version": version}
                    update = asyncio.to_thread(ask, served, "/update_weights", body)
                    (status, _), *found = await asyncio.gather(update, *(stream(client, n) for n in range(64)))
                    assert status == 200
                    seen.update(*found)
                    resident = int(Path("/proc/self/statm").read_text().split()[1])
                    memory.append(resident * os.sysconf("SC_PAGE_SIZE"))
            return seen, memory

        seen, memory = asyncio.run(crowd())
        until(lambda: not served.service.running and not served.service.engine.busy, "the engine is idle")
        assert served.service.failures == 0 and served.service.alive and served.service.updates == rounds
        assert len(seen) > 1 and memory[-1] < memory[rounds // 2] * 1.15
