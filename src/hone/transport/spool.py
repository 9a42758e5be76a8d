"""The transport through a folder.

    TRANSPORT/session.json                            the session of now; its id names what belongs to it
    TRANSPORT/hello.json                              the trainer of now
    TRANSPORT/<session>/orders/step_N.safetensors     from put to order, which takes it away
    TRANSPORT/<session>/results/version_N.json        from put_result to result, which takes it away
    TRANSPORT/<session>/results/version_N.safetensors from put_result to token_stats, which takes it away
    TRANSPORT/weights/<session>/step_N/               Hugging Face layout, as servers take them

Each file has one writer and one reader, and appears whole, by a rename; nobody locks. On NFS a rename may be seen late,
a removed file may be seen for a while, and what is there may be torn after a crash of the server. So a reader lists the
folder before it opens a file in it (which asks the server anew), takes any error of the system for "not yet", and gives
what is damaged some seconds to become whole. Nothing is flushed to the disk: the folder lives as long as the processes,
and a run goes on from checkpoints. Who is killed leaves what the next session removes.
"""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import numpy as np

from hone.config.shared import transport_weights
from hone.errors import UserError
from hone.runs.files import FILE_MODE, NEW_PREFIX, TMP_PREFIX
from hone.runs.signals import explain, is_out_of_memory
from hone.transport.records import (
    Hello,
    Order,
    Record,
    Result,
    Session,
    from_json,
    read_arrays,
    read_order,
    to_json,
    write_arrays,
    write_order,
)

T = TypeVar("T")

SESSION, HELLO = "session.json", "hello.json"
MARK = "hone-session.json"
"""In a folder that belongs to a session, and may be removed with it."""
MAX_TOKENS = 2**24
HELLO_SECONDS = 1.0
"""How often a trainer that waits looks whether its hello is there."""
PATIENCE = 30.0
"""Seconds that a damaged file gets to become whole."""
SHORTEST, LONGEST, SHARE = 0.001, 0.05, 0.02
"""Seconds between two looks: this share of the time waited so far, between shortest and longest."""


