"""The server, asked by the public `openai` client and by clients that behave badly."""

from __future__ import annotations

import http.client
import json
import math
import re
import socket
import time
from collections.abc import Callable
from typing import Any

import openai
import pytest
from real_server import Served, random_model, serving, until

from hone import rng
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


def post(served: Served, path: str, body: bytes, headers: dict[str, str] | None = None) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=300)
    connection.request("POST", path, body, {"Content-Type": "application/json", **(headers or {})})
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def text(served: Served, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=300)
    connection.request("GET", path)
    return connection.getresponse().read().decode()


def test_models(served: Served) -> None:
    (model,) = served.client().models.list()
    assert (model.id, model.owned_by) == ("hone/tiny", "hone")
    parameters = ENGINE.model.num_parameters
    extra = dict(model.model_extra or {})
    assert len(extra.pop("instance")) == 32 and extra.pop("idle_seconds") > 0
    assert extra == {
        "max_model_len": 2048,
        "parameters": parameters,
        "policy_version": 0,
        "policy_path": None,
    }
    assert served.client().models.retrieve("hone/tiny").id == "hone/tiny"
    with pytest.raises(openai.NotFoundError, match="there is no model 'other' here"):
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
        assert choice.text == text_of(completion.token_ids)
        assert choice.logprobs.token_logprobs == pytest.approx(completion.logprobs, abs=1e-5)
        assert choice.finish_reason == "length"
    prompt_tokens = sum(len(ids_of(text)) for text in PROMPTS)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (prompt_tokens, 72)


def test_a_rollouts_own_key(served: Served) -> None:
    key = rng.key(5, "rollout", 3, 17, 2)
    assert key >= 2**53, "a float would not hold it"
    answer = complete(served, ids_of("Hello"), own={"key": key})
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    (expected,) = ENGINE.run([Job(tuple(ids_of("Hello")), key, 12)], params)
    assert answer.choices[0].model_extra["token_ids"] == expected.token_ids


