"""From the trainer's results to the server: in order, held where a version is measured, past the death of a server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hone.errors import Halt
from hone.inference.client import Gone
from hone.inference.endpoint import Endpoint
from hone.orchestrator import reach
from hone.orchestrator.remote import Restarted, SteadyPolicy
from hone.orchestrator.remote_trainer import Publisher
from hone.transport import FileTransport, Result, Session

CANARY = (5, 6, 7)


class Server:
    """What a server's policy is to a publisher: told weights, and asked for scores. `failing` calls raise first."""

    def __init__(self, *failing: Exception) -> None:
        self.loaded: list[tuple[int, Path]] = []
        self.failing = list(failing)
        self.idle_seconds = None
        self.version = -1
        self.server = SimpleNamespace(endpoint=Endpoint("http://127.0.0.1:9/v1"))

    def leave(self) -> None:
        pass

    def load(self, version: int, path: Path) -> None:
        if self.failing:
            raise self.failing.pop(0)
        self.loaded.append((version, path))
        self.version = version

    def score(self, sequences: list[list[int]], temperature: float) -> list[list[float]]:
        assert sequences == [list(CANARY)] and temperature == 0.7
        return [[-1.0 - self.version, -2.0]]


@pytest.fixture
def ends(tmp_path: Path) -> tuple[FileTransport, FileTransport]:
    """The trainer's end of a transport, and that of the publisher, in one session."""
    session = Session("s1", 3, None, str(tmp_path), {}, 0.7, CANARY)
    FileTransport(tmp_path / "t").open(session)
    both = FileTransport(tmp_path / "t"), FileTransport(tmp_path / "t")
    for end in both:
        assert end.session(wait=False) == session
    return both


def made(trainer: FileTransport, version: int) -> None:
    """The trainer has made a version."""
    with trainer.weights_dir(version) as folder:
        (folder / "w").write_text(str(version))
    trainer.put_result(Result(version, {"loss": float(version)}, f"f{version}", (-1.0, -2.0), {}))


def publisher_of(end: FileTransport, server: Any, hold: Callable[[int], bool] = lambda version: False) -> Publisher:
    publisher = Publisher(end, server, CANARY, 0.7, 3, hold)
    publisher.start()
    return publisher


def no_wait() -> None:
    pass


def test_versions_are_published_in_order_with_what_the_server_says_of_the_canary(ends) -> None:
    trainer, end = ends
    server = Server()
    publisher = publisher_of(end, server)
    for version in (3, 4):
        made(trainer, version)
        published = publisher.collect(no_wait)
        assert (published.result.version, published.result.fingerprint) == (version, f"f{version}")
        assert list(published.scores) == [-1.0 - version, -2.0] and published.error is None
        assert server.loaded[-1] == (version, end.weights(version))
    publisher.close()


def test_a_version_that_is_measured_is_held(ends) -> None:
    trainer, end = ends
    server = Server()
    publisher = publisher_of(end, server, hold=lambda version: version == 4)
    for version in (3, 4, 5):
        made(trainer, version)
    assert [publisher.collect(no_wait).result.version for _ in range(2)] == [3, 4]
    publisher.release(3)  # a late word on an older version lets nothing past
    time.sleep(0.2)
    assert [version for version, _ in server.loaded] == [3, 4] and not publisher.ready
    publisher.release(4)
    assert publisher.collect(no_wait).result.version == 5
    publisher.close()


def test_after_an_error_results_go_on_to_be_handed_out(ends) -> None:
    """What the trainer has made is made: the loop records it, whatever the server did."""
    trainer, end = ends
    server = Server(Halt("it serves another model"))
    publisher = publisher_of(end, server, hold=lambda version: True)
    for version in (3, 4):
        made(trainer, version)
    first, second = publisher.collect(no_wait), publisher.collect(no_wait)
    assert str(first.error) == "it serves another model" and first.result.version == 3
    assert second.error is None and second.result.version == 4 and server.loaded == []
    publisher.close()


def test_waiting_for_a_version_can_be_interrupted_and_closing_ends_the_thread(ends) -> None:
    _, end = ends
    before = set(threading.enumerate())
    publisher = publisher_of(end, Server())

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        publisher.collect(interrupt)
    publisher.close()
    assert {thread for thread in threading.enumerate() if thread.name == "publisher"} <= before


def steady(server: Server, most: int = 2) -> tuple[SteadyPolicy, list[str], list[str]]:
    told: list[str] = []
    returned: list[str] = []
    return SteadyPolicy(server, most, 300.0, told.append, returned.append), told, returned  # pyright: ignore


@pytest.mark.parametrize("loss", [Gone("it is gone", None), Restarted("it was started anew")])
def test_a_server_that_comes_back_is_given_the_weights_again(
    loss: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(reach, "ASK", 0.01)
    monkeypatch.setattr(reach, "answers", lambda endpoint: len(asked) > 2 or asked.append(endpoint))
    server = Server()
    policy, told, returned = steady(server)
    policy.load(4, tmp_path)
    calls = []

    def sample(requests: Any, sampling: Any) -> list[str]:
        calls.append(requests)
        if len(calls) == 1:
            raise loss
        return ["trajectory"]

    server.sample = sample  # pyright: ignore
    assert policy.sample(["r"], None) == ["trajectory"]  # pyright: ignore
    assert server.loaded == [(4, tmp_path)] * 2 and calls == [["r"]] * 2
    assert returned == [str(loss)] and told == [f"{loss}: waiting for it"] and len(asked) == 3


def test_weights_that_come_while_a_server_is_given_older_ones_come_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reach, "answers", lambda endpoint: True)
    server, begun, go_on = Server(), threading.Event(), threading.Event()
    policy, _, _ = steady(server)
    policy.load(4, tmp_path)
    load = server.load

    def slow_load(version: int, path: Path) -> None:
        if version == 4:
            begun.set()
            assert go_on.wait(300)
        load(version, path)

    def sample(requests: Any, sampling: Any) -> int:
        if not begun.is_set():
            raise Gone("it is gone", None)
        return server.version

    server.load, server.sample = slow_load, sample  # pyright: ignore
    sampling = threading.Thread(target=lambda: policy.sample([], None))  # pyright: ignore
    sampling.start()
    assert begun.wait(300)
    loading = threading.Thread(target=lambda: policy.load(5, tmp_path))
    loading.start()
    time.sleep(0.1)
    go_on.set()
    sampling.join(300)
    loading.join(300)
    assert [version for version, _ in server.loaded] == [4, 4, 5] and policy.version == 5


def test_a_publisher_that_is_muted_waits_for_no_server(ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the trainer has made can so be saved before the time for that is over."""
    asked = threading.Event()
    monkeypatch.setattr(reach, "ASK", 0.01)
    monkeypatch.setattr(reach, "answers", lambda endpoint: asked.set())
    trainer, end = ends
    policy = SteadyPolicy(Server(Gone("gone", None)), 3, 600, lambda text: None, lambda text: None)  # pyright: ignore
    publisher = publisher_of(end, policy)
    for version in (3, 4):
        made(trainer, version)
    assert asked.wait(300)
    publisher.mute()
    for version in (3, 4):
        published = publisher.collect(no_wait)
        assert published.result.version == version and published.scores is None and published.error is None
    publisher.close()


def test_it_is_not_waited_for_more_often_than_agreed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "answers", lambda endpoint: True)
    policy, _, returned = steady(Server(*[Gone("gone", None)] * 3), most=1)
    with pytest.raises(Halt, match=r"gone, for the 2. time \(restarts = 1\)"):
        policy.load(4, tmp_path)
    assert returned == ["gone"]
