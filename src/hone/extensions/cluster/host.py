"""The Ray actor that runs one process of the run on a node.

A server listens only on 127.0.0.1 of its node. The actor opens a gate: a port that forwards to the server the
connections that begin with the run's secret. Weights come through Ray's object store, one copy per node, and are
written to the node's memory.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import platform
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray

import hone
from hone.extensions.cluster.tunnel import let_in
from hone.loops.child import FOREIGN, Child, serves
from hone.loops.shared_memory import VARIABLE, join_folder, leave_folder
from hone.processes import free_port
from hone.runs.files import NEW_PREFIX

WATCH = 0.05
"""Seconds between checks of the process."""


class Lines:
    def __init__(self) -> None:
        self._lines: list[bytes] = []

    def write(self, line: bytes) -> None:
        self._lines.append(line)

    def take(self) -> list[bytes]:
        lines, self._lines = self._lines, []
        return lines


class Host:
    """One process of the run on this node. The process ends with the actor."""

    def __init__(self) -> None:
        self._lines, self._child = Lines(), None
        self._port: int | None = None
        self._gate: asyncio.Server | None = None
        self._memory: tuple[Path, int] | None = None
        self._taking = asyncio.Lock()
        self._folder = tempfile.TemporaryDirectory(prefix="hone-host-")

    async def facts(self) -> dict[str, Any]:
        return {"name": socket.gethostname()} | versions()

    async def start(
        self,
        role: str,
        secret: bytes,
        command: Sequence[str],
        env: Mapping[str, str],
        files: Mapping[str, str],
        cwd: str,
    ) -> int:
        """Start the process, and return its pid. A server gets a free port of 127.0.0.1.

        `env` is added to the node's variables. `files`: texts of files to make on this node, by path in `command`.
        """
        for name, text in files.items():
            (Path(self._folder.name) / Path(name).name).write_text(text, encoding="utf-8")
        if (memory := env.get(VARIABLE)) is not None and (lock := join_folder(Path(memory))) is not None:
            self._memory = Path(memory), lock
        # Ray gives a worker one thread, whatever its cores.
        foreign = {"OMP_NUM_THREADS", *FOREIGN}
        inherited = {name: value for name, value in os.environ.items() if name not in foreign}
        os.chdir(cwd if os.path.isdir(cwd) else tempfile.gettempdir())
        words = [sys.executable]
        words += [str(Path(self._folder.name) / Path(word).name) if word in files else word for word in command]
        if serves(role):
            self._port = free_port()
            words += ["--port", str(self._port)]
            self._secret = secret
        self._child = Child(role, None, words, inherited | dict(env), self._lines)
        return self._child.pid

    async def watch(self) -> tuple[list[bytes], int | None, tuple[str, int] | None]:
        """Wait for output, an exit code or an open gate. Return (lines, code, gate)."""
        assert self._child is not None, "`start` comes first"
        while True:
            code = self._child.poll()
            gate = await self._opened() if self._port is not None and self._gate is None else None
            if (lines := self._lines.take()) or code is not None or gate:
                return lines, code, gate
            await asyncio.sleep(WATCH)

    async def _opened(self) -> tuple[str, int] | None:
        secret, port = self._secret, self._port
        assert port is not None
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return None
        writer.close()
        address = ray.util.get_node_ip_address()
        self._gate = await asyncio.start_server(lambda r, w: let_in((r, w), secret, port), address, 0)
        return address, self._gate.sockets[0].getsockname()[1]

    async def send(self, signum: int) -> None:
        if self._child is not None:
            self._child.send(signum)

    async def end(self) -> None:
        if self._child is not None:
            self._child.kill()
            while self._child.poll() is None:
                await asyncio.sleep(WATCH)
        if self._memory is not None:
            leave_folder(*self._memory)
            self._memory = None
        self._folder.cleanup()

    async def has(self, path: str) -> bool:
        return os.path.exists(path)

    async def take(self, folder: str, files: Mapping[str, Any]) -> None:
        async with self._taking:
            await asyncio.to_thread(put_files, Path(folder), files)


def versions() -> dict[str, Any]:
    """Return the versions that all nodes of a run must share."""
    from hone.runs.provenance import NUMERICS

    return {"hone": hone.__version__, "numerics": NUMERICS, "python": platform.python_version()}


def put_files(folder: Path, files: Mapping[str, Any]) -> None:
    """Write files into the new `folder`, atomically; do nothing if `folder` exists. Processes of the node take turns.

    Only the newest of the other versions stays: a server may still read it. If there is no room, raises OSError and
    leaves no file.
    """
    fresh = folder.with_name(f"{NEW_PREFIX}{folder.name}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the process ends
        if folder.exists():
            return
        shutil.rmtree(fresh, ignore_errors=True)  # left by a killed process
        try:
            for name, content in files.items():
                (fresh / name).parent.mkdir(parents=True, exist_ok=True)
                (fresh / name).write_bytes(content)
        except OSError:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        fresh.rename(folder)
        siblings = [path for path in folder.parent.iterdir() if path.name.startswith("step_") and path != folder]
        for old in sorted(siblings, key=lambda path: path.stat().st_mtime)[:-1]:
            shutil.rmtree(old, ignore_errors=True)
