"""A process that the launcher starts. Uses only the standard library, `hone.processes` and `hone.redaction`."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock, Thread
from typing import IO, Protocol

from hone.processes import Process, signal_name
from hone.redaction import redact

INFERENCE, ORCHESTRATOR, TRAINER = "inference", "orchestrator", "trainer"
"""The roles, named like their commands. Several servers have the roles `inference-0`, `inference-1`, …"""

FOREIGN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables that torchrun or a scheduler may have set. They are not passed on to a run's processes."""


def serves(role: str) -> bool:
    return role.partition("-")[0] == INFERENCE


_LONGEST_LINE = 2**16
"""Maximum bytes of a line. A longer line, such as a progress bar, is passed on in parts."""
_ERROR = re.compile(r"(\[rank\d+\]: )?(error: |(\w+\.)*\w*(Error|Exception|Halt|Exit)\b)")
"""Start of a line that names an error: hone's message, or a traceback's last line. torch writes the rank before it."""


class Log:
    """The log file of a role. It is in a folder of the launcher first, and after `move` in the run directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = Lock()
        path.touch()

    def write(self, line: bytes) -> None:
        # A full disk is reported by a role, which knows the remedy.
        with self._lock, contextlib.suppress(OSError), open(self.path, "ab") as file:
            file.write(line)

    def move(self, path: Path) -> None:
        with self._lock:
            with open(path, "ab") as file:
                file.write(self.path.read_bytes())
            self.path.unlink()
            self.path = path


class Writes(Protocol):
    def write(self, line: bytes) -> None: ...


class Child(Process):
    """The process of a role. If the launcher dies, Linux kills this process; on other systems it ends itself.

    `rank` is None if the role has only one process. If `echo` is true, the output also goes to the launcher's streams.
    """

    def __init__(
        self,
        role: str,
        rank: int | None,
        command: Sequence[str],
        env: Mapping[str, str],
        log: Writes,
        echo: bool = False,
    ) -> None:
        self._set(role, rank, log)
        super().__init__(
            command,
            env=env,
            dies_with_parent=signal.SIGKILL,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if echo else subprocess.STDOUT,
        )
        self._readers = []
        for pipe, stream in ((self.stdout, 1), (self.stderr, 2)):
            if pipe is not None:
                self._readers.append(Thread(target=self._read, args=(pipe, stream if echo else None), daemon=True))
                self._readers[-1].start()

    def _set(self, role: str, rank: int | None, log: Writes) -> None:
        self.role, self.rank, self.log = role, rank, log
        self.lines: deque[str] = deque(maxlen=50)
        self.code: int | None = None

    def _read(self, pipe: IO[bytes], stream: int | None) -> None:
        for line in iter(lambda: pipe.readline(_LONGEST_LINE), b""):
            line = redact(line.decode(errors="surrogateescape")).encode(errors="surrogateescape")
            line = line if line.endswith(b"\n") else line + b"\n"
            self.log.write(b"[rank %d] %b" % (self.rank, line) if self.rank else line)
            self.lines.append(line.decode(errors="replace").rstrip())
            if stream is not None:
                with contextlib.suppress(OSError):  # its reader has left, which ends no run
                    os.write(stream, line)

    @property
    def name(self) -> str:
        """Name for messages, such as `the trainer's rank 1 (pid 123)`."""
        role = self.role.replace(INFERENCE, "inference server").replace("-", " ")
        rank = "" if self.rank is None else f"'s rank {self.rank}"
        return f"the {role}{rank} (pid {self.pid})"

    @property
    def cause(self) -> str:
        """Cause of the end, such as `was ended by SIGKILL` or `exited with code 1 (RuntimeError: no)`."""
        if self.code is not None and self.code < 0:
            return f"was ended by {signal_name(-self.code)}"
        return f"exited with code {self.code}" + (f" ({self.error})" if self.error else "")

    @property
    def error(self) -> str:
        """Return the last line that names an error, else the last line that is not empty; cut to 400 characters."""
        lines = [line for line in reversed(self.lines) if line.strip()]
        line = next((line for line in lines if _ERROR.match(line)), lines[0] if lines else "")
        if (match := _ERROR.match(line)) and match[1]:
            line = line.removeprefix(match[1])
        line = line.removeprefix("error: ")
        return line if len(line) <= 400 else f"{line[:400]} ..."

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs. After the exit, kill its group and read its last lines."""
        if self.code is None and super().poll() is not None:
            for reader in self._readers:
                reader.join(1.0)  # a process that left the group may hold the other end
        return self.code
