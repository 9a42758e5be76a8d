"""From the trainer's results to the server: in order, held where a version is measured, past an error."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from hone.algorithms.gap import Gap
from hone.errors import Halt
from hone.extensions.split.remote_trainer import RemoteTrainer
from hone.extensions.split.transport import FileTransport, Result, Session

CANARY = (5, 6, 7)


class Server:
    """What a server's policy is to the trainer: given weights, and asked for scores. `failing` calls raise first."""

    def __init__(self, *failing: Exception) -> None:
        self.loaded: list[tuple[int, Path]] = []
        self.fleet, self.version = SimpleNamespace(changes=[{"lost": 1}]), 3
        self.failing = list(failing)

    def load(self, version: int, path: Path) -> None:
        if self.failing:
            raise self.failing.pop(0)
        self.loaded.append((version, path))

    def scores_of_each(self, ids: tuple[int, ...], temperature: float) -> list[list[float]]:
        assert list(ids) == list(CANARY) and temperature == 0.7
        return [[-1.0 - self.loaded[-1][0], -2.0]]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., RemoteTrainer]]:
    """Opens the session, from version 3 on, of a trainer that has `made` its versions already; takes the first."""
    begun: list[RemoteTrainer] = []

    def start(server: Any, made: int, holds: Callable[[int], bool] = lambda version: False, **more) -> RemoteTrainer:
        session = Session("s1", 3, None, str(tmp_path), {}, 0.7, CANARY)
        transport, there = FileTransport(tmp_path / "t"), FileTransport(tmp_path / "t")
        transport.open(session)
        assert there.session(wait=False) == session
        for version in range(3, 3 + made):
            with there.weights_dir(version) as (folder, _):
                (folder / "w").write_text(str(version))
            there.put_result(Result(version, {"loss": float(version)}, f"f{version}", (-1.0, -2.0), {}))
        run: Any = SimpleNamespace(
            phase=lambda name: there._explaining(), event=lambda *_, **event: events.append(event)
        )
        trainer = RemoteTrainer(transport, session, server, run, 99, holds, **more)
        saver: Any = SimpleNamespace(stop=SimpleNamespace(check=lambda: None))
        trainer._ended = True  # nobody is there to be told
        trainer._waits.extend([0.0] * made)
        begun.append(trainer)
        trainer.start(saver)
        return trainer

    events: list[dict[str, Any]] = []
    yield start
    for trainer in begun:
        trainer.close()
        assert not trainer._thread.is_alive() and events == [{"lost": 1}]


def test_versions_are_published_in_order_with_what_the_server_says_of_the_canary(begin) -> None:
    server = Server()
    trainer = begin(server, 2)
    assert (trainer.version, trainer.fingerprint(), trainer.publish(3)) == (3, "f3", Gap(1.5, 3.0))
    update = trainer.take()
    assert (trainer.version, trainer.fingerprint(), trainer.publish(4)) == (4, "f4", Gap(2.0, 4.0))
    assert update.metrics == {"loss": 4} and update.weights == "f3"
    assert [(version, path.name) for version, path in server.loaded] == [(3, "step_3"), (4, "step_4")]


def test_a_version_that_is_measured_is_held(begin) -> None:
    server = Server()
    trainer = begin(server, 3, holds=lambda version: version == 4)
    assert trainer.take() and trainer.version == 4
    trainer.release(3)  # a late word on an older version lets nothing past
    time.sleep(0.2)
    assert [version for version, _ in server.loaded] == [3, 4] and not trainer.ready
    trainer.release(4)
    assert trainer.take().metrics == {"loss": 5}


def test_after_an_error_results_go_on_to_be_handed_out(begin) -> None:
    """What the trainer has made is made: the loop records it, whatever the server did."""
    server = Server(Halt("it serves another model"))
    trainer = begin(server, 2, holds=lambda version: True)
    with pytest.raises(Halt, match="it serves another model"):
        trainer.publish(3)
    trainer.take()
    assert trainer.publish(4) is None and trainer.version == 4 and server.loaded == []


def test_waiting_for_a_version_ends_when_the_trainer_is_gone(begin) -> None:
    with pytest.raises(KeyboardInterrupt):
        begin(Server(), 0, alive=Mock(side_effect=KeyboardInterrupt))


def test_one_that_gives_up_hands_out_what_the_trainer_made_without_the_server(begin) -> None:
    server = Server()
    trainer = begin(server, 2, holds=lambda version: True)
    trainer.give_up()
    trainer.take()
    assert (trainer.version, trainer.publish(4)) == (4, None)
    assert [version for version, _ in server.loaded] == [3]


def test_what_the_server_has_and_what_is_being_saved_is_not_written_over(begin) -> None:
    """Not even once the trainer has made later versions, which nobody gives to the server any more."""
    server = Server()
    trainer = begin(server, 4, holds=lambda version: version == 4)
    assert trainer.snapshot(checkpoint=False) == ({}, None)
    trainer.take()
    trainer.give_up()
    trainer.take()
    trainer.take()
    there = {path.name for path in trainer.transport.weights(6).parent.iterdir()}
    assert trainer.version == 6 and server.loaded[-1][0] == 4 and there == {"step_3", "step_4", "step_5", "step_6"}
