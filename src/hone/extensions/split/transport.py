"""Messages between the processes of a run in mode split, through a shared folder. Needs no torch.

    TRANSPORT/session.npz                             the current session, with its id
    TRANSPORT/hello.npz                               the current trainer
    TRANSPORT/session-<id>/order_N.npz                written by `put`, removed by `order`
    TRANSPORT/session-<id>/result_N.npz               written by `put_result`, removed by `result`
    TRANSPORT/weights/session-<id>/step_N/            weights in Hugging Face layout, for servers
    MEMORY/session-<id>/step_N/                       weights in memory instead, if all processes share a machine
    MEMORY/session-<id>/spare/                        an older version, to be overwritten

Each message is a file in NumPy's `.npz` format, which has checksums. The file holds arrays, and the other fields as
JSON; it has one writer and one reader. The writer renames the complete file, so no locks are needed. Files are not
flushed to the disk, as only running processes need them. The next session removes the files of a killed process.

On NFS a rename may be seen late, and a removed file may be seen for a while. So a reader first lists the folder (which
refreshes NFS), and takes a system error or a damaged file for "not yet".
"""

from __future__ import annotations

import io
import json
import os
import shutil
import socket
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from hone.config.rl import RLConfig
from hone.config.shared import transport_weights
from hone.errors import UserError
from hone.runs.files import NEW_PREFIX
from hone.runs.signals import explain, is_out_of_memory

T = TypeVar("T")
Record = TypeVar("Record", "Session", "Hello", "Order", "Result")

SESSION, HELLO = "session.npz", "hello.npz"
SPARE = "spare"
PREFIX = "session-"
"""Prefix of the folders of sessions. A new session removes the folders of older sessions."""
PATIENCE = 30.0
"""Seconds that weights may appear later than their result."""
SHORTEST, LONGEST, SHARE = 0.001, 0.05, 0.02
"""Pause between checks in seconds: SHARE times the seconds waited, at least SHORTEST and at most LONGEST."""
_FACTS = "facts"


@dataclass(frozen=True)
class Session:
    """One orchestrator process, described for the trainer. The trainer starts anew for each session.

    `start` is the first version: the version in `checkpoint` (a folder with the trainer's part), or 0, the initial
    model. `shared` are keys and values that must be equal in both roles. `memory` is a folder in memory for weights.

    `temperature` is the rollouts' temperature. Rollouts may be `lag` versions old (`max_async_level`). Every result has
    the logprobs of the token ids in `canary`. If the KL is in the reward, the trainer computes the advantages, from
    `rollouts` rollouts per prompt and the config section `advantage`.
    """

    id: str
    start: int
    checkpoint: str | None
    output_dir: str
    shared: dict[str, Any]
    temperature: float
    canary: tuple[int, ...]
    lag: int = 0
    memory: str | None = None
    rollouts: int = 2
    advantage: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Hello:
    """A running trainer's description, written before any session.

    `fingerprint` and `parameters` describe the initial model. Rank 0 is process `pid` on `host`. `settings` is the
    section `trainer` of the trainer's config. `digests` has digests of the adapter, if any, and of the user's
    functions.
    """

    id: str
    fingerprint: str
    parameters: int
    ranks: int
    device: str
    threads: int
    host: str
    pid: int
    settings: dict[str, Any] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Order:
    """The trainer's task at version `step`: make an update on the batch in `arrays`, or end the session.

    `save` is an existing folder for the trainer's part of a checkpoint: of version `step` + 1 after a batch, of version
    `step` at the end of the session. `tokens` is the number of tokens in the batch.
    """

    step: int
    kind: Literal["batch", "end"]
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    save: str | None = None
    tokens: int = 0


@dataclass(frozen=True)
class Result:
    """Reports that the weights of `version` are written. A session's first result is for its `start`, without metrics.

    `canary` are logprobs of the session's canary tokens except the first, at the session's temperature. `seconds` has
    the time of each activity: "train", "wait" (idle, before the order), "publish", "save". `saved` is true if the
    folder `save` of the order is written. `arrays` are statistics of the step's tokens (`TokenStats`), if recorded.
    """

    version: int
    metrics: dict[str, float]
    fingerprint: str
    canary: tuple[float, ...]
    seconds: dict[str, float]
    saved: bool = False
    arrays: dict[str, np.ndarray] = field(default_factory=dict)


