"""The engine's thread, and the requests that it serves.

Only the thread of `Service` uses the engine. Between two steps it runs the calls of other threads; after a step it
delivers the sampled tokens. A `Generation` is one request on the event loop, with the texts of its samples so far.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from hone.extensions.server.protocol import FAILED, ApiError, ServiceEnded
from hone.extensions.server.weights import swap_weights
from hone.inference.engine import Engine
from hone.inference.text import Detokenizer, StopStrings
from hone.inference.types import Failure, Job, Token
from hone.model.decoder import Decoder

News = list[tuple[int, "list[Token] | Exception"]]
"""News of one request. For each sample: its index, and its new tokens or the error that ended the sample."""
Sink = Callable[[News], None]
"""Runs on the engine's thread after each step, with the news of one request."""
FAILING_AFTER = 3
"""The server reports failure after this many failed steps in a row without a sampled token."""


@dataclass
class _Route:
    sink: Sink
    index: int
    whole: bool
    tokens: list[Token] = field(default_factory=list)


class Service:
    """Runs an engine in a thread. Only this thread writes the counters."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.weights_path: str | None = None
        """Path of the last weight update, as the client wrote it."""
        self.steps = self.sampled_tokens = self.prompt_tokens = self.cancelled = self.failures = self.updates = 0
        self.seconds = 0.0
        """Seconds spent in decode steps."""
        self.failed_steps = 0
        """Failed steps since the last sampled token or update of weights."""
        self.last_failure = ""
        self._logged: set[str] = set()
        self._idle: tuple[float, float | None] = (0.0, None)  # earlier seconds, start of current; read in one access
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future]] = SimpleQueue()
        self._routes: dict[int, _Route] = {}
        self._closing = self._ended = False
        self._lock = threading.Lock()  # no call is queued once the thread has ended
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def counters(self) -> list[tuple[str, str, str, float]]:
        return [
            ("prompt_tokens_total", "counter", "Prompt tokens of accepted samples.", self.prompt_tokens),
            ("sampled_tokens_total", "counter", "Tokens sampled.", self.sampled_tokens),
            ("steps_total", "counter", "Decode steps.", self.steps),
            ("step_seconds_total", "counter", "Seconds spent in decode steps.", self.seconds),
            ("idle_seconds_total", "counter", "Seconds without samples in flight.", self.idle_seconds),
            ("samples_cancelled_total", "counter", "Samples cancelled before their end.", self.cancelled),
            ("engine_failures_total", "counter", "Steps that failed.", self.failures),
            ("weight_updates_total", "counter", "Weight updates.", self.updates),
            ("samples_in_flight", "gauge", "Samples that wait or run.", self.running),
            ("prefix_cache_bytes", "gauge", "Keys and values of cached prompts.", self.engine.prefill.prefixes.bytes),
            ("policy_version", "gauge", "Version of the weights.", self.engine.version),
        ]

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the thread after the current step; samples in flight get ServiceEnded."""
        if self._thread.is_alive():
            self.call(lambda: setattr(self, "_closing", True))
            self._thread.join()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def failing(self) -> bool:
        return self.failed_steps >= FAILING_AFTER

    @property
    def running(self) -> int:
        return len(self._routes)

    @property
    def idle_seconds(self) -> float:
        so_far, since = self._idle
        return so_far if since is None else so_far + time.perf_counter() - since

    def call(self, function: Callable[[], Any]) -> Future:
        """Run `function()` on the engine's thread, between two steps. If the thread has ended, the future raises
        ServiceEnded."""
        future: Future = Future()
        with self._lock:
            if self._ended:
                future.set_exception(ServiceEnded())
            else:
                self._calls.put((function, future))
        return future

    def submit(self, jobs: Sequence[Job], sink: Sink, whole: bool) -> Future[list[int]]:
        """Queue all jobs of a request, or none if the engine refuses a job. The future gives the tickets, or raises
        UserError. If `whole` is true, `sink` gets the tokens of a sample all at once, at its end."""

        def add() -> list[int]:
            tickets: list[int] = []
            try:
                for job in jobs:
                    tickets.append(self.engine.add(job))
            except Exception:
                for ticket in tickets:
                    self.engine.cancel(ticket)
                raise
            self._routes |= {ticket: _Route(sink, index, whole) for index, ticket in enumerate(tickets)}
            self.prompt_tokens += sum(len(job.prompt) for job in jobs)
            return tickets

        return self.call(add)

    def cancel(self, tickets: Sequence[int]) -> Future:
        """Drop samples; `sink` gets no more of their tokens. Tickets of finished samples are ignored."""

        def drop() -> None:
            for ticket in tickets:
                if self._routes.pop(ticket, None) is not None:
                    self.engine.cancel(ticket)
                    self.cancelled += 1

        return self.call(drop)

    def update(self, source: Decoder, version: int, path: str) -> Future:
        """Use the parameters of `source` as `version`, also for samples in flight. Don't use `source` afterwards."""

        def swap() -> None:
            swap_weights(source, self.engine.model)
            self.engine.weights_changed(version)
            self.weights_path = path
            self.updates += 1
            self.failed_steps = 0

        return self.call(swap)

    def _run(self) -> None:
        try:
            while not self._closing:
                if not self.engine.busy:
                    self._idle = (self._idle[0], time.perf_counter())
                    call = self._calls.get()
                    self._idle = (self.idle_seconds, None)
                    _carry_out(*call)
                while not self._calls.empty():
                    _carry_out(*self._calls.get())
                if self.engine.busy and not self._closing:
                    self._step()
        finally:
            self._end()

    def _step(self) -> None:
        start = time.perf_counter()
        try:
            events = self.engine.step()
        except Exception as error:
            # Samples in flight are lost, but the server goes on.
            frames = traceback.extract_tb(error.__traceback__)[-6:]
            text = next(iter(str(error).strip().splitlines()), "")[:300]
            lines = " > ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
            events = [Failure(ticket, f"{type(error).__name__}: {text}", lines) for ticket in (0, *self._routes)]
            self.engine.clear()  # ticket 0: log the failure even if nobody waits for the result
        self.seconds += time.perf_counter() - start
        self.steps += 1
        failed = [event for event in events if isinstance(event, Failure)]
        self.sampled_tokens += len(events) - len(failed)
        self.failed_steps = 0 if len(events) > len(failed) else self.failed_steps + bool(failed)
        if failed:
            self.failures += 1
            self.last_failure = failed[-1].reason
            self._log(failed)
        self._hand_on(events)

    def _hand_on(self, events: Sequence[Token | Failure]) -> None:
        news: dict[Sink, News] = {}
        for event in events:
            route = self._routes.get(event.ticket)
            if route is None:  # it was cancelled
                continue
            if isinstance(event, Failure):
                gained: list[Token] | Exception = ApiError(500, f"{FAILED}: {event.reason}")
            else:
                route.tokens.append(event)
                if route.whole and event.stop_reason is None:
                    continue
                gained, route.tokens = route.tokens, []
            if isinstance(event, Failure) or event.stop_reason is not None:
                del self._routes[event.ticket]
            news.setdefault(route.sink, []).append((route.index, gained))
        for sink, gains in news.items():
            sink(gains)

    def _log(self, failed: Sequence[Failure]) -> None:
        """Print one line for each place in the code that fails, because messages may differ only in numbers."""
        for key, failure in {failure.lines or failure.reason: failure for failure in failed}.items():
            if key not in self._logged:
                self._logged.add(key)
                where = f" ({failure.lines})" if failure.lines else ""
                print(f"A step failed: {failure.reason}{where}; /metrics counts how often", file=sys.stderr, flush=True)

    def _end(self) -> None:
        with self._lock:
            self._ended = True
        while not self._calls.empty():
            _, future = self._calls.get()
            if future.set_running_or_notify_cancel():
                future.set_exception(ServiceEnded())
        for route in self._routes.values():
            route.sink([(route.index, ServiceEnded())])
        self._routes.clear()


