"""Several servers: what they sample together is what one does alone, whichever of them is lost on the way."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import until
from real_server import RENDERER, InThread, Served, endpoint, random_model, requests, same, serving

from hone.client import ServerUnavailable
from hone.inference.engine import Engine
from hone.inference.types import SamplingParams
from hone.loops.colocated import EnginePolicy
from hone.loops.fleet import Fleet
from hone.loops.reach import connect_to_server
from hone.loops.remote import ServerPolicy
from hone.model.decoder import Decoder
from hone.trainer.export import Spool

LONG = SamplingParams(ignore_eos=True)


@pytest.fixture
def messages() -> list[str]:
    return []


@pytest.fixture
def fleet(tmp_path: Path, messages: list[str]):
    """Makes a policy of servers, as it would sample from one."""

    def make(model: Decoder, *urls: str, **settings: Any) -> ServerPolicy:
        asked = ("hone/tiny", RENDERER, 64, tmp_path / "spool", model.num_parameters)
        servers = [connect_to_server(endpoint(url, timeout=60.0, **settings), *asked) for url in urls]
        return ServerPolicy(Fleet(servers, messages.append), RENDERER, (), Spool(tmp_path / "spool", model))

    return make


def test_groups_are_shared_out_and_the_samples_are_those_of_one_engine(fleet, tmp_path: Path) -> None:
    model = random_model(seed=1)
    local = EnginePolicy(Engine(model, tokenizer=RENDERER.tokenizer), RENDERER, lambda: 4)
    with serving(weights_root=tmp_path) as one, serving(weights_root=tmp_path) as other:
        policy, heard = fleet(model, one.url, other.url), dict[int, Any]()
        policy.load(4)
        found = policy.sample(requests(), LONG, heard.__setitem__)
        assert [heard[index] for index in range(len(found))] == found
        same(found, local.sample(requests(), LONG))
        scores = policy.scores_of_each(list(range(40, 60)), 1.0)
        assert len(scores) == 2 and scores[0] == pytest.approx(scores[1], abs=1e-6) and len(scores[0]) == 19
        assert one.service.steps > 0 and other.service.steps > 0
        assert all(member.tokens == 0 for member in policy.fleet.members)


class Proxy:
    """Stands before a server until `cut`, which ends all connections to it at once, as when a process is killed."""

    def __init__(self, target: int, port: int = 0) -> None:
        self._target, self._sockets = target, [socket.create_server(("127.0.0.1", port))]
        self.port = self._sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                pair = [self._sockets[0].accept()[0], socket.create_connection(("127.0.0.1", self._target))]
                self._sockets += pair
                for ends in (pair, pair[::-1]):
                    threading.Thread(target=self._pump, args=ends, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(2**16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


@contextlib.contextmanager
def held(served: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """A server whose engine waits before each step, until what this gives is called."""
    go_on, step = threading.Event(), served.service.engine.step
    monkeypatch.setattr(served.service.engine, "step", lambda: (go_on.wait(300), step())[1])
    yield go_on.set
    go_on.set()


def test_the_requests_of_a_lost_server_go_to_the_others_and_it_is_given_the_weights_when_it_is_back(
    fleet, tmp_path: Path, messages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(weights_root=tmp_path) as one, serving(weights_root=tmp_path) as other:
        proxy = Proxy(other.port)
        policy = fleet(random_model(seed=1), one.url, proxy.url)
        policy.load(4)
        expected = policy.sample(requests(), LONG)
        with held(other, monkeypatch):
            sampling = InThread(lambda: policy.sample(requests(), LONG))
            until(lambda: other.service.running > 0, "it is at work")
            proxy.cut()
            same(sampling.result(), expected)
        assert [change["change"] for change in policy.fleet.changes] == ["lost"] and "is lost" in messages[-1]
        same(policy.sample(requests(), LONG), expected)
        assert len(policy.fleet.changes) == len(messages) == 1, "said once"
        assert len(policy.scores_of_each([9, 8], 1.0)) == 1
        policy.load(5)
        assert other.service.engine.version == 4
        back = Proxy(other.port, proxy.port)
        found = policy.sample(requests(), LONG)
        assert other.service.engine.version == 5 and {t.versions[-1] for t in found} == {5}
        assert [change["change"] for change in policy.fleet.changes] == ["lost", "back"]
        assert messages[-1].endswith("is back, and has version 5 of the weights")
        assert len(policy.scores_of_each([9, 8], 1.0)) == 2
        back.cut()


def test_one_may_be_lost_after_its_last_answer_and_be_found_again_by_another_thread_within_a_call(
    fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(weights_root=tmp_path) as one, serving(weights_root=tmp_path) as other:
        proxy = Proxy(one.port)
        policy = fleet(random_model(seed=1), proxy.url, other.url)
        policy.load(4)
        expected = policy.sample(requests(), LONG)
        steps = one.service.steps
        for publishes in (False, True):
            with held(other, monkeypatch) as go_on:
                sampling = InThread(lambda: policy.sample(requests(), LONG))
                until(lambda steps=steps: one.service.steps > steps and other.service.running > 0, "both are at work")
                until(lambda: one.service.running == 0, "one has done its part")
                proxy.cut()
                if publishes:
                    scoring = InThread(lambda: policy.scores_of_each([9, 8], 1.0))
                    until(lambda: policy.fleet.members[0].lost is not None, "its loss is known")
                    proxy = Proxy(one.port, proxy.port)
                    looking = InThread(lambda: policy.scores_of_each([9, 8], 1.0))
                    until(lambda: policy.fleet.members[0].lost is None, "it is back")
                go_on()
                same(sampling.result(), expected)
            if publishes:
                assert len(looking.result()) == 2 and len(scoring.result()) in (1, 2), "it may be back by then"
            else:
                assert policy.fleet.members[0].lost is not None
                proxy = Proxy(one.port, proxy.port)
                same(policy.sample(requests(), LONG), expected)
            steps = one.service.steps
        assert [change["change"] for change in policy.fleet.changes] == ["lost", "back"] * 2
        proxy.cut()


def test_what_fails_on_every_server_ends_the_run(fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(weights_root=tmp_path) as one, serving(weights_root=tmp_path) as other:
        policy = fleet(random_model(seed=1), one.url, other.url)
        policy.load(4)
        expected = policy.sample(requests(), LONG)

        def fail() -> None:
            raise RuntimeError("no more")

        monkeypatch.setattr(one.service.engine, "step", fail)
        same(policy.sample(requests(), LONG), expected)
        monkeypatch.setattr(other.service.engine, "step", fail)
        with pytest.raises(ServerUnavailable, match="status 5"):
            policy.sample(requests(), LONG)
        assert policy.fleet.changes == [], "both are there"


def test_a_server_that_was_started_anew_between_two_calls_is_given_the_weights(fleet, tmp_path: Path) -> None:
    with serving(weights_root=tmp_path) as one:
        with serving(weights_root=tmp_path) as other:
            policy, port = fleet(random_model(seed=1), one.url, other.url), other.port
            policy.load(4)
            expected = policy.sample(requests(), LONG)
        with serving(weights_root=tmp_path, port=port) as again:
            same(policy.sample(requests(), LONG), expected)
            assert again.service.steps > 0 and policy.fleet.changes == [], "it had the weights before it was asked"


def test_a_request_that_comes_to_a_server_started_anew_is_asked_of_another(
    fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(weights_root=tmp_path) as one, serving(weights_root=tmp_path) as other:
        proxy = Proxy(other.port)
        policy = fleet(random_model(seed=1), one.url, proxy.url, max_retries=1)
        policy.load(4)
        expected = policy.sample(requests(), LONG)
        with serving(weights_root=tmp_path) as again, held(other, monkeypatch):
            sampling = InThread(lambda: policy.sample(requests(), LONG))
            until(lambda: other.service.running > 0, "it is at work")
            proxy.cut()
            proxy = Proxy(again.port, proxy.port)
            same(sampling.result(), expected)
            assert again.service.steps > 0, "it answered, from weights of its own"
        assert [change["change"] for change in policy.fleet.changes] == ["lost"]


def test_when_all_are_lost_it_waits_for_one_to_come_back(fleet, tmp_path: Path, messages: list[str]) -> None:
    with serving(weights_root=tmp_path) as one, serving(weights_root=tmp_path) as other:
        policy, port = fleet(random_model(seed=1), one.url, other.url), one.port
        policy.load(4)
        expected = policy.sample(requests(), LONG)
    sampling = InThread(lambda: policy.sample(requests(), LONG))
    until(lambda: len(messages) == 2, "both are lost")
    with serving(weights_root=tmp_path, port=port):
        same(sampling.result(), expected)