def test_the_keys_of_a_group(served: Served) -> None:
    prompts, keys = [ids_of(text) for text in PROMPTS], [rng.key(5, "rollout", 0, d, i) for d in (8, 9) for i in (0, 1)]
    answer = complete(served, prompts, n=2, own={"key": keys})
    jobs = [Job(tuple(prompts[i // 2]), key, 12) for i, key in enumerate(keys)]
    expected = ENGINE.run(jobs, SamplingParams(max_tokens=12, ignore_eos=True))
    assert [c.model_extra["token_ids"] for c in answer.choices] == [c.token_ids for c in expected]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_prompts_are_scored_and_repeated(served: Served, temperature: float) -> None:
    prompts = [ids_of(text) for text in PROMPTS]
    scores = ENGINE.score(prompts, temperature)
    own = {"prompt_logprobs": 0}
    answer = complete(served, prompts, n=2, seed=7, logprobs=0, echo=True, temperature=temperature, own=own)
    plain = complete(served, prompts, n=2, seed=7, logprobs=0, temperature=temperature)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (sum(map(len, prompts)), 48)
    for index, (choice, without) in enumerate(zip(answer.choices, plain.choices, strict=True)):
        ids = prompts[index // 2]
        first, *rest = choice.model_extra["prompt_logprobs"]
        assert first is None and [int(token) for entry in rest for token in entry] == ids[1:]
        told = [entry["logprob"] for e in rest for entry in e.values()]
        assert told == pytest.approx(scores[index // 2], abs=1e-5)
        assert choice.text == PROMPTS[index // 2] + without.text
        assert choice.logprobs.token_logprobs == [None, *told, *without.logprobs.token_logprobs]
        assert choice.logprobs.tokens == [text_of([i]) for i in ids] + without.logprobs.tokens
        assert choice.logprobs.text_offset[: len(ids) + 1] == list(range(len(ids) + 1))
        assert choice.model_extra["token_ids"] == without.model_extra["token_ids"]


def test_a_prompt_is_scored_without_sampling(served: Served) -> None:
    steps = served.service.steps
    (choice,) = complete(served, max_tokens=0, echo=True, logprobs=0).choices
    assert choice.logprobs.token_logprobs[1:] == pytest.approx(ENGINE.score([ids_of("Hello")])[0], abs=1e-5)
    assert (choice.text, choice.model_extra["token_ids"], choice.finish_reason) == ("Hello", [], "length")
    assert served.service.steps == steps
    assert "prompt_logprobs" not in choice.model_extra


def test_a_prompts_likeliest_tokens_are_told_as_evaluation_harnesses_ask_for_them(served: Served) -> None:
    """They take a continuation for the greedy one where each of its logprobs is the largest of `top_logprobs`."""
    ids = ids_of("Hello")
    own = {"prompt_logprobs": 3}
    (choice,) = complete(served, max_tokens=1, echo=True, logprobs=2, temperature=0, own=own).choices
    told, (first, *tops) = choice.logprobs, choice.logprobs.top_logprobs
    assert first is None and len(tops) == len(ids) == len(told.tokens) - 1
    for token, logprob, top, entry in zip(
        told.tokens[1:-1], told.token_logprobs[1:-1], tops[:-1], choice.model_extra["prompt_logprobs"][1:], strict=True
    ):
        assert top[token] == logprob and len(top) in (2, 3) and max(top.values()) >= logprob
        best = [value["logprob"] for value in entry.values()][:3]
        assert best == sorted(best, reverse=True) and best[:2] == list(top.values())[:2]
    assert told.token_logprobs[-1] == max(tops[-1].values())  # sampled greedily
    scores = [dict(token.top) | {token.id: token.logprob} for token in ENGINE.score_tokens(ids, 1.0, top=10_000)]
    assert all(sum(map(math.exp, of_all.values())) == pytest.approx(1, abs=1e-4) for of_all in scores)


def test_a_stream_adds_up_to_the_whole(served: Served) -> None:
    options = {"n": 2, "seed": 3, "logprobs": 2, "temperature": 0.8, "top_p": 0.9, "max_tokens": 30}
    whole = complete(served, **options)
    texts, ids, tokens, logprobs, offsets, reasons = {}, {}, {}, {}, {}, {}
    chunks = list(complete(served, stream=True, stream_options={"include_usage": True}, **options))
    for chunk in chunks[:-1]:
        (choice,) = chunk.choices
        i = choice.index
        texts[i] = texts.get(i, "") + choice.text
        ids[i] = ids.get(i, []) + choice.model_extra["token_ids"]
        tokens[i] = tokens.get(i, []) + choice.logprobs.tokens
        logprobs[i] = logprobs.get(i, []) + choice.logprobs.token_logprobs
        offsets[i] = offsets.get(i, []) + choice.logprobs.text_offset
        reasons[i] = choice.finish_reason
    assert len(chunks) >= 3  # one or more of each sample, and the usage
    for choice in whole.choices:
        i = choice.index
        assert (texts[i], ids[i], reasons[i]) == (choice.text, choice.model_extra["token_ids"], "length")
        assert (tokens[i], offsets[i]) == (choice.logprobs.tokens, choice.logprobs.text_offset)
        assert logprobs[i] == pytest.approx(choice.logprobs.token_logprobs, abs=1e-5)
        for token, logprob, top in zip(tokens[i], logprobs[i], choice.logprobs.top_logprobs, strict=True):
            assert 2 <= len(top) <= 3 and top[token] == pytest.approx(logprob, abs=1e-5)
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage


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
    until(lambda: not served.service.engine.busy, "the rest is dropped")
    assert served.service.cancelled == cancelled  # it came to its end


def test_a_stop_token_is_kept_as_an_id_and_not_as_text(served: Served) -> None:
    full = complete(served, seed=1).choices[0].model_extra["token_ids"]
    token = full[5]
    (choice,) = complete(served, seed=1, own={"stop_token_ids": [token]}).choices
    ids = full[: full.index(token) + 1]
    assert (choice.model_extra["token_ids"], choice.text, choice.finish_reason) == (ids, text_of(ids[:-1]), "stop")


def test_chat(served: Served) -> None:
    prompt = RENDERER.prompt_ids(MESSAGES)
    parts = [MESSAGES[0], {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    for messages in (MESSAGES, parts):
        answer = served.client().chat.completions.create(
            model="hone/tiny",
            messages=messages,
            max_completion_tokens=20,
            seed=2,
            n=2,
            logprobs=True,
            top_logprobs=3,
            extra_body={"return_token_ids": True},
        )
        params = SamplingParams(max_tokens=20, n=2, seed=2, stop=RENDERER.stop_ids)
        for choice, expected in zip(answer.choices, ENGINE.generate([prompt], params)[0], strict=True):
            assert choice.model_extra["token_ids"] == expected.token_ids
            assert choice.message.content == RENDERER.decode(expected.token_ids)
            assert (choice.message.role, choice.finish_reason) == ("assistant", expected.stop_reason)
            entries = choice.logprobs.content
            assert [entry.logprob for entry in entries] == pytest.approx(expected.logprobs, abs=1e-5)
            assert {len(entry.top_logprobs) for entry in entries} == {3}
            likeliest = [entry.top_logprobs[0].logprob for entry in entries]
            assert all(a >= b.logprob for a, b in zip(likeliest, entries, strict=True))
        assert answer.usage.prompt_tokens == len(prompt)


def test_chat_streams(served: Served) -> None:
    options: dict[str, Any] = {"model": "hone/tiny", "messages": MESSAGES, "max_tokens": 20, "seed": 2}
    whole = served.client().chat.completions.create(**options).choices[0]
    chunks = [chunk.choices[0] for chunk in served.client().chat.completions.create(stream=True, **options)]
    assert chunks[0].delta.role == "assistant"
    assert "".join(chunk.delta.content or "" for chunk in chunks) == whole.message.content
    assert chunks[-1].finish_reason == whole.finish_reason


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("completions", b"", "not valid JSON"),
        ("completions", b"{", "not valid JSON"),
        ("completions", b'{"promt": "a"}', "promt is not a field of this request: did you mean prompt?"),
        ("completions", b"{}", "prompt is missing"),
        ("completions", b'{"prompt": "a", "temperature": NaN}', "NaN is not JSON"),
        ("completions", b'{"prompt": "a", "max_tokens": 0}', "max_tokens = 0 asks for nothing"),
        ("completions", b'{"prompt": "a", "echo": true, "stream": true}', "leave out stream"),
        ("completions", b'{"prompt": "", "prompt_logprobs": 0, "max_tokens": 0}', "a prompt has no tokens"),
        ("completions", b'{"prompt": "a", "logit_bias": {"5": 1}}', "logit_bias is not supported here"),
        ("completions", b'{"prompt": "a", "stop": ""}', "should have at least 1 character"),
        ("completions", b'{"prompt": "a", "key": 1, "n": 2}', "1 were sent for 2 samples"),
        ("completions", b'{"prompt": "a", "key": [1, 2], "seed": 3, "n": 2}', "goes without seed"),
        ("completions", b'{"prompt": "\\ud800"}', "not valid JSON"),
        ("completions", b'{"prompt": ' + b"[" * 10**5, "not valid JSON"),
        ("completions", b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}", "out of range"),
        ("completions", b'{"prompt": 5}', "prompt must be a text"),
        ("completions", b'{"prompt": [1, "a"]}', "prompt must be a text"),
        ("completions", b'{"prompt": [[]]}', "a prompt has no tokens"),
        ("completions", b'{"prompt": ""}', "a prompt has no tokens"),
        ("completions", b'{"prompt": [1, 99999]}', "token id 99999 is none of the model's"),
        ("completions", b'{"prompt": "a", "max_tokens": 5000}', "exceeds the model's context of 2048"),
        ("completions", b'{"prompt": ["a", ""], "stream": true}', "a prompt has no tokens"),
        ("completions", b'{"prompt": "a", "model": "gpt"}', "there is no model 'gpt' here"),
        ("chat/completions", b'{"messages": [{"content": "a"}]}', "messages.0.role is missing"),
        ("chat/completions", b'{"messages": [{"role": "user"}]}', "messages.0: it has no content"),
        ("chat/completions", b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', "no text"),
        ("chat/completions", b'{"messages": [{"role": "user", "content": "a"}], "tools": [{}]}', "is no function"),
        ("chat/completions", b'{"messages": [{"role": "user", "content": "a", "tool_calls": 5}]}', "tool_calls: Input should be a valid list"),
        ("chat/completions", b'{"messages": [{"role": "user", "content": "a"}], "top_logprobs": 2}', "needs logprobs"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_told_what_is_wrong(served: Served, path: str, body: bytes, words: str) -> None:
    status, answer = post(served, f"/v1/{path}", body)
    assert status == (404 if "no model" in words else 400)
    assert words in answer["error"]["message"]
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert served.service.running == 0


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_cancels_its_request(served: Served, monkeypatch, stream: bool) -> None:
    served.slow(monkeypatch)
    service, cancelled = served.service, served.service.cancelled
    fields = {"prompt": "Hello", "max_tokens": 1500, "n": 3, "ignore_eos": True, "stream": stream}
    body = json.dumps(fields).encode()
    head = f"{HEAD}Content-Length: {len(body)}"
    with socket.create_connection(("127.0.0.1", served.port)) as client:
        client.sendall(head.encode() + b"\r\n\r\n" + body)
        if stream:
            assert client.recv(64).startswith(b"HTTP/1.1 200")
        until(lambda: service.running == 3, "the request runs")
    until(lambda: service.running == 0 and not service.engine.busy, "the request is cancelled")
    assert service.cancelled == cancelled + 3


def test_a_pause_holds_requests_until_the_end_of_it(served: Served) -> None:
    expected = complete(served, seed=4).choices[0].text
    assert post(served, "/pause", b"") == (200, {"status": "paused", "samples": 0})
    steps = served.service.steps
    stream = complete(served, seed=4, stream=True)
    until(lambda: served.service.running == 1, "the request waits")
    assert served.service.steps == steps
    assert post(served, "/resume", b"")[0] == 200
    assert "".join(chunk.choices[0].text for chunk in stream) == expected


def test_a_step_that_fails_fails_its_requests_only(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = complete(served, seed=4).choices[0].text

    def failing():
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(served.service.engine, "step", failing)
        with pytest.raises(openai.InternalServerError, match="the server failed at this request"):
            complete(served)
        with pytest.raises(openai.APIError, match="the server failed at this request"):
            list(complete(served, stream=True))
    assert served.service.running == 0 and not served.service.engine.busy
    assert complete(served, seed=4).choices[0].text == expected


def test_health_and_metrics(served: Served) -> None:
    def metrics() -> dict[str, float]:
        connection = http.client.HTTPConnection("127.0.0.1", served.port)
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        assert response.getheader("Content-Type", "").startswith("text/plain")
        lines = response.read().decode().splitlines()
        return {name: float(value) for name, _, value in (x.rpartition(" ") for x in lines if x[0] != "#")}

    before = metrics()
    complete(served, "abcde", max_tokens=6, n=2)
    after = metrics()
    gained = {name: after[name] - before.get(name, 0) for name in after}
    assert gained["hone_prompt_tokens_total"] == 10 and gained["hone_sampled_tokens_total"] == 12
    assert after["hone_samples_in_flight"] == 0 and gained["hone_steps_total"] >= 6
    connection = http.client.HTTPConnection("127.0.0.1", served.port)
    connection.request("GET", "/health")
    health = json.loads(connection.getresponse().read())
    assert health == {"status": "ok", "model": "hone/tiny", "policy_version": 0, "paused": False, "failed_steps": 0}


def test_idle_is_the_time_without_samples_and_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as served:

        def idle(what: Callable[[], object]) -> float:
            """Idle seconds while `what` goes on."""
            before = served.service.idle_seconds
            what()
            return served.service.idle_seconds - before

        assert idle(lambda: time.sleep(0.2)) >= 0.2
        served.slow(monkeypatch)
        began = time.perf_counter()
        gained = idle(lambda: complete(served, max_tokens=60))
        assert gained <= time.perf_counter() - began - 0.295, "60 steps of 5 ms are no idle time"
        served.service.pause().result()
        assert idle(lambda: time.sleep(0.1)) == 0
        served.service.resume().result()
        assert idle(lambda: time.sleep(0.1)) > 0
        (line,) = [x for x in text(served, "/metrics").splitlines() if x.startswith("hone_idle_seconds_total ")]
        (model,) = served.client().models.list()
        assert 0.2 < float(line.split()[1]) < model.model_extra["idle_seconds"]


def test_no_weights_without_a_root(served: Served) -> None:
    status, answer = post(served, "/update_weights", b'{"path": "step_1", "version": 1}')
    assert status == 403 and "--weights-root" in answer["error"]["message"]


def test_weights_change_between_two_tokens(weights, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(weights_root=weights) as served:
        before = complete(served, seed=1).choices[0].model_extra["token_ids"]
        with monkeypatch.context() as patch:
            served.slow(patch, 0.02)  # half a minute in all, for weights that are slow to load
            stream = complete(served, seed=1, max_tokens=1500, stream=True)
            versions = list(next(stream).choices[0].model_extra["policy_versions"])
            status, answer = post(served, "/update_weights", b'{"path": "step_1", "version": 5}')
            assert (status, answer) == (200, {"status": "ok", "policy_version": 5, "previous_version": 0})
            while versions[-1] == 0:
                versions += next(stream).choices[0].model_extra["policy_versions"]
            stream.close()
        assert versions == sorted(versions) and set(versions) == {0, 5}
        after = complete(served, seed=1).choices[0].model_extra
        params = SamplingParams(max_tokens=12, seed=1, ignore_eos=True)
        ((expected,),) = Engine(random_model(seed=1)).generate([ids_of("Hello")], params)
        assert after["token_ids"] == expected.token_ids != before
        assert after["policy_versions"] == [5] * 12
        facts = next(iter(served.client().models.list())).model_extra
        assert (facts["policy_version"], facts["policy_path"]) == (5, "step_1")


def test_weights_that_are_not_taken(weights, tmp_path, tiny_model_dir) -> None:
    (weights / "link").symlink_to(tiny_model_dir)
    (weights / "empty").mkdir()
    (weights / "other").mkdir()
    for file in (weights / "step_1").iterdir():
        (weights / "other" / file.name).write_bytes(file.read_bytes())
    config = json.loads((weights / "other" / "config.json").read_text())
    (weights / "other" / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 64}))
    with serving(weights_root=weights) as served:
        for path, words in (
            ("../../etc", "is not under the weights root"),
            (str(tiny_model_dir), "is not under the weights root"),
            ("link", "is not under the weights root"),
            ("step_9", "there is no folder"),
            ("empty", "no config.json"),
            ("other", "other is another model: its max_position_embeddings is 64"),
        ):
            status, answer = post(served, "/update_weights", json.dumps({"path": path, "version": 1}).encode())
            assert (status, served.service.engine.version) == (400, 0)
            assert words in answer["error"]["message"]
        assert post(served, "/update_weights", b'{"path": "step_1"}')[1]["error"]["message"] == "version is missing"


def test_an_api_key() -> None:
    with serving(api_key="sesame") as served:
        assert next(iter(served.client("sesame").models.list())).id == "hone/tiny"
        for key in ("wrong", "sésame"):
            header = {"Authorization": f"Bearer {key}".encode().decode("latin-1")}
            for path in ("/v1/completions", "/pause", "/update_weights"):
                status, answer = post(served, path, b"{}", header)
                assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
        assert not served.service.paused
        connection = http.client.HTTPConnection("127.0.0.1", served.port)
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200
