"""From the trainer's results to the server: in order, held where a version is measured, past an error."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hone.errors import Halt
from hone.orchestrator.remote_trainer import Publisher
from hone.transport import FileTransport, Result, Session

CANARY = (5, 6, 7)


class Server:
    """What a server's policy is to a publisher: given weights, and asked for scores. `failing` calls raise first."""

    def __init__(self, *failing: Exception) -> None:
        self.loaded: list[tuple[int, Path]] = []
        self.failing = list(failing)
        self.version = -1

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


def test_a_publisher_that_is_muted_hands_out_what_the_trainer_made_without_the_server(ends) -> None:
    trainer, end = ends
    server = Server()
    publisher = publisher_of(end, server, hold=lambda version: True)
    made(trainer, 3)
    assert publisher.collect(no_wait).scores is not None
    publisher.mute()
    made(trainer, 4)
    published = publisher.collect(no_wait)
    assert (published.result.version, published.scores, published.error) == (4, None, None)
    assert [version for version, _ in server.loaded] == [3]
    publisher.close()