class FileTransport:
    """One role's end of it. `max_tokens` bounds the batches that wait in it, counted by `Order.tokens`.

    `interrupt` is called whenever a method that waits looks again, and may raise. All methods raise UserError if the
    folder can't be used: not written, full, removed, or in use by another run.
    """

    def __init__(self, path: Path, max_tokens: int = MAX_TOKENS, interrupt: Callable[[], None] = lambda: None) -> None:
        self.path = path.absolute()
        self.weights_root = transport_weights(self.path)
        self.max_tokens, self.interrupt = max_tokens, interrupt
        self._session: Session | None = None
        self._hello: Hello | None = None
        self._put: dict[int, int] = {}  # tokens of the batches that may still wait, by step
        self._hello_seen = 0.0
        self._damaged: dict[Path, float] = {}  # since when a file is
        with self._explaining():
            self.weights_root.mkdir(parents=True, exist_ok=True)

    # The orchestrator's end

    def open(self, session: Session) -> None:
        """Begin a session, and remove what older ones left."""
        self._session, self._put = session, {}
        with self._explaining():
            for folder in (self._folder, self._weights):
                folder.mkdir(parents=True, exist_ok=True)
                write(folder / MARK, to_json(session))
            for name in ("orders", "results"):
                (self._folder / name).mkdir(exist_ok=True)
            write(self.path / SESSION, to_json(session))
        for root in (self.path, self.weights_root):
            for name in names(root):
                left = self._record(root / name / MARK, Session)
                if left is not None and left.id == name != session.id:
                    remove(root / name)

    def hello(self, timeout: float | None = None) -> Hello | None:
        """Return the trainer that is there now; None if none is after `timeout` seconds (None: wait for ever).

        One that was killed on this machine is not there, though its hello is.
        """

        def look() -> Hello | None:
            hello = self._record(self.path / HELLO, Hello)
            return hello if hello is not None and _lives(hello) else None

        return self._poll(look, timeout)

    def put(self, order: Order) -> float:
        """Hand an order to the trainer; returns the seconds that it waited until there was room for the batch.

        There is room if no batch waits, or those that do and this one have no more than `max_tokens` tokens.
        """
        began = time.perf_counter()

        def room() -> bool | None:
            self._check_ours()
            batches, tokens = self.waiting()
            return order.kind == "end" or not batches or tokens + order.tokens <= self.max_tokens or None

        self._poll(room)
        waited = time.perf_counter() - began
        with self._explaining():
            write(self._order_file(order.step), write_order(order))
        self._put.pop(order.step, None)
        if order.kind == "batch":
            self._put[order.step] = order.tokens
        return waited

    def waiting(self) -> tuple[int, int]:
        """Count the batches that the trainer has not taken yet, and their tokens."""
        there = set(names(self._folder / "orders"))
        self._put = {step: tokens for step, tokens in self._put.items() if self._order_file(step).name in there}
        return len(self._put), sum(self._put.values())

    def result(self, version: int, wait: bool = True) -> Result | None:
        """Take the trainer's result of `version`; None if it isn't there and not to be waited for.

        The weights of that version are there then. After an order to end comes another one of its version.
        """
        path = self._result_file(version)

        def look() -> Result | None:
            self._check_ours()
            return self._record(path, Result)

        result = self._poll(look, None if wait else 0)
        if result is not None:
            remove(path)
        return result

    def token_stats(self, version: int) -> dict[str, np.ndarray] | None:
        """Take what came with a result that says so about its tokens; None if it doesn't come to be seen here."""
        path = self._result_file(version).with_suffix(".safetensors")
        stats = self._poll(lambda: self._read(path, read_arrays), PATIENCE)
        remove(path)
        return None if stats is None else stats[0]

    def weights(self, version: int) -> Path:
        """Return the weights of a version whose result was there. UserError if they don't come to be seen here."""
        folder = self._weights / f"step_{version}"
        if not self._poll(lambda: folder.name in names(folder.parent) or None, PATIENCE):
            raise UserError(f"the weights in {folder} are gone: somebody else removed them")
        return folder

    def drop(self, version: int) -> None:
        """Remove the weights of `version` and of those before it."""
        self._remove_weights(lambda old: old <= version)

    def close(self) -> None:
        """End the run: remove everything of this session. Another session, and its trainer, are left alone."""
        if self._session is None:
            return
        remove(self._folder)
        remove(self._weights)
        if not self._replaced():
            remove(self.path / SESSION)
            remove(self.path / HELLO)  # a trainer that lives on says it again
        self._remove_empty()

    # The trainer's end

    def say_hello(self, hello: Hello) -> None:
        """Tell that a trainer is there."""
        with self._explaining():
            self.weights_root.mkdir(parents=True, exist_ok=True)
            self._hello = hello  # before it can be read: `leave` takes it away, however soon it is called
            write(self.path / HELLO, to_json(hello))

    def session(self, other_than: str | None = None, wait: bool = True) -> Session | None:
        """Return the session of now, if its id isn't `other_than`; None if there is none and it is not to be waited
        for. From here on it is the one that the trainer's other methods are about.
        """

        def look() -> Session | None:
            self._check_hello()
            session = self._record(self.path / SESSION, Session)
            return session if session is not None and session.id != other_than else None

        session = self._poll(look, None if wait else 0)
        self._session = session or self._session
        return session

    def order(self, step: int) -> Order | None:
        """Wait for the order at `step`, and take it away; None once there is another session."""
        path = self._order_file(step)

        def look() -> Order | bool | None:
            self._check_hello()
            return self._replaced() or self._read(path, read_order)

        order = self._poll(look)
        if not isinstance(order, Order):
            return None
        remove(path)
        return order

    @contextmanager
    def weights_dir(self, version: int) -> Iterator[Path]:
        """A folder to write the weights of `version` to; it is there for others once the block has ended.

        What fails because the session was ended meanwhile is passed over.
        """
        folder = self._weights / f"step_{version}"
        fresh = folder.with_name(f"{NEW_PREFIX}{folder.name}")
        try:
            with self._explaining():
                remove(fresh)
                fresh.mkdir(parents=True)
                yield fresh
                for file in fresh.iterdir():
                    file.chmod(FILE_MODE)  # safetensors makes files that only their owner can read
                remove(folder)
                fresh.rename(folder)
        except BaseException as error:
            remove(fresh)
            if not isinstance(error, Exception) or not self._is_over():
                raise
        if self._is_over():
            remove(self._weights)

    def put_result(self, result: Result, token_stats: dict[str, np.ndarray] | None = None) -> None:
        """Tell what became of an order, after its weights were written."""
        path = self._result_file(result.version)
        assert result.tokens == (token_stats is not None)
        try:
            with self._explaining():
                if token_stats is not None:
                    write(path.with_suffix(".safetensors"), write_arrays(token_stats))
                write(path, to_json(result))
        except UserError:
            if not self._is_over():
                raise

    def keep(self, versions: Collection[int]) -> None:
        """Remove the weights of other versions than these, but for those whose result was not taken yet."""
        untaken = set(names(self._folder / "results"))
        self._remove_weights(lambda old: old not in versions and self._result_file(old).name not in untaken)

    def leave(self) -> None:
        """End the trainer: take its hello away."""
        hello, self._hello = self._hello, None
        current = self._record(self.path / HELLO, Hello)
        if hello is not None and current is not None and current.id == hello.id:
            remove(self.path / HELLO)
        self._remove_empty()

    # What both ends share

    @property
    def _opened(self) -> Session:
        assert self._session is not None, "there is no session yet"
        return self._session

    @property
    def _folder(self) -> Path:
        return self.path / self._opened.id

    @property
    def _weights(self) -> Path:
        return self.weights_root / self._opened.id

    def _order_file(self, step: int) -> Path:
        return self._folder / "orders" / f"step_{step}.safetensors"

    def _result_file(self, version: int) -> Path:
        return self._folder / "results" / f"version_{version}.json"

    def _record(self, path: Path, kind: type[Record]) -> Record | None:
        return self._read(path, lambda file: from_json(kind, file.read_bytes()))

    def _read(self, path: Path, parse: Callable[[Path], T]) -> T | None:
        """Parse a file; None if it isn't there yet, or not whole yet (ValueError). UserError if it stays damaged."""
        if path.name not in names(path.parent):
            self._damaged.pop(path, None)
            return None
        try:
            value = parse(path)
        except OSError:  # removed meanwhile, or the server's handle of it is stale
            return None
        except ValueError as error:
            if time.monotonic() - self._damaged.setdefault(path, time.monotonic()) > PATIENCE:
                raise UserError(
                    f"{path} is damaged ({error}): check the file system, then start the run's processes again"
                ) from None
            return None
        self._damaged.pop(path, None)
        return value

    def _poll(self, look: Callable[[], T | None], timeout: float | None = None) -> T | None:
        """Return what `look()` finds, asked again and again; None if nothing after `timeout` seconds (None: never)."""
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
        """Return True if there is another session now."""
        current = self._record(self.path / SESSION, Session)
        return current is not None and current.id != self._opened.id

    def _is_over(self) -> bool:
        """Return True if the orchestrator has ended this session, or begun another."""
        return self._replaced() or not (self._weights / MARK).exists()

    def _check_ours(self) -> None:
        """UserError if another orchestrator has opened the transport."""
        if self._replaced():
            raise UserError(f"another run has begun to use {self.path}: give each its own folder with --transport.path")

    def _check_hello(self) -> None:
        """Say hello again if it was removed with an older session; UserError if another trainer has said it."""
        if self._hello is None or time.monotonic() - self._hello_seen < HELLO_SECONDS:
            return
        self._hello_seen = time.monotonic()
        current = self._record(self.path / HELLO, Hello)
        if current is None:
            self.say_hello(self._hello)
        elif current.id != self._hello.id:
            raise UserError(
                f"another trainer (process {current.pid} on {current.host}) has begun to use {self.path}: a run has "
                "one; for another run give --transport.path or --output-dir"
            )

    def _remove_weights(self, goes: Callable[[int], bool]) -> None:
        for name in names(self._weights):
            if name.startswith("step_") and goes(int(name.removeprefix("step_"))):
                remove(self._weights / name)

    def _remove_empty(self) -> None:
        """Remove the folders themselves, if nothing is in them any more."""
        for file in (SESSION, HELLO):
            remove(self.path / f"{NEW_PREFIX}{file}")  # of a writer that was killed
        with suppress(OSError):
            self.weights_root.rmdir()
            self.path.rmdir()

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """Put into words what the system refuses in this folder."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            cause, remedy = explain(error, self.path) or ("", "")
            if isinstance(error, OSError) and not cause:
                cause, remedy = f"{error.strerror} ({error.filename or self.path})", "start the run's processes again"
            if not cause or is_out_of_memory(error):
                raise
            raise UserError(
                f"the transport folder {self.path} can't be used, {cause}: {remedy}, or give another with "
                "--transport.path"
            ) from error


def _lives(hello: Hello) -> bool:
    """Return True if its process is there, as far as can be seen from this machine."""
    if hello.host != socket.gethostname():
        return True
    try:
        os.kill(hello.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def write(path: Path, data: bytes) -> None:
    """Write `path` whole or not at all, in a folder that exists. On a full disk nothing is left of it."""
    temporary = path.with_name(f"{NEW_PREFIX}{path.name}")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error


def names(folder: Path) -> list[str]:
    """List a folder, without files that are still being written; empty if it isn't there (yet)."""
    try:
        return [name for name in os.listdir(folder) if not name.startswith(TMP_PREFIX)]
    except OSError:
        return []


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it; what can't be removed (yet) stays."""
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink()
