"""The orchestrator's side of a trainer in other processes: sends batches, receives versions of weights.

A thread gives each new version to the servers while they sample. It receives results in order, makes the servers load
the weights, and asks them for the logprobs of the canary, a fixed text. The loop collects finished versions.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

import numpy as np
import torch

from hone.algorithms.gap import Gap
from hone.extensions.split.transport import FileTransport, Order, Result, Session
from hone.extensions.split.wire import to_arrays
from hone.loops.remote import ServerPolicy
from hone.loops.shared_memory import NO_ROOM, disk_message
from hone.loops.updates import Update, Updates
from hone.model.hf import copy_weights
from hone.runs.checkpoint import Tensors
from hone.runs.saving import Saver
from hone.runs.signals import StepAbandoned
from hone.runs.writer import RunWriter
from hone.trainer.packing import Batch
from hone.trainer.token_stats import TokenStats

LOOK = 0.02
"""Seconds between checks of another thread or process."""
FAREWELL = 10.0
"""Seconds that a trainer may take to confirm the session's end."""


@dataclass(frozen=True)
class Published:
    """A version for servers to load. `scores`: each server's canary logprobs, or None if servers did not load it."""

    result: Result
    scores: Sequence[Sequence[float]] | None = None
    seconds: float = 0.0
    error: Exception | None = None


class _Closed(Exception):
    """Ends `_publish_all` when the session is closed."""


