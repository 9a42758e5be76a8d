"""`POST /inference/v1/generate`: token ids in; ids, logprobs and versions out, as vLLM's."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest
from real_server import Served, random_model
from renderers.client import generate

from hone import rng
from hone.inference.engine import Engine
from hone.inference.types import Job, SamplingParams

from .test_app import MESSAGES, RENDERER, ask

PATH = "/inference/v1/generate"
PROMPT = RENDERER.prompt_ids(MESSAGES)
CONTEXT = random_model().config.max_position_embeddings


def body(**params: Any) -> dict[str, Any]:
    return {"token_ids": PROMPT, "sampling_params": {"max_tokens": 8, "ignore_eos": True, **params}}


def test_ids_and_logprobs_are_the_engines(served: Served) -> None:
    params = SamplingParams(8, temperature=0.7, n=3, seed=5, ignore_eos=True)
    expected = Engine(random_model()).generate([PROMPT], params)[0]
    status, answer = ask(served, PATH, body(temperature=0.7, n=3, seed=5, logprobs=0) | {"request_id": "mine"})
    assert status == 200 and answer["request_id"] == "mine"
    assert answer["usage"] == {"prompt_tokens": len(PROMPT), "completion_tokens": 24, "total_tokens": len(PROMPT) + 24}
    for i, (choice, completion) in enumerate(zip(answer["choices"], expected, strict=True)):
        assert choice["index"] == i and choice["token_ids"] == completion.token_ids
        content = choice["logprobs"]["content"]
        assert [entry["token"] for entry in content] == [f"token_id:{token}" for token in completion.token_ids]
        assert [entry["logprob"] for entry in content] == pytest.approx(completion.logprobs, abs=1e-5)
        assert choice["policy_versions"] == [0] * 8 and choice["finish_reason"] == "length"


def test_a_rollouts_key_gives_its_tokens_and_streaming_gives_the_same(served: Served) -> None:
    key = rng.key(0, "rollout", 3, 7, 1)
    (expected,) = Engine(random_model()).run([Job(tuple(PROMPT), key, 8)], SamplingParams(ignore_eos=True))
    assert ask(served, PATH, body(key=key))[1]["choices"][0]["token_ids"] == expected.token_ids

    with httpx.stream("POST", f"{served.url}{PATH}", json=body(key=key) | {"stream": True}, timeout=300) as answer:
        events = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {")]
    assert [token for event in events for token in event["choices"][0]["token_ids"]] == expected.token_ids
    assert events[-1]["choices"][0]["finish_reason"] == "length"


def test_without_max_tokens_a_sample_fills_the_context(served: Served) -> None:
    ids = (PROMPT * CONTEXT)[: CONTEXT - 2]
    status, answer = ask(served, PATH, {"token_ids": ids, "sampling_params": {"ignore_eos": True}})
    assert status == 200 and len(answer["choices"][0]["token_ids"]) == 2


def test_the_client_of_renderers_works_unchanged(served: Served) -> None:
    parsed = SimpleNamespace(content="", reasoning_content=None, tool_calls=[], reasoning_complete=None)
    renderer: Any = SimpleNamespace(
        get_stop_token_ids=lambda: [*RENDERER.stop_ids], parse_response=lambda *_, **__: parsed
    )

    async def ask_it() -> dict[str, Any]:
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
            params = {"max_tokens": 6, "seed": 2, "temperature": 1.0}
            return await generate(
                client=client, renderer=renderer, messages=[], model="hone/tiny", prompt_ids=PROMPT,
                sampling_params=params, cache_salt="3", priority=0,
            )  # fmt: skip

    answer = asyncio.run(ask_it())
    params = SamplingParams(6, seed=2, stop=RENDERER.stop_ids)
    (expected,) = Engine(random_model()).generate([PROMPT], params)[0]
    assert answer["completion_ids"] == expected.token_ids and answer["finish_reason"] == expected.stop_reason
    assert answer["completion_logprobs"] == pytest.approx(expected.logprobs, abs=1e-5)


def test_what_is_out_of_bounds_is_refused_with_its_name(served: Served) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        *(({"token_ids": [wrong]}, "token_ids.0") for wrong in (-1, 2**31, 2**70, 1.5, True, "1", None, [1])),
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": [2**30]}, "token id 1073741824 is not in the vocabulary"),
        ({"token_ids": [1] * CONTEXT}, "shorten it"),
        ({"sampling_params": {"max_tokens": 2**31 - 1}}, "exceeds the model's"),
        ({"sampling_params": {"repetition_penalty": 1.2}}, "repetition_penalty is not supported here"),
    ]
    for change, words in refused:
        status, answer = ask(served, PATH, body() | change)
        assert status == 400 and words in str(answer["error"]), (change, answer)
        assert served.service.running == 0 and not served.service.engine.busy
