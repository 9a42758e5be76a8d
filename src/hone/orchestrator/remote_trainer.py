"""The trainer in processes of its own, as the orchestrator sees it: batches go there, versions of weights come back.

    trainer = RemoteTrainer(transport, publisher, checkpoints, start)
    trainer.take()                              # version 0, which the server has now
    trainer.put(0, sequences)
    update = trainer.take()                     # version 1

The publisher gives each new version to the server while that samples: a thread takes the trainer's results in order,
has the server take their weights, and measures how far the two are apart; the loop collects what it has done.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

from hone.orchestrator.remote import ServerPolicy
from hone.orchestrator.types import Update
from hone.runs.checkpoint import Checkpoints
from hone.runs.signals import StepAbandoned
from hone.trainer.packing import Sequence as Packed
from hone.trainer.token_stats import TokenStats
from hone.trainer.wire import to_arrays
from hone.transport import FileTransport, Order, Result

LOOK = 0.02
"""Seconds between two looks at what another thread or process does."""
FAREWELL = 10.0
"""Seconds that a trainer has to hear that the session ends."""


@dataclass(frozen=True)
class Published:
    """A version that the trainer has made: its result, and what came of giving it to the server.

    `scores` are the server's logprobs of the canary, None if it was not given the weights; `seconds` is what the
    update took; `error` is what went wrong.
    """

    result: Result
    scores: Sequence[float] | None = None
    seconds: float = 0.0
    error: Exception | None = None


class Publisher:
    """Publishes the versions of a session from `first` on, in order, in a thread of its own, until it is closed.

    It stops at a version that `hold` is true of until that is released, so that measurements are of that version alone.
    After an error it publishes nothing more, but still hands out what the trainer has made.
    """

    def __init__(
        self,
        transport: FileTransport,
        policy: ServerPolicy,
        canary: Sequence[int],
        temperature: float,
        first: int,
        hold: Callable[[int], bool],
    ) -> None:
        transport.interrupt = self._check_open
        self._transport, self._policy, self._hold = transport, policy, hold
        self._canary, self._temperature = list(canary), temperature
        self._first, self._released = first, first - 1
        self._quiet = self._closed = False
        self._changed = threading.Condition()
        self._done: SimpleQueue[Published | BaseException] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    def start(self) -> None:
        """Begin to publish."""
        self._thread.start()

    @property
    def ready(self) -> bool:
        """True if `collect` would not wait."""
        return not self._done.empty()

    def collect(self, interrupt: Callable[[], None]) -> Published:
        """Return the next version when it is published, or could not be. `interrupt` is called meanwhile; may raise."""
        while True:
            try:
                published = self._done.get(timeout=LOOK)
            except Empty:
                interrupt()
                continue
            if isinstance(published, BaseException):
                raise published
            return published

    def release(self, version: int) -> None:
        """Go on past `version`, if that is held."""
        with self._changed:
            self._released = version
            self._changed.notify()

    def mute(self) -> None:
        """Publish nothing more, and hold no version."""
        with self._changed:
            self._quiet = True
            self._changed.notify()

    def close(self) -> None:
        """End the thread, without a long wait for its work."""
        self._closed = True
        self.mute()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _check_open(self) -> None:
        if self._closed:
            raise _Closed

    def _run(self) -> None:
        version = self._first
        try:
            while True:
                result = self._transport.result(version)
                assert result is not None, "it was waited for"
                self._done.put(self._publish(result))
                with self._changed:
                    self._changed.wait_for(lambda v=version: self._quiet or self._released >= v or not self._hold(v))
                version += 1
        except _Closed:
            pass
        except BaseException as error:
            self._done.put(error)

    def _publish(self, result: Result) -> Published:
        if self._quiet:
            return Published(result)
        began = time.perf_counter()
        try:
            self._policy.load(result.version, self._transport.weights(result.version))
            (scores,) = self._policy.score([self._canary], self._temperature)
        except Exception as error:
            muted, self._quiet = self._quiet, True
            return Published(result, error=None if muted else error)
        return Published(result, scores, time.perf_counter() - began)


class _Closed(Exception):
    """The publisher is to end."""


class RemoteTrainer:
    """`Updates` by a trainer elsewhere; the first `take` gives the version that the session begins with.

    `alive` is called while waiting, and may raise. `check_time` too: StepAbandoned says that the run has to end, so
    nothing more is published. With `saves(version)` the trainer writes its part of the checkpoint of that
    version when it has made it. `phase` times the waiting. `sampler_idle` is how long the server has had nothing
    to do, in seconds, as of its last answer.
    """

    def __init__(
        self,
        transport: FileTransport,
        publisher: Publisher,
        checkpoints: Checkpoints,
        start: int,
        sampler_idle: Callable[[], float | None] = lambda: None,
    ) -> None:
        self.transport, self.publisher, self.checkpoints = transport, publisher, checkpoints
        self.version = self._put = start
        self.published: Published | None = None
        """What came with `version`."""
        self.alive: Callable[[], None] = lambda: None
        self.check_time: Callable[[], None] = lambda: None
        self.saves: Callable[[int], bool] = lambda version: False
        self.phase: Callable[[str], AbstractContextManager[None]] = lambda name: nullcontext()
        self._sampler_idle = sampler_idle
        self._idle: float | None = None
        self._waits: deque[float] = deque()
        self._weights = ""
        self._parts: dict[int, Path] = {}
        self._ended = False

    def put(self, step: int, sequences: Sequence[Packed]) -> dict[str, float]:
        """Hand over the batch of a step; returns how much waits there now, and how long the server was idle since."""
        with self.phase("put"):
            self._put = step + 1
            folder = self._part(step + 1) if self.saves(step + 1) else None
            tokens = sum(len(sequence) for sequence in sequences)
            self._waits.append(self.transport.put(Order(step, "batch", to_arrays(sequences), folder, tokens)))
        batches, tokens = self.transport.waiting()
        timings: dict[str, float] = {"queue/batches": batches, "queue/tokens": tokens}
        before, self._idle = self._idle or 0.0, self._sampler_idle()
        if self._idle is not None:
            timings["idle/inference"] = self._idle - before
        return timings

    @property
    def ready(self) -> bool:
        return self.publisher.ready

    def take(self) -> Update:
        """Return the next version, once the server has it."""
        began, weights = time.perf_counter(), self._weights
        with self.phase("wait"):
            published = self.publisher.collect(self._look)
        waited, result = time.perf_counter() - began, published.result
        if self.published is None:
            self._idle = self._sampler_idle()
        else:
            waited += self._waits.popleft()  # for room
        self.version, self._weights, self.published = result.version, result.fingerprint, published
        self.transport.drop(self.version - 2)
        timings = {f"time/{name}": value for name, value in result.seconds.items() if name != "wait"}
        timings |= {"time/update": published.seconds, "idle/orchestrator": waited}
        timings["idle/trainer"] = result.seconds.get("wait", 0.0)
        tokens = TokenStats(**result.arrays) if result.arrays else None
        return Update(result.metrics, weights, timings, tokens)

    def release(self, version: int) -> None:
        self.publisher.release(version)

    def give_up(self) -> None:
        self.publisher.mute()

    def fingerprint(self) -> str:
        return self._weights

    def part(self, version: int) -> Path:
        """Return the folder with the trainer's part of the checkpoint of `version`, its current one.

        If its batch did not ask for it, this ends the session: the trainer writes it, and waits for another session.
        """
        if version not in self._parts:
            assert self._put == version, "no batch is on its way"
            self._end(version, self._part(version))
            result = self.transport.result(version)
            assert result is not None and result.saved, "the trainer has written it"
        return self._parts.pop(version)

    def close(self) -> None:
        """End the session in any state; a trainer that waits for a batch is notified."""
        self.publisher.close()
        if self._ended or self._put > self.version:
            return
        self._end(self.version, None)
        deadline = time.monotonic() + FAREWELL
        while self.transport.result(self.version, wait=False) is None and time.monotonic() < deadline:
            time.sleep(LOOK)

    def _look(self) -> None:
        self.alive()
        try:
            self.check_time()
        except StepAbandoned:
            self.publisher.mute()

    def _part(self, version: int) -> str:
        folder = self._parts[version] = self.checkpoints.part(version)
        return str(folder.absolute())

    def _end(self, version: int, folder: str | None) -> None:
        self._ended = True
        self.transport.put(Order(version, "end", save=folder))
