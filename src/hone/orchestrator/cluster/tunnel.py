"""Ports of this machine that lead to servers on the nodes, wherever these are just now.

Whoever samples sees servers at fixed addresses on 127.0.0.1. On this machine's node a connection goes straight to the
server, to others through Ray, in whose trust it stays: no server listens to the network. Where there is no server just
now, a connection is closed at once, as by a server that is down; of several, the one with the fewest gets it.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from threading import Thread
from typing import Any
from uuid import uuid4

PART = 2**20
"""Most bytes that one call carries."""


@dataclass(eq=False)
class Target:
    """Where a server is: behind the actor `host`, on a port of its node's 127.0.0.1; and the connections to it."""

    host: Any
    node: str
    port: int
    connections: int = 0


class Tunnels:
    """The ports, served by a thread. `node` is the id of this machine's."""

    def __init__(self, node: str) -> None:
        self.node = node
        self._targets: dict[int, dict[str, Target]] = {}
        """By port, by role."""
        self._loop = asyncio.new_event_loop()
        Thread(target=self._loop.run_forever, name="tunnels", daemon=True).start()

    def listen(self, port: int) -> None:
        """Listen on a port of this machine from now on. OSError if another process does."""
        if port not in self._targets:
            self._targets[port] = {}
            serving = asyncio.start_server(lambda r, w: self._serve(port, r, w), "127.0.0.1", port)
            asyncio.run_coroutine_threadsafe(serving, self._loop).result()

    def point(self, port: int, role: str, target: Target | None) -> None:
        """Have connections to a port go to the server of a role, too; None: not any more."""
        targets = self._targets[port] | ({role: target} if target else {})
        if target is None:
            targets.pop(role, None)
        self._targets[port] = targets

    def targets(self, port: int) -> list[Target]:
        """Return where connections to a port may go now."""
        return list(self._targets[port].values())

    def close(self) -> None:
        """Close the ports."""
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def _serve(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        targets = self._targets[port].values()
        target = min(targets, key=lambda target: target.connections, default=None)
        if target is None:
            writer.close()
            return
        target.connections += 1
        try:
            if target.node == self.node:
                await _directly(target.port, reader, writer)
            else:
                await _by_ray(target.host, reader, writer)
        except Exception:  # of the connection, or Ray's: the server or its node is gone
            writer.transport.abort()
        finally:
            target.connections -= 1
            writer.close()


async def _directly(port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    there, back = await asyncio.open_connection("127.0.0.1", port)

    async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(PART):
            sink.write(data)
            await sink.drain()

    try:
        await _first(carry(reader, back), carry(there, writer))
    finally:
        back.close()


async def _by_ray(host: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    connection = uuid4().hex
    await host.open.remote(connection)

    async def there() -> None:
        while data := await reader.read(PART):
            await host.write.remote(connection, data)

    async def back() -> None:
        while data := await host.read.remote(connection):
            writer.write(data)
            await writer.drain()

    try:
        await _first(there(), back())
    finally:
        host.close.remote(connection)


async def _first(*directions: Any) -> None:
    """Run both directions of a connection until one has ended, or failed."""
    tasks = [asyncio.ensure_future(direction) for direction in directions]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
            with contextlib.suppress(Exception, asyncio.CancelledError):
                await task