def open_transport(config: RLConfig) -> FileTransport:
    return FileTransport(config.transport_path, config.transport.max_tokens)


class FileTransport:
    """One role's access to the transport. `max_tokens` limits the tokens of waiting batches.

    `interrupt` runs at each check of a method that waits, and may raise. All methods raise UserError if the folder is
    read-only, full, removed, or in use by another run.
    """

    def __init__(self, path: Path, max_tokens: int = 2**24, interrupt: Callable[[], None] = lambda: None) -> None:
        self.path = path.absolute()
        self.weights_root = transport_weights(self.path)
        self.max_tokens, self.interrupt = max_tokens, interrupt
        self._session: Session | None = None
        self._hello: Hello | None = None
        self._put: dict[int, int] = {}
        """Number of tokens, by step, of each batch that may still wait for the trainer."""
        if self.weights_root.is_symlink():
            raise UserError(
                f"{self.weights_root} is a link, and hone removes old weights there: give another folder with "
                "--transport.path"
            )
        with self._explaining():
            self.weights_root.mkdir(parents=True, exist_ok=True)

    # The orchestrator's end

    def open(self, session: Session) -> None:
        self._session, self._put = session, {}
        with self._explaining():
            for folder in (self._folder, *self._weight_folders):
                folder.mkdir(parents=True, exist_ok=True)
            self._write(self.path / SESSION, session)
        for root in (self.path, *(folder.parent for folder in self._weight_folders)):
            for name in names(root):
                if name.startswith(PREFIX) and name != self._folder.name:
                    remove(root / name)

    def hello(self, timeout: float | None = None) -> Hello | None:
        """Return the running trainer's hello, or None if none runs within `timeout` seconds (None: wait forever)."""

        def look() -> Hello | None:
            hello = self._read(self.path / HELLO, Hello)
            return hello if hello and _lives(hello) else None

        return self._poll(look, timeout)

    def put(self, order: Order) -> float:
        """Send an order to the trainer, once there is room for its batch; return the seconds waited.

        There is room if no batch waits, or if the waiting batches and this one have at most `max_tokens` tokens.
        """
        began = time.perf_counter()

        def room() -> bool | None:
            self._check_ours()
            batches, tokens = self.waiting()
            return order.kind == "end" or not batches or tokens + order.tokens <= self.max_tokens or None

        self._poll(room)
        waited = time.perf_counter() - began
        with self._explaining():
            self._write(self._order_file(order.step), order)
        if order.kind == "batch":
            self._put[order.step] = order.tokens
        return waited

    def waiting(self) -> tuple[int, int]:
        """Count batches that the trainer has not received, and their tokens."""
        there = set(names(self._folder))
        self._put = {step: tokens for step, tokens in self._put.items() if self._order_file(step).name in there}
        return len(self._put), sum(self._put.values())

    def result(self, version: int, wait: bool = True) -> Result | None:
        """Remove and return the result of `version`. If `wait` is false, return None while there is no result.

        The version at which the orchestrator ends the session gets a second result.
        """

        def look() -> Result | None:
            self._check_ours()
            return self._read(self._result_file(version), Result, take=True)

        return self._poll(look, None if wait else 0)

    def weights(self, version: int) -> Path:
        """Return the folder of the weights of `version`, after its result. Raises UserError if no folder appears."""
        name = f"step_{version}"
        found = self._poll(lambda: next((f / name for f in self._weight_folders if name in names(f)), None), PATIENCE)
        if found is None:
            raise UserError(f"the weights in {self._disk / name} are gone: another program removed them")
        return found

    def drop(self, version: int, retained: int | None = None) -> None:
        """Remove the weights of `version` and older versions, except version `retained`.

        In memory one folder becomes `spare`: the next version overwrites its files. The caller guarantees that no
        server reads these files.
        """
        for folder in self._weight_folders:
            for name in names(folder):
                if name.startswith("step_") and retained != int(name.removeprefix("step_")) <= version:
                    if folder == self._memory:
                        with suppress(OSError):  # there is a spare one
                            (folder / name).rename(folder / SPARE)
                    remove(folder / name)

    def close(self) -> None:
        """End the session: remove its files. Another session's files and the trainer's hello stay."""
        if self._session is None:
            return
        if not self._replaced():
            remove(self.path / SESSION)
        for folder in (self._folder, *self._weight_folders):
            remove(folder)
        self._remove_empty()

    # The trainer's end

    def say_hello(self, hello: Hello) -> None:
        with self._explaining():
            self.weights_root.mkdir(parents=True, exist_ok=True)
            self._hello = hello  # before others can read it
            self._write(self.path / HELLO, hello)

    def session(self, other_than: str | None = None, wait: bool = True) -> Session | None:
        """Wait for a session with another id than `other_than`, and return it. If `wait` is false, do not wait: return
        None if there is no such session. The trainer's other methods then use the session."""

        def look() -> Session | None:
            self._check_hello()
            session = self._read(self.path / SESSION, Session)
            return session if session is not None and session.id != other_than else None

        session = self._poll(look, None if wait else 0)
        self._session = session or self._session
        return session

    def order(self, step: int) -> Order | None:
        """Wait for the order at `step`; remove and return it. Return None if another session has started."""

        def look() -> Order | bool | None:
            self._check_hello()
            return self._replaced() or self._read(self._order_file(step), Order, take=True)

        order = self._poll(look)
        return order if isinstance(order, Order) else None

    @contextmanager
    def weights_dir(self, version: int, reserve: Callable[[Path], None] | None = None) -> Iterator[tuple[Path, bool]]:
        """Yield a folder for weights, and True if it is in memory (`reserve` found room). After the block, rename the
        folder to publish it."""
        name, memory = f"{NEW_PREFIX}step_{version}", self._memory
        fresh = self._disk / name
        try:
            with self._explaining(may_be_over=True):
                remove(fresh)
                if reserve is not None and memory is not None and _reserved(memory, name, reserve):
                    fresh = memory / name
                else:
                    fresh.mkdir(parents=True)
                yield fresh, fresh.parent == memory
                folder = fresh.with_name(f"step_{version}")
                remove(folder)
                fresh.rename(folder)
        finally:
            remove(fresh)
            if self._is_over():
                for folder in self._weight_folders:
                    remove(folder)

    def put_result(self, result: Result) -> None:
        """Send a result. The caller writes the weights first."""
        with self._explaining(may_be_over=True):
            self._write(self._result_file(result.version), result)

    def leave(self) -> None:
        hello, self._hello = self._hello, None
        current = self._read(self.path / HELLO, Hello)
        if hello and current and current.id == hello.id:
            remove(self.path / HELLO)
        self._remove_empty()

    # Both ends

    def _read(self, path: Path, kind: type[Record], take: bool = False) -> Record | None:
        """Return a record; if `take` is true, remove its file. Return None if the file is missing or incomplete."""
        if path.name not in names(path.parent):
            return None
        try:
            record = decode(kind, path)
        except (OSError, ValueError):  # removed meanwhile, or a stale NFS handle
            return None
        if take:
            remove(path)
        return record

    def _write(self, path: Path, record: Session | Hello | Order | Result) -> None:
        temporary = path.with_name(f"{NEW_PREFIX}{path.name}")
        temporary.write_bytes(encode(record))
        os.replace(temporary, path)

    @property
    def _folder(self) -> Path:
        assert self._session is not None, "there is no session yet"
        return self.path / f"{PREFIX}{self._session.id}"

    @property
    def _disk(self) -> Path:
        return self.weights_root / self._folder.name

    @property
    def _memory(self) -> Path | None:
        """Folder of this session's weights in memory; None if all weights go to disk."""
        assert self._session is not None
        return Path(self._session.memory) / self._folder.name if self._session.memory else None

    @property
    def _weight_folders(self) -> list[Path]:
        return [self._disk] if self._memory is None else [self._memory, self._disk]

    def _order_file(self, step: int) -> Path:
        return self._folder / f"order_{step}.npz"

    def _result_file(self, version: int) -> Path:
        return self._folder / f"result_{version}.npz"

    def _poll(self, look: Callable[[], T | None], timeout: float | None = None) -> T | None:
        """Call `look()` until it returns a value; return the value, or None after `timeout` seconds (None: never)."""
        began = time.monotonic()
        while True:
            self.interrupt()
            if (value := look()) is not None:
                return value
            waited = time.monotonic() - began
            if timeout is not None and waited >= timeout:
                return None
            pause = min(max(SHARE * waited, SHORTEST), LONGEST)
            time.sleep(pause if timeout is None else min(pause, timeout - waited))

    def _replaced(self) -> bool:
        current = self._read(self.path / SESSION, Session)
        return bool(current and self._session and current.id != self._session.id)

    def _is_over(self) -> bool:
        return self._replaced() or not self._folder.exists()

    def _check_ours(self) -> None:
        if self._replaced():
            raise UserError(f"another run has begun to use {self.path}: give every run its own --transport.path")

    def _check_hello(self) -> None:
        """Rewrite this trainer's hello if an older run removed it. Raises UserError if another trainer's hello is
        there."""
        if self._hello is None:
            return
        current = self._read(self.path / HELLO, Hello)
        if HELLO not in names(self.path):
            self.say_hello(self._hello)
        elif current is not None and current.id != self._hello.id:
            raise UserError(
                f"another trainer (process {current.pid} on {current.host}) has begun to use {self.path}: a run has "
                "one trainer; give another run its own --transport.path"
            )

    def _remove_empty(self) -> None:
        for folder in (self.weights_root, self.path):
            with suppress(OSError):
                folder.rmdir()

    @contextmanager
    def _explaining(self, may_be_over: bool = False) -> Iterator[None]:
        """Turn system errors in the block into UserError. If `may_be_over`, ignore errors after the session's end."""
        try:
            yield
        except Exception as error:
            if may_be_over and self._is_over():
                return
            fault = None if is_out_of_memory(error) else explain(error, self.path)
            if fault is None and isinstance(error, OSError):
                fault = f"{error.strerror} ({error.filename or self.path})", "start the run again"
            if fault is None:
                raise
            raise UserError(
                f"the transport folder {self.path} can't be used, {fault[0]}: {fault[1]}, or give another "
                "folder with --transport.path"
            ) from error


