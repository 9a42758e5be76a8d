"""The engine's thread: it alone touches the engine, takes calls between two steps, and hands on what was sampled."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from hone.inference.batch import failures
from hone.inference.engine import Engine
from hone.inference.server.protocol import SampleFailed, ServiceEnded
from hone.inference.server.weights import swap_weights
from hone.inference.types import Failure, Job, Token
from hone.model.decoder import Decoder

Sink = Callable[[int, "list[Token] | Exception"], None]
"""Takes a sample's index within its request and its next tokens, or what ended it."""
Deliver = Callable[[list[tuple[Sink, int, "list[Token] | Exception"]]], None]
"""Calls the sinks, on the thread that they belong to."""
FAILING_AFTER = 3
"""Steps in a row that sampled nothing, as all failed; the server is failing then."""


@dataclass
class _Route:
    sink: Sink
    index: int
    whole: bool
    tokens: list[Token] = field(default_factory=list)


class Service:
    """Runs an engine in a thread of its own.

    `deliver` is called once per step. Counters are read by `/metrics`; only the thread writes them.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.deliver: Deliver = _call_sinks
        self.weights_path: str | None = None
        """That of the last update, as it was asked for."""
        self.paused = False
        self.steps = self.sampled_tokens = self.prompt_tokens = self.cancelled = self.failures = self.updates = 0
        self.seconds = 0.0
        """Spent in decode steps."""
        self.failed_steps = 0
        """Steps that failed since a token was sampled or weights were updated."""
        self.last_failure = ""
        """The reason of the last step that failed."""
        self._logged: set[str] = set()
        self._idle: tuple[float, float | None] = (0.0, None)  # so far, and since when now: read as one by others
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future]] = SimpleQueue()
        self._routes: dict[int, _Route] = {}
        self._closing = self._ended = False
        self._lock = threading.Lock()  # nothing is put among the calls once the thread has ended
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends the thread after the step that it is at; samples in flight get ServiceEnded."""
        if self._thread.is_alive():
            self.call(self._close)
            self._thread.join()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def failing(self) -> bool:
        """True if the engine's last steps have all failed."""
        return self.failed_steps >= FAILING_AFTER

    @property
    def running(self) -> int:
        """Samples that wait or run."""
        return len(self._routes)

    @property
    def idle_seconds(self) -> float:
        """Spent without a sample to work at. A pause is not idle: somebody asked for it."""
        so_far, since = self._idle
        return so_far if since is None else so_far + time.perf_counter() - since

    def call(self, function: Callable[[], Any]) -> Future:
        """`function()` on the engine's thread, between two steps; ServiceEnded if there is none any more."""
        future: Future = Future()
        with self._lock:
            if self._ended:
                future.set_exception(ServiceEnded())
            else:
                self._calls.put((function, future))
        return future

    def submit(self, jobs: Sequence[Job], sink: Sink, whole: bool) -> Future[list[int]]:
        """Queues the jobs of one request, all or none; the future has their tickets, or the engine's UserError.

        `whole`: each sample is handed on once, when it is complete; else token by token.
        """
        return self.call(lambda: self._add(jobs, sink, whole))

    def cancel(self, tickets: Sequence[int], ended: bool = False) -> Future:
        """Drops samples; nothing more of them is delivered. Tickets of finished ones are fine.

        `ended`: they have come to their end (a stop string), so they don't count as cancelled.
        """
        return self.call(lambda: self._cancel(tickets, ended))

    def pause(self) -> Future:
        """No further step until `resume`; requests wait where they are, and new ones queue up."""
        return self.call(lambda: setattr(self, "paused", True))

    def resume(self) -> Future:
        return self.call(lambda: setattr(self, "paused", False))

    def update(self, source: Decoder, version: int, path: str) -> Future:
        """Takes over the parameters of `source`, from `path`, as `version`; samples in flight go on with them.

        `source` is not to be sampled from afterwards.
        """

        def swap() -> None:
            swap_weights(source, self.engine.model)
            self.engine.weights_changed(version)
            self.weights_path = path
            self.updates += 1
            self.failed_steps = 0

        return self.call(swap)

    def _run(self) -> None:
        try:
            self._work()
        finally:
            self._end()

    def _work(self) -> None:
        while not self._closing:
            self._take_calls(wait=self.paused or not self.engine.busy)
            if self._closing or self.paused or not self.engine.busy:
                continue
            start = time.perf_counter()
            try:
                events = self.engine.step()
            except Exception as error:
                # Those in flight are lost, the server is not: it goes on with the next request.
                events = failures([0, *self._routes], error)  # 0: logged even if nobody waits
                self.engine.clear()
            self.seconds += time.perf_counter() - start
            self.steps += 1
            self._hand_on(events)

    def _take_calls(self, wait: bool) -> None:
        try:
            _carry_out(*(self._next_call() if wait else self._calls.get_nowait()))
            while True:
                _carry_out(*self._calls.get_nowait())
        except Empty:
            return

    def _next_call(self) -> tuple[Callable[[], Any], Future]:
        """Waits for it; idle unless paused."""
        if self.paused:
            return self._calls.get()
        self._idle = (self._idle[0], time.perf_counter())
        call = self._calls.get()
        self._idle = (self.idle_seconds, None)
        return call

    def _add(self, jobs: Sequence[Job], sink: Sink, whole: bool) -> list[int]:
        tickets: list[int] = []
        try:
            for job in jobs:
                tickets.append(self.engine.add(job))
        except Exception:
            for ticket in tickets:
                self.engine.cancel(ticket)
            raise
        for index, ticket in enumerate(tickets):
            self._routes[ticket] = _Route(sink, index, whole)
        self.prompt_tokens += sum(len(job.prompt) for job in jobs)
        return tickets

    def _cancel(self, tickets: Sequence[int], ended: bool) -> None:
        for ticket in tickets:
            if self._routes.pop(ticket, None) is not None:
                self.engine.cancel(ticket)
                self.cancelled += not ended

    def _hand_on(self, events: Sequence[Token | Failure]) -> None:
        """Gives what a step emitted to the sinks, and counts failures."""
        deliveries: list[tuple[Sink, int, list[Token] | Exception]] = []
        failed = [event for event in events if isinstance(event, Failure)]
        self.sampled_tokens += len(events) - len(failed)
        if failed:
            self.failures += 1
            self.last_failure = failed[-1].reason
            self._log(failed)
        self.failed_steps = 0 if len(events) > len(failed) else self.failed_steps + bool(failed)
        for event in events:
            route = self._routes.get(event.ticket)
            if route is None:  # it has ended, or was cancelled
                continue
            if isinstance(event, Failure):
                del self._routes[event.ticket]
                deliveries.append((route.sink, route.index, SampleFailed(event.reason)))
                continue
            route.tokens.append(event)
            if event.stop_reason is not None:
                del self._routes[event.ticket]
            elif route.whole:
                continue
            deliveries.append((route.sink, route.index, route.tokens))
            route.tokens = []
        if deliveries:
            self.deliver(deliveries)

    def _log(self, failed: Sequence[Failure]) -> None:
        """Prints one line for each place in the code that fails: the words may hold a number that differs each time."""
        for key, failure in {failure.lines or failure.reason: failure for failure in failed}.items():
            if key not in self._logged:
                self._logged.add(key)
                where = f" ({failure.lines})" if failure.lines else ""
                print(f"A step failed: {failure.reason}{where}; /metrics counts how often", file=sys.stderr, flush=True)

    def _close(self) -> None:
        self._closing = True

    def _end(self) -> None:
        """Leaves nobody waiting: neither for a call nor for a token."""
        with self._lock:
            self._ended = True
        while not self._calls.empty():
            _, future = self._calls.get()
            if future.set_running_or_notify_cancel():
                future.set_exception(ServiceEnded())
        routes = list(self._routes.values())
        self._routes.clear()
        self.deliver([(route.sink, route.index, ServiceEnded()) for route in routes])


def _carry_out(function: Callable[[], Any], future: Future) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function())
    except Exception as error:
        future.set_exception(error)
        # The error knows this frame: without the future in it, no circle keeps the request in memory.
        del function, future


def _call_sinks(deliveries: list[tuple[Sink, int, list[Token] | Exception]]) -> None:
    for sink, index, tokens in deliveries:
        sink(index, tokens)
