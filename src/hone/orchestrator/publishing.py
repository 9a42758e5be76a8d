"""From the trainer to the sampler: each new version of the weights is given to the server while it samples.

A thread of its own takes the trainer's results in order, has the server take their weights, and measures how far the
two are apart; the loop collects what it has done. A server that dies is waited for, and given the weights again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TypeVar

from hone.errors import Halt
from hone.inference.client import Gone
from hone.inference.endpoint import Endpoint
from hone.inference.types import SamplingParams
from hone.orchestrator.remote import Restarted, UpdatingPolicy
from hone.orchestrator.types import Request
from hone.trainer.token_stats import TokenStats
from hone.transport import FileTransport, Result
from hone.types import Trajectory

LOOK = 0.02
"""Seconds between two looks at what another thread or process does."""
ASK = 0.5
"""Seconds between two questions whether a server is there."""

T = TypeVar("T")


class SteadyPolicy:
    """The policy of a server that may die and come back, up to `most` times. Any thread may call it.

    `patience` is how many seconds it may be away; `tell` is called with a sentence when it is gone, `returned` with its
    reason when it is back, with the weights that it was given last. Halt if it does not come back.
    """

    def __init__(
        self,
        policy: UpdatingPolicy,
        most: int,
        patience: float,
        tell: Callable[[str], None],
        returned: Callable[[str], None],
    ) -> None:
        self.policy, self.most, self.patience = policy, most, patience
        self._tell, self._returned = tell, returned
        self._newest: tuple[int, Path] | None = None
        self._lock = threading.Lock()
        """Held while the server is given weights, or waited for: older ones never come after newer ones."""
        self._losses = 0
        self._left = False

    @property
    def version(self) -> int:
        return self.policy.version

    @property
    def idle_seconds(self) -> float | None:
        """How long the server has had nothing to do, as it said last."""
        return self.policy.idle_seconds

    def sample(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Trajectory]:
        return self._steadily(lambda: self.policy.sample(requests, sampling))

    def load(self, version: int, path: Path | None = None) -> None:
        assert path is not None, "the weights are the trainer's, in a folder"
        self._newest = version, path
        self._steadily(self._give)

    def score(self, sequences: Sequence[Sequence[int]], temperature: float) -> list[list[float]]:
        return self._steadily(lambda: self.policy.score(sequences, temperature))

    def leave(self) -> None:
        """Waits for the server no more: whatever finds it gone from now on, or waits for it, fails."""
        self._left = True

    def _give(self) -> None:
        with self._lock:
            self._give_newest()

    def _give_newest(self) -> None:
        if self._newest is not None:
            self.policy.load(*self._newest)

    def _steadily(self, call: Callable[[], T]) -> T:
        while True:
            losses = self._losses
            try:
                return call()
            except (Gone, Restarted) as loss:
                self._recover(str(loss), losses)

    def _recover(self, reason: str, losses: int) -> None:
        """Waits for the server, and gives it the weights; once for all threads that found it gone."""
        with self._lock:
            if self._losses != losses:
                return
            if losses >= self.most:
                raise Halt(f"{reason}, for the {losses + 1}. time (restarts = {self.most})")
            self._tell(f"{reason}: waiting for it")
            wait_for_server(self.policy.server.endpoint, self.patience, self._tell, lambda: self._check_left(reason))
            self._losses += 1
            self._returned(reason)
            with suppress(Gone, Restarted):  # again; the call will find that out
                self._give_newest()

    def _check_left(self, reason: str) -> None:
        if self._left:
            raise Halt(reason)


def wait_for_server(
    endpoint: Endpoint,
    patience: float,
    tell: Callable[[str], None] = lambda text: None,
    interrupt: Callable[[], None] = lambda: None,
) -> None:
    """Waits until a server answers at `endpoint`, and says every 30 s that it does. Halt after `patience` seconds.

    `interrupt` is called again and again, and may raise.
    """
    began = said = time.monotonic()
    while not answers(endpoint):
        interrupt()
        now = time.monotonic()
        if now - began > patience:
            raise Halt(f"no server answers at {endpoint.url}, after {patience:.0f} s")
        if now - said > 30:
            said = now
            tell(f"Waiting for the server at {endpoint.url}: {now - began:.0f} s")
        time.sleep(ASK)


def answers(endpoint: Endpoint) -> bool:
    """Return True if the server takes requests, also if its samples fail: it may be waiting for better weights."""
    import httpx

    url = endpoint.url.rstrip("/").removesuffix("/v1") + "/health"
    try:
        response = httpx.get(url, timeout=5, trust_env=not endpoint.local)
        return response.is_success or response.json()["status"] == "failing"
    except (httpx.HTTPError, ValueError, TypeError, KeyError):
        return False


@dataclass(frozen=True)
class Published:
    """A version that the trainer has made: its result, and what came of giving it to the server.

    `scores` are the server's logprobs of the canary, None if it was not given the weights; `seconds` is what the
    update took; `error` is what went wrong. `tokens` is what came with the result about the tokens of its step.
    """

    result: Result
    scores: Sequence[float] | None = None
    seconds: float = 0.0
    error: Exception | None = None
    tokens: TokenStats | None = None


class Publisher:
    """Publishes the versions of a session from `first` on, in order, in a thread of its own, until it is closed.

    It goes no further than a version that `hold` is true of, until that is released: what is measured of it is then of
    that version alone. After an error it publishes nothing more, and goes on to hand out what the trainer has made.
    """

    def __init__(
        self,
        transport: FileTransport,
        policy: SteadyPolicy,
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
        self._thread.start()

    @property
    def ready(self) -> bool:
        """Whether `collect` would not wait."""
        return not self._done.empty()

    def collect(self, interrupt: Callable[[], None]) -> Published:
        """The next version, when it is published, or could not be. `interrupt` is called meanwhile, and may raise."""
        while True:
            try:
                found = self._done.get(timeout=LOOK)
            except Empty:
                interrupt()
                continue
            if isinstance(found, BaseException):
                raise found
            return found

    def release(self, version: int) -> None:
        """Goes on past `version`, if that is held."""
        with self._changed:
            self._released = version
            self._changed.notify()

    def mute(self) -> None:
        """Publishes nothing more, holds no version, and waits for no server."""
        self._policy.leave()
        with self._changed:
            self._quiet = True
            self._changed.notify()

    def close(self) -> None:
        """Ends the thread; what it is at is not awaited for long."""
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
                arrays = self._transport.token_stats(version) if result.tokens else None
                tokens = None if arrays is None else TokenStats(**arrays)
                self._done.put(replace(self._publish(result), tokens=tokens))
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
            if self._quiet:  # told to give up meanwhile
                return Published(result)
            self._quiet = True
            return Published(result, error=error)
        return Published(result, scores, time.perf_counter() - began)


class _Closed(Exception):
    """The publisher was told to end."""