def _reserved(memory: Path, name: str, reserve: Callable[[Path], None]) -> bool:
    """Make the folder `memory / name`, or rename the spare one. Return True if `reserve` finds room."""
    try:
        with suppress(OSError):  # there is none
            (memory / SPARE).rename(memory / name)
        reserve(memory / name)
    except OSError:
        remove(memory / name)
        return False
    return True


def _lives(hello: Hello) -> bool:
    """Return False if the trainer ran on this machine and has ended; else True."""
    try:
        if hello.host == socket.gethostname():
            os.kill(hello.pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


def names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink()


def encode(record: Session | Hello | Order | Result) -> bytes:
    """Return the bytes of a record's file. Floats stay exact, also NaN and infinities."""
    facts = dict(vars(record))
    arrays: dict[str, Any] = facts.pop("arrays", {})
    text = json.dumps(facts, default=lambda value: value.item() if isinstance(value, np.generic) else str(value))
    buffer = io.BytesIO()
    np.savez(buffer, **{_FACTS: np.array(text)}, **arrays)
    return buffer.getvalue()


def decode(kind: type[Record], path: Path) -> Record:
    """Read a record from a file, without fields that this version doesn't know. Raises ValueError if it is damaged."""
    try:
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
        facts = json.loads(str(arrays.pop(_FACTS)))
        known: dict[str, Any] = {f.name: facts[f.name] for f in fields(kind) if f.name in facts}
        if "canary" in known:
            known["canary"] = tuple(known["canary"])
        if arrays:
            known["arrays"] = arrays
        return kind(**known)
    except (zipfile.BadZipFile, EOFError, KeyError, TypeError) as error:
        raise ValueError(f"not a {kind.__name__.lower()}: {error}") from None
