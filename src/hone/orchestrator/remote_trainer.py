"""The trainer in processes of its own, as the orchestrator sees it: batches go there, versions of weights come back.

trainer = RemoteTrainer(transport, publisher, checkpoints, start)
trainer.take()                              # version 0, which the server has now
trainer.put(0, sequences)
update = trainer.take()                     # version 1
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from hone.orchestrator.metrics import gained
from hone.orchestrator.publishing import LOOK, Published, Publisher
from hone.orchestrator.types import Update
from hone.runs.checkpoint import Checkpoints
from hone.runs.signals import StepAbandoned
from hone.trainer.packing import Sequence as Packed
from hone.trainer.wire import to_arrays
from hone.transport import FileTransport, Order

FAREWELL = 10.0
"""Seconds that a trainer has to hear that the session ends."""


class RemoteTrainer:
    """`Updates` by a trainer elsewhere; the first `take` gives the version that the session begins with.

    `alive` is called in waiting, and may raise. `check_time` too: StepAbandoned says that the run has to end, and so
    that nothing more is to be published. With `saves(version)` the trainer writes its part of the checkpoint of that
    version when it has made it. `phase` times what is waited for.
    """

    def __init__(
        self,
        transport: FileTransport,
        publisher: Publisher,
        checkpoints: Checkpoints,
        start: int,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        self.transport, self.publisher, self.checkpoints = transport, publisher, checkpoints
        self.version = self._put = start
        self.published: Published | None = None
        """What came with `version`."""
        self.alive = alive
        self.check_time: Callable[[], None] = lambda: None
        self.saves: Callable[[int], bool] = lambda version: False
        self.phase: Callable[[str], AbstractContextManager[None]] = lambda name: nullcontext()
        self.sampler_idle: Callable[[], float | None] = lambda: None
        """How long the server has had nothing to do, in seconds, as it said last."""
        self._idle: float | None = None
        self._waits: deque[float] = deque()
        self._weights = ""
        self._parts: dict[int, Path] = {}
        self._ended = False

    def put(self, step: int, sequences: Sequence[Packed]) -> dict[str, float]:
        """Hands over the batch of a step; returns how much waits there now, and how long the server has been idle."""
        with self.phase("put"):
            self._put = step + 1
            folder = self._part(step + 1) if self.saves(step + 1) else None
            tokens = sum(len(sequence) for sequence in sequences)
            self._waits.append(self.transport.put(Order(step, "batch", to_arrays(sequences), folder, tokens)))
        batches, tokens = self.transport.waiting()
        idle, self._idle = gained(self._idle, now := self.sampler_idle()), now
        return {"queue/batches": batches, "queue/tokens": tokens} | ({} if idle is None else {"idle/inference": idle})

    @property
    def ready(self) -> bool:
        return self.publisher.ready

    def take(self) -> Update:
        """The next version, once the server has it."""
        began, weights = time.perf_counter(), self._weights
        with self.phase("wait"):
            published = self.publisher.collect(self._look)
        waited, result = time.perf_counter() - began, published.result
        if self.published is None:
            self._idle = self.sampler_idle()
        else:
            waited += self._waits.popleft()  # for room
        self.version, self._weights, self.published = result.version, result.fingerprint, published
        self.transport.drop(self.version - 2)
        timings = {f"time/{name}": value for name, value in result.seconds.items() if name != "wait"}
        timings |= {"time/update": published.seconds, "idle/orchestrator": waited}
        timings["idle/trainer"] = result.seconds.get("wait", 0.0)
        return Update(result.metrics, weights, timings, published.tokens)

    def release(self, version: int) -> None:
        self.publisher.release(version)

    def give_up(self) -> None:
        self.publisher.mute()

    def _look(self) -> None:
        self.alive()
        try:
            self.check_time()
        except StepAbandoned:
            self.publisher.mute()

    def fingerprint(self) -> str:
        """That of `version`."""
        return self._weights

    def part(self, version: int) -> Path:
        """The folder with the trainer's part of the checkpoint of `version`, its current one.

        If its batch did not ask for it, this ends the session: the trainer writes it, and waits for another session.
        """
        if version not in self._parts:
            assert self._put == version, "no batch is on its way"
            folder = self._part(version)
            self._end(version, folder)
            result = self.transport.result(version)
            assert result is not None and result.saved, "the trainer has written it"
        return self._parts.pop(version)

    def close(self) -> None:
        """Ends the session, whatever state it is in; a trainer that waits for a batch has heard it then."""
        self.publisher.close()
        if self._ended or self._put > self.version:
            return
        self._end(self.version, None)
        deadline = time.monotonic() + FAREWELL
        while self.transport.result(self.version, wait=False) is None and time.monotonic() < deadline:
            time.sleep(LOOK)

    def _part(self, version: int) -> str:
        folder = self._parts[version] = self.checkpoints.part(version)
        return str(folder.absolute())

    def _end(self, version: int, folder: str | None) -> None:
        self._ended = True
        self.transport.put(Order(version, "end", save=folder))
