"""An orchestrator that is played by a test: it hands a real trainer the batches that a colocated run was trained on."""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import replace
from pathlib import Path

from hone.cli import call
from hone.config.parse import parse
from hone.config.rl import RLConfig
from hone.extensions.reproduce.execution import groups_from_rows
from hone.extensions.reproduce.records import Records
from hone.extensions.split.agreement import shared_values
from hone.extensions.split.config import TrainerRole
from hone.extensions.split.transport import FileTransport, Order, Result, Session
from hone.extensions.split.wire import to_arrays
from hone.loops.groups import trainable
from hone.runs.reader import Run

LIMIT = 600
"""Seconds after which the trainer counts as hung."""
CANARY = tuple(range(5, 25))


class Orchestrator:
    """The other end of the transport of `hone trainer @ RECORDED/config.toml FLAGS`."""

    def __init__(self, recorded: Path, path: Path, flags: tuple[str, ...] = ()) -> None:
        self.run, self.records = recorded, Records(Run(recorded))
        self.argv = ["@", str(recorded / "config.toml"), "--transport.path", str(path), *flags]
        self.config = parse(TrainerRole, self.argv, "trainer")
        self.transport = FileTransport(path, interrupt=self._check)
        self.alive = lambda: True

    def _check(self) -> None:
        assert self.alive(), "the trainer has ended"

    def open(self, name: str, start: int = 0, **changes: object) -> Session:
        checkpoint = str(self.run / "checkpoints" / f"step_{start}") if start else None
        temperature = self.config.orchestrator.sampling.temperature
        with contextlib.chdir(self.run.parent):
            shared = shared_values(self.config)
        session = Session(name, start, checkpoint, str(self.run), shared, temperature, CANARY)
        session = replace(session, **changes)
        self.transport.open(session)
        return session

    def put(self, step: int, save: Path | None = None) -> None:
        """The recorded batch."""
        batch = trainable(groups_from_rows(self.records.rows(step), RLConfig(), 10**6), self.config)
        tokens = sum(map(len, batch.sequences))
        self.transport.put(Order(step, "batch", to_arrays(batch), save and str(save), tokens))

    def result(self, version: int) -> Result:
        found = self.transport.result(version)
        assert found is not None
        return found

    @contextlib.contextmanager
    def trainer(self, code: int = 0):
        """`hone trainer` in a thread, which must come to its end."""
        codes: list[int] = []
        thread = threading.Thread(target=lambda: codes.append(call("trainer", self.argv, "trainer")), daemon=True)
        with contextlib.chdir(self.run.parent):
            thread.start()
            self.alive = lambda: thread.is_alive() or bool(os.listdir(self.transport.path))
            yield
            thread.join(LIMIT)
        assert codes == [code]