def _carry_out(function: Callable[[], Any], future: Future) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function())
    except Exception as error:
        future.set_exception(error)
        # The error refers to this frame: without the future in it, no reference cycle keeps the request in memory.
        del function, future


class Delta(NamedTuple):
    """A new part of a sample: text (no stop string or end of turn), tokens and, at the end, the finish reason."""

    index: int
    text: str
    tokens: list[Token]
    finish_reason: str | None
    stop: str | None


class Sample:
    """The text of one sample, updated with its new tokens."""

    def __init__(self, index: int, tokenizer: Tokenizer, stops: Sequence[str]) -> None:
        self.index = index
        self.finished = False
        self._text, self._stops = Detokenizer(tokenizer), StopStrings(stops)
        self._waiting: list[Token] = []

    def push(self, tokens: list[Token]) -> Delta | None:
        """Return the part to show after these new tokens, or None if they complete no text yet."""
        self._waiting += tokens
        reason, stop = tokens[-1].stop_reason, tokens[-1].stop_string
        ids = [token.id for token in tokens]
        if reason == "stop" and stop is None:
            ids.pop()  # the id that ends a sample is not part of its text
        text = self._stops.push(self._text.push(ids))
        self.finished = reason is not None
        if self.finished:
            text += self._stops.push(self._text.finish()) + self._stops.finish()
        elif not text:
            return None
        shown, self._waiting = self._waiting, []
        return Delta(self.index, text, shown, reason, stop)


class Generation:
    """The samples of one request. Used on the event loop; always call `close` at the end."""

    def __init__(
        self, service: Service, jobs: Sequence[Job], tokenizer: Tokenizer, stops: Sequence[str], streams: bool
    ) -> None:
        self.service, self.jobs, self._whole = service, jobs, not streams
        self.samples = [Sample(index, tokenizer, stops) for index in range(len(jobs))]
        self.sampled_tokens = 0
        self._loop = asyncio.get_running_loop()
        self._arrived: asyncio.Queue[News] = asyncio.Queue()

    async def start(self) -> None:
        """Send the jobs to the engine. Raises UserError if the engine refuses a job."""
        self._tickets = self.service.submit(self.jobs, self._sink, self._whole)
        await asyncio.wrap_future(self._tickets)

    async def deltas(self) -> AsyncIterator[Delta]:
        """Yield new parts of samples until all samples have ended. Raises the engine's errors."""
        unfinished = len(self.samples)
        while unfinished:
            for index, tokens in (await self._next()).items():
                delta = self.samples[index].push(tokens)
                if delta is not None:
                    self.sampled_tokens += len(delta.tokens)
                    unfinished -= delta.finish_reason is not None
                    yield delta

    async def _next(self) -> dict[int, list[Token]]:
        arrived = await self._arrived.get()
        while not self._arrived.empty():
            arrived += self._arrived.get_nowait()
        new: dict[int, list[Token]] = {}
        for index, tokens in arrived:
            if isinstance(tokens, Exception):
                raise tokens
            new.setdefault(index, []).extend(tokens)
        return new

    def close(self) -> None:
        if not all(sample.finished for sample in self.samples):
            self._tickets.add_done_callback(self._cancel)

    def _cancel(self, done: Future[list[int]]) -> None:
        if not done.cancelled() and done.exception() is None:
            self.service.cancel(done.result())

    def _sink(self, news: News) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._arrived.put_nowait, news)
