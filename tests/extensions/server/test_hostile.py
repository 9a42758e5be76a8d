"""Nothing that a client sends keeps the server from answering the next request as before, and says what is wrong."""

from __future__ import annotations

import http.client
import socket
from typing import Any

import pytest
import torch
from real_server import Served, random_model, serving

from hone.model.hf import save_model

from .test_app import HEAD, ask

PROBE = {"prompt": "Hello", "max_tokens": 6, "temperature": 0, "return_token_ids": True, "ignore_eos": True}
DEEP = b"[" * 400 + b"]" * 400
USER = {"role": "user", "content": "a"}


def probe(served: Served) -> list[int]:
    status, answer = ask(served, "/v1/completions", PROBE)
    assert status == 200, answer
    return answer["choices"][0]["token_ids"]


def health(served: Served) -> tuple[int, dict[str, Any]]:
    return ask(served, "/health", method="GET")


BEYOND: list[tuple[str, Any]] = [
    ("n", 4097), ("n", 0), ("n", 2**70), ("seed", 2**64), ("seed", -(2**63) - 1), ("temperature", 1e300),
    ("top_k", 2**31), ("top_k", -2), ("min_p", 1.5), ("top_p", 0), ("max_tokens", 2**70), ("logprobs", 21),
    ("prompt_logprobs", 2**70), ("stop_token_ids", [2**70]), ("stop_token_ids", [-1]), ("stop_token_ids", [2**30]),
    ("stop_token_ids", [1] * 257), ("stop", ["a"] * 33), ("stop", "a" * 257), ("stop", [5]), ("key", [2**64]),
    ("key", [1] * 4097), ("user", "u" * 257), ("model", "m" * 257), ("best_of", 2**70), ("prompt", ["a"] * 4097),
    ("prompt", [2**70]), ("metadata", [1]), ("frequency_penalty", 1e9), ("logit_bias", {"1": 1}), ("x" * 10**5, 1),
]  # fmt: skip


def test_what_is_out_of_bounds_is_refused_before_the_engine_sees_it(served: Served) -> None:
    for field, value in BEYOND:
        status, answer = ask(served, "/v1/completions", PROBE | {field: value})
        assert status == 400 and len(answer["error"]["message"]) < 1000, field
        assert served.service.running == 0 and not served.service.engine.busy


def test_bounds_leave_what_clients_send(served: Served) -> None:
    fields = {"stop_token_ids": list(range(256)), "stop": ["z" * 256] * 32, "seed": 2**64 - 1, "temperature": 1000}
    off = {"frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "suffix": "", "best_of": 1, "top_p": None}
    assert ask(served, "/v1/completions", PROBE | fields | off)[0] == 200
    message = {"role": "assistant", "content": "a", "refusal": None, "annotations": [], "function_call": None}
    messages = [{"role": "developer", "content": "a"}, USER | {"name": "Bo"}, message, USER]
    body = {"messages": messages, "max_tokens": 1, "response_format": {"type": "text"}, "tool_choice": "auto"}
    assert ask(served, "/v1/chat/completions", body)[0] == 200
    for temperature in (1e-320, 1e-38, 1e-6):  # too small to divide by: greedy
        answer = ask(served, "/v1/completions", PROBE | {"temperature": temperature})[1]
        assert answer["choices"][0]["token_ids"] == probe(served)


COMPLETIONS: list[tuple[Any, str]] = [
    (b"{", "not valid JSON"),
    (b"\xfe\xff", "not valid JSON"),
    (b'{"prompt": "\\ud800"}', "not valid JSON"),
    (b'{"prompt": ' + b"[" * 10**5, "not valid JSON"),
    (b'{"prompt": "a", "prompt": "b"}', "the key 'prompt' is there twice"),
    (b'{"prompt": "a", "stream_options": {"include_usage": true, "include_usage": false}}', "twice"),
    (b'{"prompt": "a", "temperature": NaN}', "NaN is not JSON"),
    (b'{"prompt": "a", "temperature": 1e999}', "too large"),
    (b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}", "out of range"),
    ({"prompt": "a", "stream_options": {"stop": 1}}, "stream_options.stop is not a field of this request: leave"),
    ({"promt": "a"}, "promt is not a field of this request: did you mean prompt?"),
    ({}, "prompt is missing"),
    ({"prompt": "a", "max_tokens": 0}, "max_tokens = 0 asks for no token"),
    ({"prompt": "a", "echo": True, "stream": True}, "leave out stream"),
    ({"prompt": "", "prompt_logprobs": 0, "max_tokens": 0}, "a prompt has no tokens"),
    ({"prompt": "a", "logit_bias": {"5": 1}}, "logit_bias is not supported here"),
    ({"prompt": "a", "stop": ""}, "at least 1 character"),
    ({"prompt": "a", "key": 1, "n": 2}, "1 were sent for 2 samples"),
    ({"prompt": "a", "key": [1, 2], "seed": 3, "n": 2}, "and no seed"),
    ({"prompt": 5}, "prompt must be a text"),
    ({"prompt": [1, "a"]}, "prompt must be a text"),
    ({"prompt": [[]]}, "a prompt has no tokens"),
    ({"prompt": ["a", ""], "stream": True}, "a prompt has no tokens"),
    ({"prompt": [1, 99999]}, "token id 99999 is not in the vocabulary"),
    ({"prompt": "a", "max_tokens": 5000}, "exceeds the model's context of 2048"),
    ({"prompt": "a", "model": "gpt"}, "there is no model 'gpt': this server"),
]
CHATS: list[tuple[Any, str]] = [
    ({"messages": [{"content": "a"}]}, "messages.0.role is missing"),
    ({"messages": [{"role": "user"}]}, "messages.0: the message has no content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "only text is supported"),
    ({"messages": [USER | {"role": "wizard"}]}, "messages.0.role: Input should be 'system'"),
    ({"messages": [USER | {"role": ["user"]}]}, "messages.0.role: Input should be 'system'"),
    ({"messages": [USER | {"magic": 1}]}, "magic is not supported here"),
    ({"messages": [USER | {"name": 5}]}, "messages.0.name: Input should be a valid string"),
    ({"messages": [USER | {"tool_calls": 5}]}, "messages.0.tool_calls: Input should be a valid list"),
    ({"messages": [USER], "tools": [{"type": "retrieval"}]}, "tools[0] is no function"),
    ({"messages": [USER], "tool_choice": "required"}, "tool_choice is not supported here"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]}, "tool_calls.0.function is missing"),
    ({"messages": [USER], "top_logprobs": 2}, "needs logprobs"),
    (b'{"messages": [{"role": "user", "content": ' + DEEP + b"}]}", "only text is supported"),
    (b'{"messages": [{"role": "user", "content": "a"}], "tools": ' + DEEP + b"}", "is no function"),
]


