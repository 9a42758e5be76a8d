"""All HTTP clients of hone: no proxy for this machine, no redirects, and answers that are neither endless nor huge."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from hone.client import Endpoint, RequestRejected, ResponseTimeout
from hone.config.shared import server_url
from hone.environments.services import record_in
from hone.errors import Halt, UserError
from hone.evaluation import client as chat_client
from hone.evaluation.client import ChatClient, Failure
from hone.extensions.planning.doctor import Subject, check_hub
from hone.extensions.services.services import HTTPReward, Judge
from hone.inference import client as server_client
from hone.inference.client import ServerClient
from hone.types import Rollout
from hone.web import MIB, is_local, shown_url, without_local_proxy

JUDGED = '{"choices": [{"finish_reason": "stop", "message": {"role": "assistant", "content": "0.5"}}]}'
STATE = {"prompt": [{"role": "user", "content": "q"}], "completion": [{"role": "assistant", "content": "c"}]}
STATE |= {"answer": "a", "info": {}}


class Server(ThreadingHTTPServer):
    """Answers any path as `write` says: with a whole answer by default, `{"reward": 0.5}` or a completion."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.paths: list[str] = []
        self.write: Callable[[Handler, bytes], None] = whole
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None: ...


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.paths.append(self.path)
        body = JUDGED if self.path.endswith("/chat/completions") else '{"reward": 0.5, "data": []}'
        self.server.write(self, body.encode())

    do_GET = do_CONNECT = do_POST

    def begin(self, status: int, length: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in ({"Content-Type": "application/json", "Content-Length": str(length)} | headers).items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


def whole(handler: Handler, body: bytes) -> None:
    handler.begin(200, len(body))
    handler.wfile.write(body)


def huge(handler: Handler, body: bytes) -> None:
    """Two MiB of a good answer."""
    handler.begin(200, 2 * MIB + len(body))
    handler.wfile.write(b" " * 2 * MIB + body)


def compressed(handler: Handler, body: bytes) -> None:
    import gzip

    small = gzip.compress(b" " * 4 * MIB + body, 1)
    handler.begin(200, len(small), **{"Content-Encoding": "gzip"})
    handler.wfile.write(small)


def slow(handler: Handler, body: bytes) -> None:
    """A good answer after 20 s of a byte each 0.1 s."""
    handler.begin(200, 200 + len(body))
    for _ in range(200):
        handler.wfile.write(b" ")
        time.sleep(0.1)
    handler.wfile.write(body)


def elsewhere(handler: Handler, body: bytes) -> None:
    if "elsewhere" in handler.path:
        return whole(handler, body)
    handler.begin(307, 0, Location=f"/elsewhere{handler.path}")


@pytest.fixture
def server() -> Iterator[Server]:
    with running() as found:
        yield found


@contextlib.contextmanager
def running() -> Iterator[Server]:
    found = Server()
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield found
    found.shutdown()
    found.server_close()


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    record_in(None)
    for module in (chat_client, server_client):
        monkeypatch.setattr(module, "LARGEST_ANSWER", MIB)


def judge(url: str, timeout: float = 5.0) -> Any:
    return asyncio.run(Judge("m", "rate {completion}", url + "/v1", retries=0, timeout=timeout)(STATE))


def reward(url: str, timeout: float = 5.0) -> Any:
    return asyncio.run(HTTPReward(url + "/score", retries=0, timeout=timeout)(STATE))


def chat(url: str, timeout: float = 5.0) -> Any:
    async def ask() -> Any:
        async with ChatClient(Endpoint(url + "/v1", timeout=timeout, max_retries=0)) as client:
            return await client.complete("m", STATE["prompt"], {}, "0-0-0")

    answer = asyncio.run(ask())
    if isinstance(answer, Failure):
        raise RuntimeError(answer.reason)
    assert isinstance(answer, Rollout)
    return float(answer.messages[-1]["content"])


def tokens(url: str, timeout: float = 5.0) -> Any:
    async def ask() -> Any:
        async with ServerClient(Endpoint(url + "/v1", timeout=timeout, max_retries=0)) as client:
            return await client.post("/v1/completions", {})

    return asyncio.run(ask())["reward"]


def hub(url: str, timeout: float = 5.0) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_ENDPOINT", url)
        patch.delenv("HF_HUB_OFFLINE", raising=False)
        ((_, status, *_),) = check_hub(Subject())
    return 0.5 if status == "ok" else status


CLIENTS = [judge, reward, chat, tokens]


BAD_ANSWERS = [
    (huge, "more than 1 MiB", (ValueError, ValueError, RuntimeError, Halt)),
    (compressed, "compressed", (ValueError, ValueError, RuntimeError, Halt)),
    (slow, r"(no answer|did not answer) within 0\.5 s", (RuntimeError, RuntimeError, RuntimeError, ResponseTimeout)),
    (elsewhere, "307", (RuntimeError, RuntimeError, RuntimeError, RequestRejected)),
]
"""How a server answers, and what each of CLIENTS raises then."""


@pytest.mark.parametrize("client", [*CLIENTS, hub], ids=lambda client: client.__name__)
def test_no_client_asks_a_proxy_for_a_server_on_this_machine(
    client: Any, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with running() as proxy:
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
            monkeypatch.setenv(name.upper(), proxy.url)
        assert client(server.url) == client(server.url.replace("127.0.0.1", "localhost")) == 0.5
        assert proxy.paths == [] and len(server.paths) == 2


@pytest.mark.parametrize("number", range(len(CLIENTS)))
@pytest.mark.parametrize(("write", "words", "errors"), BAD_ANSWERS, ids=lambda one: getattr(one, "__name__", ""))
def test_no_client_takes_an_answer_that_is_huge_slow_or_elsewhere(
    number: int, write: Any, words: str, errors: Any, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.write = write
    monkeypatch.setattr(chat_client, "LISTING", 0.2)
    with pytest.raises(errors[number], match=words):
        CLIENTS[number](server.url, timeout=0.5 if write is slow else 5.0)
    assert write is not elsewhere or len(server.paths) == 1


HOSTS = {
    True: ("localhost", "LOCALHOST.", "a.localhost", "127.0.0.1", "127.8.9.1", "127.1", "0.0.0.0", "[::1]", "[::]"),
    False: ("example.com", "192.0.2.1", "localhost.example.com", "127.0.0.1.example.com", "[2001:db8::1]"),
}


@pytest.mark.parametrize(("host", "local"), [(host, local) for local, hosts in HOSTS.items() for host in hosts])
def test_which_hosts_are_this_machine(host: str, local: bool) -> None:
    assert is_local(f"http://{host}:8000/v1") is local
    assert is_local(f"http://user:word@{host}/") is local


def test_the_name_of_this_machine_and_a_mapped_address_are_local() -> None:
    assert is_local(f"http://{socket.gethostname()}:1/") and is_local("http://[::ffff:127.0.0.1]/")


def test_programs_get_no_proxy_for_this_machine() -> None:
    hosts = "example.com,127.0.0.1,localhost,::1"
    assert without_local_proxy({"NO_PROXY": "example.com"}) == {"no_proxy": hosts, "NO_PROXY": hosts}


def test_a_url_is_shown_without_password_and_query() -> None:
    assert shown_url("http://me:word@host:1/a/b?api_key=1&b#c") == "http://host:1/a/b?…"
    assert shown_url("HTTP://Host:1/a") == "HTTP://Host:1/a"
    assert shown_url("hub.example") == "hub.example" and shown_url("me:word@host/a@b") == "host/a@b"


@pytest.mark.parametrize("url", ["http://me:word@host/v1", "http://word@host", "http://me:word@"])
def test_a_url_with_a_password_is_refused_and_not_shown(url: str) -> None:
    makers: list[Callable[[], Any]] = [
        lambda: server_url(url, "-k"),
        lambda: HTTPReward(url),
        lambda: Judge("m", "{completion}", url),
    ]
    for make in makers:
        with pytest.raises(UserError, match="holds a password") as error:
            make()
        assert "word@" not in str(error.value)


def test_the_url_of_a_server_has_no_query() -> None:
    with pytest.raises(UserError, match=r"http://host/v1\?… has a query, which a server's URL can't have"):
        server_url("http://host/v1?api_key=hidden", "-k")
