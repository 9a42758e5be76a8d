"""The trainer in processes of its own, as the orchestrator sees it: batches go there, versions of weights come back.

trainer = RemoteTrainer(transport, publisher, checkpoints, start)
trainer.put(3, sequences, save=False)
published = trainer.collect()               # version 4, which the server has now
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hone.orchestrator.publishing import LOOK, Published, Publisher
from hone.runs.checkpoint import Checkpoints
from hone.trainer.packing import Sequence as Packed
from hone.trainer.wire import to_arrays
from hone.transport import FileTransport, Order

FAREWELL = 10.0
"""Seconds that a trainer has to hear that the session ends."""


class RemoteTrainer:
    """`version` is that of the last result that was collected. `alive` is called in waiting, and may raise."""

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
        self.fingerprints: dict[int, str] = {}
        """Of the versions that were collected last."""
        self.alive = alive
        self._parts: dict[int, Path] = {}
        self._ended = False

    def put(self, step: int, sequences: Sequence[Packed], save: bool) -> float:
        """Hands over the batch of a step; with `save` the trainer also writes its part of the checkpoint after it.

        Returns the seconds that it waited for room.
        """
        self._put = step + 1
        folder = self._part(step + 1) if save else None
        tokens = sum(len(sequence) for sequence in sequences)
        return self.transport.put(Order(step, "batch", to_arrays(sequences), folder, tokens))

    @property
    def ready(self) -> bool:
        """Whether `collect` would not wait."""
        return self.publisher.ready

    def collect(self, interrupt: Callable[[], None] = lambda: None) -> Published:
        """The next version, once the server has it. The first is the one that the session begins with.

        `interrupt` is called in waiting, as `alive` is.
        """

        def look() -> None:
            self.alive()
            interrupt()

        published = self.publisher.collect(look)
        self.version = published.result.version
        self.fingerprints[self.version] = published.result.fingerprint
        self.fingerprints.pop(self.version - 2, None)
        return published

    def fingerprint(self) -> str:
        """That of `version`."""
        return self.fingerprints[self.version]

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
