"""Requests that are meant to hold up the server, or that a web page sends; and right ones meanwhile."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from real_server import Served, serving, until

from hone.inference.server.http import Bodies, characters, check_size_of_json
from hone.inference.server.protocol import ApiError

from .test_app import HEAD, complete, post

HEALTH_SECONDS = 1.5
"""Of processor time, which a busy machine does not stretch: what all threads of the server compute while one /health
waits. Worked at on the event loop, these requests take 4 to 17 s.
"""
MESSAGE = b'{"role":"user","content":"a"},'
TOOL = b'{"type":"function","function":{"name":"f","description":"' + b"x " * 2**12 + b'"}},'
LARGE = [
    ("completions", b'{"prompt": "%b"}' % (b"x y " * (6 * 2**18)), 400),
    ("completions", b'{"prompt": [%b1]}' % (b"12345," * (5 * 2**20)), 413),
    ("completions", b'{"prompt": [%b1]}' % (b"[]," * (10 * 2**20)), 413),
    ("chat/completions", b'{"messages": [%b1]}' % (MESSAGE * 2**20), 413),
    ("chat/completions", b'{"messages": [%b{"role":"user","content":"%b"}]}' % (MESSAGE, b"\\n" * (15 * 2**20)), 400),
    ("chat/completions", b'{"messages": [%b], "tools": [%b]}' % (MESSAGE[:-1], (TOOL * 500)[:-1]), 400),
]
"""Path, body and the answer's status, of requests of 4 to 30 MB: text, ids, lists, messages, and tools."""


@pytest.fixture(scope="module")
def own_process() -> Iterator[tuple[str, int]]:
    """The URL and the pid of `hone inference` in a process of its own, which shares no lock with the test."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = [sys.executable, "-m", "hone.cli", "inference", "--port", str(port)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert any(line.startswith("stop ") for line in server.stdout), "it did not start"
            yield f"http://127.0.0.1:{port}", server.pid
        finally:
            server.terminate()


def processor_seconds(pid: int) -> float:
    """Return what a process has computed so far, in all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(
    ("path", "body", "status"), LARGE, ids=["text", "ids", "lists", "messages", "message", "tools"]
)
def test_a_large_request_holds_up_nobody(own_process: tuple[str, int], path: str, body: bytes, status: int) -> None:
    url, pid = own_process
    answers: list[httpx.Response] = []

    def ask() -> None:
        headers = {"Content-Type": "application/json"}
        answers.append(httpx.post(f"{url}/v1/{path}", content=body, headers=headers, timeout=300))

    asking = threading.Thread(target=ask)
    waits: list[float] = []
    with httpx.Client(timeout=300) as client:
        asking.start()
        while asking.is_alive():
            began = processor_seconds(pid)
            assert client.get(f"{url}/health").status_code == 200
            waits.append(processor_seconds(pid) - began)
    assert answers[0].status_code == status
    assert max(waits) < HEALTH_SECONDS


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


def test_what_stands_in_strings_does_not_count_as_parts() -> None:
    text = '[{":,\\' * 2**17
    check_size_of_json(bytearray(json.dumps({"prompt": [text, "a\\"]}).encode()))
    for parts in (b"[" * 2**18, b'"":"",' * 2**16, b'"\\\\",' * 2**18, b"1," * 2**22):
        with pytest.raises(ApiError) as caught:
            check_size_of_json(bytearray(parts))
        assert caught.value.status == 413


def test_characters_are_counted_at_any_depth() -> None:
    assert characters([{"ab": "cde", "f": [None, 1, ["gh"]]}, ""]) == 2 + 3 + 1 + 1 + 1 + 2


def test_many_prompts_are_answered_in_order(served: Served) -> None:
    prompts = [[1 + i % 7] * 300 for i in range(80)]
    answer = complete(served, prompts, max_tokens=1, seed=1)
    assert [choice.model_extra["prompt_token_ids"] for choice in answer.choices] == prompts


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


def test_half_sent_requests_are_closed_and_slow_answers_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    beginnings = [b"", b"POST /v1/comp", b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: "]
    answered = b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n{"
    with serving(head_seconds=1.0) as served, ExitStack() as stack:
        clients = []
        for i in range(60):
            clients.append(stack.enter_context(socket.create_connection(("127.0.0.1", served.port), timeout=60)))
            clients[i].sendall([*beginnings, answered][i % 4])
        served.slow(monkeypatch, 0.2)
        assert len(complete(served).choices[0].model_extra["token_ids"]) == 12  # takes 2.4 s
        for i, client in enumerate(clients):
            received = b"".join(iter(lambda client=client: client.recv(2**16), b""))
            assert received.startswith(b"HTTP/1.1 200") == (i % 4 == 3)
        dripping = stack.enter_context(socket.create_connection(("127.0.0.1", served.port)))
        dripping.sendall(beginnings[2])

        def closed() -> bool:
            try:
                dripping.sendall(b"x")
            except OSError:
                return True
            return False

        until(closed, "a head that never ends is closed")


def test_a_body_that_does_not_come_is_given_up() -> None:
    with serving(bodies=Bodies(seconds=0.2), head_seconds=1.0) as served:
        with socket.create_connection(("127.0.0.1", served.port), timeout=60) as client:
            client.sendall(f"{HEAD}Content-Length: 99\r\n\r\n{{".encode())
            received = b"".join(iter(lambda: client.recv(2**16), b""))  # to its end: the server closes
        assert received.startswith(b"HTTP/1.1 408 ")


def test_large_bodies_share_one_room() -> None:
    bodies = Bodies(room=2**20)
    large = b'{"prompt": "' + b"x" * 2**19 + b'"}'
    with serving(bodies=bodies) as served, socket.create_connection(("127.0.0.1", served.port)) as client:
        client.sendall(f"{HEAD}Content-Length: {2**20}\r\n\r\n{{".encode())
        until(lambda: bodies.room == 0, "the half-sent request has all room")
        assert complete(served, max_tokens=1).choices  # small ones need none
        bodies.seconds = 0.2  # of the requests from here on
        answer = httpx.post(f"{served.url}/v1/completions", content=large, headers={"Content-Type": "application/json"})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        client.close()
        until(lambda: bodies.room == 2**20, "all room is free again")
        bodies.seconds = 60
        assert post(served, "/v1/completions", large)[0] == 400  # too long for the context, so it was read
        bodies.seconds = 0.2
        assert post(served, "/v1/completions", b" " * (2**20 + 1))[0] == 503  # would never fit
