"""What the launcher waits for beside its processes: signals, and a server that loads. Standard library only."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from hone.orchestrator.child import Child

TELL = 10.0
"""Seconds between two lines about a server that loads."""
_ASK = 0.5
_AT_ONCE = 3.0
"""Seconds that the orchestrator has to note that it was interrupted, after a second Ctrl-C."""


class Stop:
    """While entered, signals that end a run are only noted; they, and deaths of children, make `wakeup` readable.

    `first` is the first that came. Main thread only.
    """

    def __init__(self) -> None:
        self.first: int | None = None
        self.wakeup = self._write_end = -1
        self._news: list[int] = []
        self._hurries = 0
        self._deadline = float("inf")
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        self.wakeup, self._write_end = os.pipe()
        for descriptor in (self.wakeup, self._write_end):
            os.set_blocking(descriptor, False)
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN:  # else: nohup
                self._before[signum] = signal.signal(signum, self._note)
        self._wakeup_before = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._wakeup_before)
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        os.close(self.wakeup)
        os.close(self._write_end)

    def _note(self, signum: int, _frame: FrameType | None) -> None:
        if signum == signal.SIGCHLD:
            return
        self._news.append(signum)
        if self.first is not None and signum == signal.SIGINT:
            self._hurries += 1
            self.within(_AT_ONCE)
        self.first = self.first or signum

    def drain(self) -> bool:
        """Makes `wakeup` quiet again."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.wakeup, 512):
                pass
        return True

    def news(self) -> list[int]:
        """The signals since the last call."""
        news, self._news = self._news, []
        return news

    def within(self, seconds: float) -> None:
        """The run is to have ended after so many seconds, or earlier if that was said before."""
        self._deadline = min(self._deadline, time.monotonic() + seconds)

    @property
    def overdue(self) -> bool:
        """Whether the run should have ended by now; a third Ctrl-C says so too."""
        return time.monotonic() > self._deadline or self._hurries > 1

    @property
    def at_once(self) -> bool:
        """Whether the user does not want to wait: a second Ctrl-C."""
        return self._hurries > 0


class Loading:
    """A server that is not ready yet: asked twice a second; every few seconds a line says that it still loads."""

    def __init__(self, address: tuple[str, int], server: Child, say: Callable[[str], None]) -> None:
        self.address, self.server, self._say = address, server, say
        self._began = self._told = time.monotonic()
        self._asked = 0.0

    def is_ready(self) -> bool:
        """Whether it answers, and then says so."""
        now = time.monotonic()
        if now - self._asked < _ASK:
            return False
        if healthy(*self.address, timeout=1):
            self._say(f"The server is ready, after {now - self._began:.0f} s.")
            return True
        self._asked = time.monotonic()
        if now - self._told >= TELL:
            self._told = now
            last = next((line for line in reversed(self.server.lines) if line.strip()), "")
            self._say(f"The server is still loading, after {now - self._began:.0f} s" + (f": {last}" if last else "."))
        return False


def port_problem(host: str, port: int) -> OSError | None:
    """Why no server could listen there now; None if one could."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error
    return None


def meeting_point(ranks: int) -> dict[str, str]:
    """The variables by which ranks find each other, as torchrun sets them; at a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    world = str(ranks)
    return {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def healthy(host: str, port: int, timeout: float) -> bool:
    """Whether a server answers `GET /health` with 200."""
    connection = http.client.HTTPConnection(host, port, timeout=timeout)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
