"""The engine's thread, without HTTP: whom it leaves waiting when it ends (nobody)."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from processes import until
from real_server import random_model

from hone import rng
from hone.extensions.server.protocol import ServiceEnded
from hone.extensions.server.service import Service
from hone.inference.engine import Engine
from hone.inference.types import Job


def job(i: int) -> Job:
    return Job((70, 71), rng.key(0, "test", i), 500)


class Seen:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.got: list[tuple[int, Any]] = []

    def __call__(self, news: Any) -> None:
        self.got += news


def test_what_waits_when_the_thread_ends_is_told() -> None:
    service, seen = Service(Engine(random_model())), Seen()
    service.start()
    begun, hold = threading.Event(), threading.Event()
    service.call(lambda: (begun.set(), hold.wait(300)))
    begun.wait(300)
    submitted = service.submit([job(0), job(1)], seen, whole=True)
    closed = threading.Thread(target=service.close)
    closed.start()
    until(lambda: service._calls.qsize() == 2, "both are among the calls")
    hold.set()
    closed.join()
    assert submitted.result(300) == [1, 2]
    assert [(index, type(error)) for index, error in seen.got] == [(0, ServiceEnded), (1, ServiceEnded)]
    assert not service.alive
    with pytest.raises(ServiceEnded):
        service.cancel([1]).result(300)
