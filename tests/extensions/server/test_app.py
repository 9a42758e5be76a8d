"""The server, asked by the public `openai` client."""

from __future__ import annotations

import http.client
import json
import math
import re
import socket
from typing import Any

import openai
import pytest
from processes import until
from real_server import Served, random_model, serving

from hone import rng
from hone.extensions.server.protocol import ChatRequest, parse
from hone.inference.engine import Engine
from hone.inference.types import Job, SamplingParams
from hone.model.chat import load_renderer

RENDERER = load_renderer("hone/tiny")
ENGINE = Engine(random_model())
PROMPTS = ["Hello", "abc abc"]
HEAD = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
MESSAGES: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]


def ids_of(text: str) -> list[int]:
    return RENDERER.tokenizer.encode(text).ids


def text_of(ids: list[int]) -> str:
    return RENDERER.tokenizer.decode(ids)


def complete(
    served: Served, prompt: Any = "Hello", *, stream: bool = False, own: dict[str, Any] | None = None, **fields
):
    body = {"model": "hone/tiny", "prompt": prompt, "max_tokens": 12, **fields}
    body["extra_body"] = {"return_token_ids": True, "ignore_eos": True, **(own or {})}
    return served.client().completions.create(stream=stream, **body)


def ask(served: Served, path: str, body: Any = b"", method: str = "POST", **headers: str) -> tuple[int, Any]:
    """Status and answer; a body that is not bytes goes as JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=300)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request(method, path, content, {"Content-Type": "application/json", **headers})
    response = connection.getresponse()
    status, text = response.status, response.read()
    connection.close()
    return status, text.decode() if path == "/metrics" else json.loads(text)


def test_models(served: Served) -> None:
    (model,) = served.client().models.list()
    assert (model.id, model.owned_by) == ("hone/tiny", "hone")
    extra = dict(model.model_extra or {})
    assert len(extra.pop("instance")) == 32
    facts = {"max_model_len": 2048, "policy_version": 0, "policy_path": None}
    assert extra == facts | {"parameters": ENGINE.model.num_parameters}
    assert served.client().models.retrieve("hone/tiny").id == "hone/tiny"
    with pytest.raises(openai.NotFoundError, match="there is no model 'other': this"):
        served.client().models.retrieve("other")


@pytest.mark.parametrize("as_ids", [False, True])
def test_a_seed_gives_what_the_engine_gives(served: Served, as_ids: bool) -> None:
    prompts = [ids_of(text) for text in PROMPTS] if as_ids else PROMPTS
    answer = complete(served, prompts, n=3, seed=7, logprobs=0)
    params = SamplingParams(max_tokens=12, n=3, seed=7, ignore_eos=True)
    expected = [c for group in ENGINE.generate([ids_of(text) for text in PROMPTS], params) for c in group]
    assert [choice.index for choice in answer.choices] == list(range(6))
    for index, (choice, completion) in enumerate(zip(answer.choices, expected, strict=True)):
        assert choice.model_extra["token_ids"] == completion.token_ids
        assert choice.model_extra["prompt_token_ids"] == ids_of(PROMPTS[index // 3])
        assert choice.model_extra["policy_versions"] == [0] * 12
        assert (choice.text, choice.finish_reason) == (text_of(completion.token_ids), "length")
        assert choice.logprobs.token_logprobs == pytest.approx(completion.logprobs, abs=1e-5)
    prompt_tokens = sum(len(ids_of(text)) for text in PROMPTS)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (prompt_tokens, 72)


def test_the_keys_of_a_group(served: Served) -> None:
    prompts, keys = [ids_of(text) for text in PROMPTS], [rng.key(5, "rollout", 0, d, i) for d in (8, 9) for i in (0, 1)]
    assert max(keys) >= 2**53, "a float would not hold it"
    answer = complete(served, prompts, n=2, own={"key": keys})
    jobs = [Job(tuple(prompts[i // 2]), key, 12) for i, key in enumerate(keys)]
    expected = ENGINE.run(jobs, SamplingParams(max_tokens=12, ignore_eos=True))
    assert [c.model_extra["token_ids"] for c in answer.choices] == [c.token_ids for c in expected]
    (alone,) = complete(served, prompts[0], own={"key": keys[0]}).choices
    assert alone.model_extra["token_ids"] == expected[0].token_ids


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_prompts_are_scored_and_repeated(served: Served, temperature: float) -> None:
    prompts = [ids_of(text) for text in PROMPTS]
    scores = ENGINE.score(prompts, temperature)
    fields = {"n": 2, "seed": 7, "logprobs": 0, "temperature": temperature}
    answer = complete(served, prompts, echo=True, own={"prompt_logprobs": 0}, **fields)
    plain = complete(served, prompts, **fields)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (sum(map(len, prompts)), 48)
    for index, (choice, without) in enumerate(zip(answer.choices, plain.choices, strict=True)):
        ids = prompts[index // 2]
        first, *rest = choice.model_extra["prompt_logprobs"]
        assert first is None and [int(token) for entry in rest for token in entry] == ids[1:]
        own = [entry["logprob"] for e in rest for entry in e.values()]
        assert own == pytest.approx(scores[index // 2], abs=1e-5)
        assert choice.text == PROMPTS[index // 2] + without.text
        assert choice.logprobs.token_logprobs == [None, *own, *without.logprobs.token_logprobs]
        assert choice.logprobs.tokens == [text_of([i]) for i in ids] + without.logprobs.tokens
        assert choice.logprobs.text_offset[: len(ids) + 1] == list(range(len(ids) + 1))
        assert choice.model_extra["token_ids"] == without.model_extra["token_ids"]


def test_a_prompts_likeliest_tokens_as_evaluation_harnesses_ask_for_them(served: Served) -> None:
    """They take a continuation for the greedy one where each of its logprobs is the largest of `top_logprobs`."""
    ids, own = ids_of("Hello"), {"prompt_logprobs": 3}
    (choice,) = complete(served, max_tokens=1, echo=True, logprobs=2, temperature=0, own=own).choices
    found, (first, *tops) = choice.logprobs, choice.logprobs.top_logprobs
    assert first is None and len(tops) == len(ids) == len(found.tokens) - 1
    rows = zip(found.tokens[1:-1], found.token_logprobs[1:-1], tops[:-1], strict=True)
    for (token, logprob, top), entry in zip(rows, choice.model_extra["prompt_logprobs"][1:], strict=True):
        assert top[token] == logprob and len(top) in (2, 3) and max(top.values()) >= logprob
        best = [value["logprob"] for value in entry.values()][:3]
        assert best == sorted(best, reverse=True) and best[:2] == list(top.values())[:2]
    assert found.token_logprobs[-1] == max(tops[-1].values())  # sampled greedily
    scores = [dict(token.top) | {token.id: token.logprob} for token in ENGINE.score_tokens(ids, 1.0, top=10_000)]
    assert all(sum(map(math.exp, of_all.values())) == pytest.approx(1, abs=1e-4) for of_all in scores)


def test_a_stream_adds_up_to_the_whole(served: Served) -> None:
    options = {"n": 2, "seed": 3, "logprobs": 2, "temperature": 0.8, "top_p": 0.9, "max_tokens": 30}
    whole = complete(served, **options)
    *chunks, last = complete(served, stream=True, stream_options={"include_usage": True}, **options)
    assert last.choices == [] and last.usage == whole.usage
    for choice in whole.choices:
        parts = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == choice.index]
        assert "".join(part.text for part in parts) == choice.text
        ids = [token for part in parts for token in part.model_extra["token_ids"]]
        assert ids == choice.model_extra["token_ids"]
        assert [part.finish_reason for part in parts] == [None] * (len(parts) - 1) + ["length"]
        for name in ("tokens", "text_offset"):
            assert [x for part in parts for x in getattr(part.logprobs, name)] == getattr(choice.logprobs, name)
        logprobs = [x for part in parts for x in part.logprobs.token_logprobs]
        assert logprobs == pytest.approx(choice.logprobs.token_logprobs, abs=1e-5)
        for token, logprob, top in zip(choice.logprobs.tokens, logprobs, choice.logprobs.top_logprobs, strict=True):
            assert 2 <= len(top) <= 3 and top[token] == pytest.approx(logprob, abs=1e-5)


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_sample_and_is_not_shown(served: Served, stream: bool) -> None:
    full = complete(served, seed=1, max_tokens=40).choices[0]
    found = re.compile("[!-~]{2}").search(full.text, 8)
    assert found is not None
    stop, at = found[0], full.text.index(found[0])
    cancelled = served.service.cancelled
    answer = complete(served, seed=1, max_tokens=40, stop=["never", stop], stream=stream)
    choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
    assert "".join(choice.text for choice in choices) == full.text[:at]
    assert (choices[-1].finish_reason, choices[-1].model_extra["stop_reason"]) == ("stop", stop)
    ids = [token for choice in choices for token in choice.model_extra["token_ids"]]
    assert ids == full.model_extra["token_ids"][: len(ids)]
    assert stop in text_of(ids) and stop not in text_of(ids[:-1])
    assert served.service.cancelled == cancelled  # it came to its end


def test_chat(served: Served) -> None:
    prompt = RENDERER.prompt_ids(MESSAGES)
    parts = [MESSAGES[0], {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    options: Any = {"model": "hone/tiny", "seed": 2, "n": 2, "extra_body": {"return_token_ids": True}}
    expected = ENGINE.generate([prompt], SamplingParams(max_tokens=20, n=2, seed=2, stop=RENDERER.stop_ids))[0]
    for messages in (MESSAGES, parts):
        answer = served.client().chat.completions.create(
            messages=messages, max_completion_tokens=20, logprobs=True, top_logprobs=3, **options
        )
        for choice, completion in zip(answer.choices, expected, strict=True):
            assert choice.model_extra["token_ids"] == completion.token_ids
            assert choice.message.content == RENDERER.decode(completion.token_ids)
            assert (choice.message.role, choice.finish_reason) == ("assistant", completion.stop_reason)
            entries = choice.logprobs.content
            assert [entry.logprob for entry in entries] == pytest.approx(completion.logprobs, abs=1e-5)
            assert all(len(e.top_logprobs) == 3 and e.top_logprobs[0].logprob >= e.logprob for e in entries)
        assert answer.usage.prompt_tokens == len(prompt)
    stream = served.client().chat.completions.create(messages=MESSAGES, max_tokens=20, stream=True, **options)
    chunks = [chunk.choices[0] for chunk in stream if chunk.choices[0].index == 0]
    assert chunks[0].delta.role == "assistant" and chunks[-1].finish_reason == expected[0].stop_reason
    assert "".join(chunk.delta.content or "" for chunk in chunks) == RENDERER.decode(expected[0].token_ids)


def test_an_assistants_message_without_content_is_an_empty_one() -> None:
    body = parse(ChatRequest, json.dumps({"messages": [*MESSAGES, {"role": "assistant"}, MESSAGES[1]]}).encode())
    assert body.messages[2].for_template() == {"role": "assistant", "content": ""}


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_cancels_its_request(served: Served, monkeypatch, stream: bool) -> None:
    served.slow(monkeypatch)
    service, cancelled = served.service, served.service.cancelled
    fields = {"prompt": "Hello", "max_tokens": 1500, "n": 3, "ignore_eos": True, "stream": stream}
    body = json.dumps(fields).encode()
    with socket.create_connection(("127.0.0.1", served.port)) as client:
        client.sendall(f"{HEAD}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        if stream:
            assert client.recv(64).startswith(b"HTTP/1.1 200")
        until(lambda: service.running == 3, "the request runs")
    until(lambda: service.running == 0 and not service.engine.busy, "the request is cancelled")
    assert service.cancelled == cancelled + 3


def test_health_and_metrics(served: Served) -> None:
    def metrics() -> dict[str, float]:
        lines = ask(served, "/metrics", method="GET")[1].splitlines()
        return {name: float(value) for name, _, value in (x.rpartition(" ") for x in lines if x[0] != "#")}

    before = metrics()
    complete(served, "abcde", max_tokens=6, n=2)
    after = metrics()
    gained = {name: after[name] - before[name] for name in after}
    assert gained["hone_prompt_tokens_total"] == 10 and gained["hone_sampled_tokens_total"] == 12
    assert after["hone_samples_in_flight"] == 0 and gained["hone_steps_total"] >= 6
    health = {"status": "ok", "model": "hone/tiny", "policy_version": 0, "failed_steps": 0}
    assert ask(served, "/health", method="GET") == (200, health)


def test_an_api_key() -> None:
    with serving(api_key="sesame") as served:
        assert next(iter(served.client("sesame").models.list())).id == "hone/tiny"
        for key in ("wrong", "sésame"):
            header = f"Bearer {key}".encode().decode("latin-1")
            for path in ("/v1/completions", "/update_weights"):
                status, answer = ask(served, path, b"{}", Authorization=header)
                assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
        assert ask(served, "/health", method="GET")[0] == 200
