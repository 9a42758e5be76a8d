"""The transport through a folder.

    TRANSPORT/session.json                            the session of now; its id names what belongs to it
    TRANSPORT/hello.json                              the trainer of now
    TRANSPORT/<session>/orders/step_N.safetensors     from put to order, which takes it away
    TRANSPORT/<session>/results/version_N.json        from put_result to result, which takes it away
    TRANSPORT/<session>/results/version_N.safetensors from put_result to token_stats, which takes it away
    TRANSPORT/weights/<session>/step_N/               Hugging Face layout, as servers take them

Each file has one writer and one reader. Who is killed leaves what the next session removes.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from hone.config.transport import transport_weights
from hone.errors import UserError
from hone.runs.faults import explain, is_out_of_memory
from hone.runs.files import FILE_MODE, NEW_PREFIX
from hone.transport.files import PATIENCE, Reader, names, poll, remove, write
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

SESSION, HELLO = "session.json", "hello.json"
MARK = "hone-session.json"
"""Tells that a folder belongs to a session, and may be removed with it."""
MAX_TOKENS = 2**24
HELLO_SECONDS = 1.0
"""How often a trainer that waits looks whether its hello is there."""


class FileTransport:
    """One role's end of it. `max_tokens` bounds the batches that wait in it, counted by `Order.tokens`.

    `interrupt` is called whenever a method that waits looks again, and may raise. All methods raise UserError if the
    folder can't be used: not written, full, removed, or in use by another run.
    """

    def __init__(self, path: Path, max_tokens: int = MAX_TOKENS, interrupt: Callable[[], None] = lambda: None) -> None:
        self.path = path.absolute()
        self.weights_root = transport_weights(self.path)
        self.max_tokens = max_tokens
        self.interrupt = interrupt
        self._reader = Reader()
        self._session: Session | None = None
        self._hello: Hello | None = None
        self._put: dict[int, int] = {}  # tokens of the batches that may still wait, by step
        self._hello_seen = 0.0
        with self._explaining():
            self.weights_root.mkdir(parents=True, exist_ok=True)

    # The orchestrator's end

    def open(self, session: Session) -> None:
        """Begins a session, and removes what older ones left."""
        with self._explaining():
            for folder in (self._folder(session), self._weights(session)):
                folder.mkdir(parents=True, exist_ok=True)
                write(folder / MARK, to_json(session))
            for name in ("orders", "results"):
                (self._folder(session) / name).mkdir(exist_ok=True)
            write(self.path / SESSION, to_json(session))
        self._session, self._put = session, {}
        for root in (self.path, self.weights_root):
            for name in names(root):
                left = self._read(root / name / MARK, Session)
                if left is not None and left.id == name != session.id:
                    remove(root / name)

    def hello(self, timeout: float | None = None) -> Hello | None:
        """The trainer that is there now; None if none is after `timeout` seconds (None: waits for ever).

        One that was killed on this machine is not there, though its hello is.
        """

        def look() -> Hello | None:
            hello = self._read(self.path / HELLO, Hello)
            return hello if hello is not None and _lives(hello) else None

        return poll(look, self.interrupt, timeout)

    def put(self, order: Order) -> float:
        """Hands an order to the trainer; returns the seconds that it waited until there was room for the batch.

        There is room if no batch waits, or those that do and this one have no more than `max_tokens` tokens.
        """
        began = time.perf_counter()

        def room() -> bool | None:
            self._check_ours()
            batches, tokens = self.waiting()
            return order.kind == "end" or not batches or tokens + order.tokens <= self.max_tokens or None

        poll(room, self.interrupt)
        waited = time.perf_counter() - began
        with self._explaining():
            write(self._order_file(order.step), write_order(order))
        self._put.pop(order.step, None)
        if order.kind == "batch":
            self._put[order.step] = order.tokens
        return waited

    def waiting(self) -> tuple[int, int]:
        """Batches that the trainer has not taken yet, and their tokens."""
        there = set(names(self._folder(self._opened) / "orders"))
        self._put = {step: tokens for step, tokens in self._put.items() if _order_name(step) in there}
        return len(self._put), sum(self._put.values())

    def result(self, version: int, wait: bool = True) -> Result | None:
        """The trainer's result of `version`, which is taken away; None if it isn't there and it is not to be waited
        for. The weights of that version are there then. After an order to end comes another one of its version.
        """
        path = self._result_file(version)

        def look() -> Result | None:
            self._check_ours()
            return self._read(path, Result)

        found = poll(look, self.interrupt, None if wait else 0)
        if found is not None:
            remove(path)
        return found

    def token_stats(self, version: int) -> dict[str, np.ndarray] | None:
        """What came with the result of `version` about its tokens, which is taken away; None if it doesn't come to be
        seen here. To be asked only of a result that says so.
        """
        path = self._tokens_file(version)
        found = poll(lambda: self._reader.read(path, read_arrays), self.interrupt, PATIENCE)
        remove(path)
        return None if found is None else found[0]

    def weights(self, version: int) -> Path:
        """Folder of the weights of a version whose result was there. UserError if they don't come to be seen here."""
        folder = self._weights(self._opened) / f"step_{version}"
        if not poll(lambda: folder.name in names(folder.parent) or None, self.interrupt, PATIENCE):
            raise UserError(f"the weights in {folder} are gone: somebody else removed them")
        return folder

    def drop(self, version: int) -> None:
        """Removes the weights of `version` and of those before it."""
        self._remove_weights(lambda found: found <= version)

    def close(self) -> None:
        """The end of the run: removes everything of this session. Another session, and its trainer, are left alone."""
        if (session := self._session) is None:
            return
        remove(self._folder(session))
        remove(self._weights(session))
        current = self._read(self.path / SESSION, Session)
        if current is None or current.id == session.id:
            remove(self.path / SESSION)
            remove(self.path / HELLO)  # a trainer that lives on says it again
        self._remove_empty()

    # The trainer's end

    def say_hello(self, hello: Hello) -> None:
        """Tells that a trainer is there."""
        with self._explaining():
            self.weights_root.mkdir(parents=True, exist_ok=True)
            self._hello = hello  # before it can be read: `leave` takes it away, however soon it is called
            write(self.path / HELLO, to_json(hello))

    def session(self, other_than: str | None = None, wait: bool = True) -> Session | None:
        """The session of now, if its id isn't `other_than`; None if there is none and it is not to be waited for.

        From here on it is the one that the trainer's other methods are about.
        """

        def look() -> Session | None:
            self._check_hello()
            found = self._read(self.path / SESSION, Session)
            return found if found is not None and found.id != other_than else None

        found = poll(look, self.interrupt, None if wait else 0)
        if found is not None:
            self._session = found
        return found

    def order(self, step: int) -> Order | None:
        """Waits for the order at `step`, and takes it away; None once there is another session."""
        session = self._opened
        path = self._order_file(step)

        def look() -> Order | bool | None:
            self._check_hello()
            return self._replaced(session) or self._reader.read(path, read_order)

        found = poll(look, self.interrupt)
        if isinstance(found, Order):
            remove(path)
            return found
        return None

    @contextmanager
    def weights_dir(self, version: int) -> Iterator[Path]:
        """A folder to write the weights of `version` to; it is there for others once the block has ended.

        What fails because the session was ended meanwhile is passed over.
        """
        session = self._opened
        folder = self._weights(session) / f"step_{version}"
        fresh = folder.with_name(f"{NEW_PREFIX}{folder.name}")
        try:
            with self._explaining():
                remove(fresh)
                fresh.mkdir(parents=True)
                yield fresh
                for file in fresh.iterdir():
                    file.chmod(FILE_MODE)  # safetensors makes files that only their owner can read
                if folder.exists():
                    remove(folder)
                fresh.rename(folder)
        except Exception:
            remove(fresh)
            if not self._is_over(session):
                raise
        except BaseException:
            remove(fresh)
            raise
        if self._is_over(session):
            remove(self._weights(session))

    def put_result(self, result: Result, token_stats: dict[str, np.ndarray] | None = None) -> None:
        """Tells what became of an order, after its weights were written."""
        session = self._opened
        assert result.tokens == (token_stats is not None)
        try:
            with self._explaining():
                if token_stats is not None:
                    write(self._tokens_file(result.version), write_arrays(token_stats))
                write(self._result_file(result.version), to_json(result))
        except UserError:
            if not self._is_over(session):
                raise

    def keep(self, versions: Collection[int]) -> None:
        """Removes the weights of other versions than these, but for those whose result was not taken yet."""
        untaken = set(names(self._folder(self._opened) / "results"))
        self._remove_weights(lambda found: found not in versions and _result_name(found) not in untaken)

    def leave(self) -> None:
        """The end of the trainer: takes its hello away."""
        hello, self._hello = self._hello, None
        current = self._read(self.path / HELLO, Hello)
        if hello is not None and current is not None and current.id == hello.id:
            remove(self.path / HELLO)
        self._remove_empty()

    # What both ends share

    @property
    def _opened(self) -> Session:
        assert self._session is not None, "there is no session yet"
        return self._session

    def _folder(self, session: Session) -> Path:
        return self.path / session.id

    def _weights(self, session: Session) -> Path:
        return self.weights_root / session.id

    def _order_file(self, step: int) -> Path:
        return self._folder(self._opened) / "orders" / _order_name(step)

    def _result_file(self, version: int) -> Path:
        return self._folder(self._opened) / "results" / _result_name(version)

    def _tokens_file(self, version: int) -> Path:
        return self._result_file(version).with_suffix(".safetensors")

    def _read(self, path: Path, kind: type[Record]) -> Record | None:
        return self._reader.read(path, lambda file: from_json(kind, file.read_bytes()))

    def _replaced(self, session: Session) -> bool:
        """Whether there is another session now."""
        current = self._read(self.path / SESSION, Session)
        return current is not None and current.id != session.id

    def _is_over(self, session: Session) -> bool:
        """Whether the orchestrator has ended this session, or begun another."""
        return self._replaced(session) or not (self._weights(session) / MARK).exists()

    def _check_ours(self) -> None:
        """UserError if another orchestrator has opened the transport."""
        if self._replaced(self._opened):
            raise UserError(f"another run has begun to use {self.path}: give each its own folder with --transport.path")

    def _check_hello(self) -> None:
        """Says hello again if it was removed with an older session; UserError if another trainer has said it."""
        if self._hello is None or time.monotonic() - self._hello_seen < HELLO_SECONDS:
            return
        self._hello_seen = time.monotonic()
        current = self._read(self.path / HELLO, Hello)
        if current is None:
            self.say_hello(self._hello)
        elif current.id != self._hello.id:
            raise UserError(
                f"another trainer (process {current.pid} on {current.host}) has begun to use {self.path}: a run has "
                "one; for another run give --transport.path or --output-dir"
            )

    def _remove_weights(self, goes: Callable[[int], bool]) -> None:
        folder = self._weights(self._opened)
        for name in names(folder):
            if name.startswith("step_") and goes(int(name.removeprefix("step_"))):
                remove(folder / name)

    def _remove_empty(self) -> None:
        """The folders themselves, if nothing is in them any more."""
        for file in (SESSION, HELLO):
            remove(self.path / f"{NEW_PREFIX}{file}")  # of a writer that was killed
        with suppress(OSError):
            self.weights_root.rmdir()
            self.path.rmdir()

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """Says in words what the system refuses in this folder."""
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


def _order_name(step: int) -> str:
    return f"step_{step}.safetensors"


def _result_name(version: int) -> str:
    return f"version_{version}.json"


def _lives(hello: Hello) -> bool:
    """Whether its process is there, as far as can be seen from this machine."""
    if hello.host != socket.gethostname():
        return True
    try:
        os.kill(hello.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