class RemoteTrainer(Updates):
    """`Updates` by a trainer in other processes; the first `take` returns the version that `session` begins with.

    `alive` runs at every check while waiting, and may raise. After `saver.stop` abandons a step, or a server fails,
    servers get no more weights, but `take` still returns the trainer's later versions. The trainer writes its part of
    each checkpoint that `saver` wants. If `holds(version)` is true, the servers keep that version until `release`, so
    that it can be evaluated.
    """

    saver: Saver
    plans = True

    def __init__(
        self,
        transport: FileTransport,
        session: Session,
        policy: ServerPolicy,
        run: RunWriter,
        max_steps: int,
        holds: Callable[[int], bool] = lambda version: False,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        self.transport, self.session, self.policy, self.run = transport, session, policy, run
        self.max_steps, self.holds, self.alive = max_steps, holds, alive
        self.version = self._put = session.start
        self.retained: int | None = None
        """The version that is being saved; its weights are not removed."""
        self.published: Published | None = None
        """Result of publishing `version`."""
        self._released = session.start - 1
        self._served = session.start
        """The version that the servers have. They map its files: never overwrite these files."""
        self._quiet = self._closed = self._ended = self._by_disk = False
        self._done: SimpleQueue[Published | BaseException] = SimpleQueue()
        self._thread = threading.Thread(target=self._publish_all, name="publisher", daemon=True)
        self._waits: deque[float] = deque()
        self._weights = ""
        self._parts: dict[int, Path] = {}
        transport.interrupt = self._interrupt

    def start(self, saver: Saver) -> None:
        self.saver = saver
        self._thread.start()
        self.take()

    def put(self, step: int, batch: Batch) -> None:
        with self.run.phase("put"):
            self._put = step + 1
            saves = self.saver.wants_checkpoint(step + 1) and step + 1 < self.max_steps
            folder = self._part(step + 1) if saves else None
            tokens = sum(len(sequence) for sequence in batch.sequences)
            self._waits.append(self.transport.put(Order(step, "batch", to_arrays(batch), folder, tokens)))

    @property
    def ready(self) -> bool:
        return not self._done.empty()

    def take(self) -> Update:
        """Return the next update, once the servers have its weights."""
        began, weights = time.perf_counter(), self._weights
        with self.run.phase("wait"):
            published = self._collect()
        waited, result = time.perf_counter() - began, published.result
        if self.published is not None:
            waited += self._waits.popleft()  # for room
        self.version, self._weights, self.published = result.version, result.fingerprint, published
        self.transport.drop(min(self.version, self._served) - 1, self.retained)
        timings = {f"time/{name}": value for name, value in result.seconds.items() if name != "wait"}
        timings |= {"time/update": published.seconds, "idle/orchestrator": waited}
        timings["idle/trainer"] = result.seconds.get("wait", 0.0)
        tokens = TokenStats(**result.arrays) if result.arrays else None
        return Update(result.metrics, weights, timings, tokens)

    def publish(self, version: int) -> Gap | None:
        """Return the largest gap between a server's and the trainer's canary logprobs; None if no server gave any."""
        self._note_servers()
        published = self.published
        assert published is not None and published.result.version == version
        if published.error is not None:
            raise published.error
        trained = np.asarray(published.result.canary)
        gaps = [Gap.of(np.asarray(scores) - trained) for scores in published.scores or () if len(scores)]
        return Gap.worst(gaps) if gaps else None

    def release(self, version: int) -> None:
        self._released = version

    def give_up(self) -> None:
        self._quiet = True

    def snapshot(self, checkpoint: bool) -> tuple[Tensors, Path | None]:
        self.retained = self.version
        return {}, self.part(self.version) if checkpoint else None

    def export(self, folder: Path, version: int, parameters: Mapping[str, torch.Tensor]) -> None:
        source, memory = self.transport.weights(version), self.session.memory
        if memory is not None and source.is_relative_to(memory):
            copy_weights(source, folder)
        else:
            link_files(source, folder)
        if self.retained == version:
            self.retained = None

    def fingerprint(self) -> str:
        return self._weights

    def part(self, version: int) -> Path:
        """Return the folder with the trainer's part of the checkpoint of the current version, `version`.

        If no order asked for this part, end the session: then the trainer writes the part, and waits for a new session.
        """
        if version not in self._parts:
            assert self._put == version, "no batch is on its way"
            self._end(version, self._part(version))
            result = self.transport.result(version)
            assert result is not None and result.saved, "the trainer has written it"
        return self._parts.pop(version)

    def close(self) -> None:
        """End the thread and the session in any state. A trainer that waits for a batch gets an "end" order."""
        self._quiet = self._closed = True
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        self._note_servers()
        if self._ended or self._put > self.version:
            return
        self._end(self.version, None)
        deadline = time.monotonic() + FAREWELL
        while self.transport.result(self.version, wait=False) is None and time.monotonic() < deadline:
            time.sleep(LOOK)

    def _note_servers(self) -> None:
        while self.policy.fleet.changes:
            self.run.event("server", self.policy.version, **self.policy.fleet.changes.pop(0))

    def _part(self, version: int) -> str:
        folder = self._parts[version] = self.run.checkpoints.part(version)
        return str(folder.absolute())

    def _end(self, version: int, folder: str | None) -> None:
        self._ended = True
        self.transport.put(Order(version, "end", save=folder))

    def _collect(self) -> Published:
        while True:
            try:
                published = self._done.get(timeout=LOOK)
            except Empty:
                self.alive()
                try:
                    self.saver.stop.check()
                except StepAbandoned:
                    self._quiet = True
                continue
            if isinstance(published, BaseException):
                raise published
            return published

    def _interrupt(self) -> None:
        """Called repeatedly during waits. Raises if the trainer is gone or, in `_thread`, if the session is closed."""
        if not self._closed:
            self.alive()
        elif threading.current_thread() is self._thread:
            raise _Closed

    def _publish_all(self) -> None:
        version = self.session.start
        try:
            while True:
                result = self.transport.result(version)
                assert result is not None, "it was waited for"
                self._done.put(self._publish(result))
                while self.holds(version) and version > self._released and not self._quiet:
                    time.sleep(LOOK)
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
            folder, memory = self.transport.weights(result.version), self.session.memory
            if memory is not None and not folder.is_relative_to(memory) and not self._by_disk:
                self._by_disk = True
                self.run.display.message(disk_message(NO_ROOM))
            self.policy.load(result.version, folder)
            self._served = result.version
            scores = self.policy.scores_of_each(self.session.canary, self.session.temperature)
        except Exception as error:
            was_quiet, self._quiet = self._quiet, True
            return Published(result, error=None if was_quiet else error)
        return Published(result, scores, time.perf_counter() - began)


def link_files(source: Path, folder: Path) -> None:
    """Hard-link all files below `source` into `folder`; copy them where links are impossible."""

    def link(file: str, target: str) -> None:
        try:
            os.link(file, target)
        except OSError:  # another file system, or no links
            shutil.copyfile(file, target)

    shutil.copytree(source, folder, copy_function=link, dirs_exist_ok=True)