def test_a_wrong_request_gets_the_reason(served: Served) -> None:
    for path, table in (("completions", COMPLETIONS), ("chat/completions", CHATS)):
        for body, words in table:
            status, answer = ask(served, f"/v1/{path}", body)
            assert status == (404 if "no model" in words else 400), body
            assert words in answer["error"]["message"]
            assert set(answer["error"]) == {"message", "type", "param", "code"}
            assert served.service.running == 0


def asked(served: Served, method: str, path: str, body: bytes | None = None, **headers: str) -> int:
    """The status of the answer to exactly these headers."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=300)
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    return connection.getresponse().status


def test_only_names_of_this_machine_are_answered(served: Served) -> None:
    for host in ("localhost", "LOCALHOST", "127.0.0.1", f"localhost:{served.port}", "[::1]:80"):
        assert asked(served, "GET", "/health", Host=host) == 200
    for host in ("evil.example", "localhost.evil.example", "", "192.168.0.1", "[::1", "0.0.0.0"):
        assert asked(served, "GET", "/health", Host=host) == 400
        assert asked(served, "POST", "/v1/completions", b"{}", Host=host, Content_Type="application/json") == 400


def test_web_pages_are_not_answered(served: Served) -> None:
    own = f"http://127.0.0.1:{served.port}"
    path, kinds = "/update_weights", ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data")
    for origin in ("http://evil.example", "null", "", "http://localhost:3000", f"{own}.evil.example"):
        for kind in ({}, {"Content_Type": "application/json"}):
            assert asked(served, "POST", path, b"{}", Origin=origin, **kind) == 403
    assert asked(served, "OPTIONS", path, Origin="http://evil.example") == 403
    for kind in ({}, *({"Content_Type": kind} for kind in kinds)):
        for body in (None, b"{}"):
            assert asked(served, "POST", path, body, **kind) == 400
    body = b'{"prompt": "a", "max_tokens": 1}'
    assert asked(served, "POST", "/v1/completions", body, Origin=own, Content_Type="application/json") == 200


def test_a_body_that_does_not_come_or_does_not_end_is_given_up(served: Served, monkeypatch) -> None:
    status, answer = ask(served, "/v1/completions", b" " * (2**25 + 1))
    assert status == 413 and "larger than 32 MiB" in answer["error"]["message"]
    monkeypatch.setattr("hone.extensions.server.http.BODY_SECONDS", 0.2)
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as client:
        client.sendall(f"{HEAD}Content-Length: 99\r\n\r\n{{".encode())
        received = b"".join(iter(lambda: client.recv(2**16), b""))  # to its end: the server closes
    assert received.startswith(b"HTTP/1.1 408 ")


def test_an_engine_that_failed_works_again_after_good_weights(tmp_path, capfd: pytest.CaptureFixture[str]) -> None:
    save_model(random_model(seed=1), tmp_path / "good")
    with serving(weights_root=tmp_path) as served:
        with torch.no_grad():  # as finite weights do whose products are too large
            served.service.engine.model.embed.fill_(float("nan"))
        served.service.engine.model.refresh()
        for count in range(1, 5):
            status, answer = ask(served, "/v1/completions", PROBE | {"n": 3})
            assert status == 500 and "logits are not finite" in answer["error"]["message"]
            code, body = health(served)
            assert (code, body["status"]) == ((200, "ok") if count < 3 else (503, "failing"))
            assert body["failed_steps"] == count and "logits are not finite" in body["last_failure"]
            assert not served.service.engine.busy
        for about in ({"prompt_logprobs": 0}, {"echo": True, "logprobs": 0}):
            status, answer = ask(served, "/v1/completions", PROBE | {"max_tokens": 0} | about)
            assert status == 500 and "logits are not finite" in answer["error"]["message"]
        assert ask(served, "/update_weights", {"path": "good", "version": 2})[0] == 200
        assert health(served)[:1] == (200,) and len(probe(served)) == 6
    assert capfd.readouterr().err.count("A step failed") == 1
