"""Requests that are meant to hold up the server, or that a web page sends; and right ones meanwhile."""

from __future__ import annotations

import http.client
import json
import socket

import httpx
import pytest
from real_server import Served, serving

from .test_app import HEAD, post


def test_a_text_that_cannot_fit_is_refused_with_both_numbers_and_one_that_may_is_counted(served: Served) -> None:
    longest = 2048 * max(map(len, served.renderer.tokenizer.get_vocab()))
    for path, fields in (
        ("completions", lambda text: {"prompt": ["a", text]}),
        ("chat/completions", lambda text: {"messages": [{"role": "user", "content": text}]}),
    ):
        for length, unit in ((longest + 1, "characters"), (longest - 100, "tokens")):
            status, answer = post(served, f"/v1/{path}", json.dumps(fields("x" * length)).encode())
            words = answer["error"]["message"]
            assert status == 400 and unit in words and "2048" in words
            assert (str(longest) in words) == (unit == "characters")


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
    for origin in ("http://evil.example", "null", "", "http://localhost:3000", f"{own}.evil.example"):
        for kind in ({}, {"Content_Type": "application/json"}):
            assert asked(served, "POST", "/pause", Origin=origin, **kind) == 403
    assert asked(served, "OPTIONS", "/pause", Origin="http://evil.example") == 403
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        assert asked(served, "POST", "/pause", Content_Type=kind) == 400
        assert asked(served, "POST", "/pause", b"{}", Content_Type=kind) == 400
        assert asked(served, "POST", "/update_weights", b"{}", Content_Type=kind) == 400
    assert not served.service.paused
    assert asked(served, "POST", "/resume", Origin=own) == 200
    assert asked(served, "POST", "/resume") == 200  # curl -X POST
    assert (
        httpx.post(f"{served.url}/resume").status_code == httpx.post(f"{served.url}/resume", json={}).status_code == 200
    )


def test_a_body_that_does_not_come_or_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hone.inference.server.app.BODY_SECONDS", 0.2)
    monkeypatch.setattr("hone.inference.server.app.MAX_BODY", 2**20)
    with serving() as served:
        with socket.create_connection(("127.0.0.1", served.port), timeout=60) as client:
            client.sendall(f"{HEAD}Content-Length: 99\r\n\r\n{{".encode())
            received = b"".join(iter(lambda: client.recv(2**16), b""))  # to its end: the server closes
        assert received.startswith(b"HTTP/1.1 408 ")
        status, answer = post(served, "/v1/completions", b" " * (2**20 + 1))
        assert status == 413 and "larger than 1 MiB" in answer["error"]["message"]
