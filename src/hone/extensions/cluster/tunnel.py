"""Ports of this machine that forward connections to the run's servers on any nodes.

Clients see servers at fixed addresses on 127.0.0.1. A server listens only on 127.0.0.1 of its node; a gate on the node
admits connections that begin with the run's secret. A connection to a shared port goes to the server with the fewest
connections. If no server runs, the connection is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from dataclasses import dataclass, field
from threading import Thread

PART = 2**20
"""Maximum bytes that are read and forwarded at a time."""
GREETING = 10.0
"""Seconds that a connection has to send the secret."""
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(eq=False)
class Gate:
    """The address of a server's gate on its node, and the open connections to it from here."""

    address: str
    port: int
    connections: set[asyncio.StreamWriter] = field(default_factory=set)


class Tunnels:
    """The forwarding ports, served by a thread."""

    def __init__(self, secret: bytes) -> None:
        self.secret = secret
        self._gates: dict[int, dict[str, Gate]] = {}
        """Gates by port and role."""
        self._loop = asyncio.new_event_loop()
        Thread(target=self._loop.run_forever, name="tunnels", daemon=True).start()

    def listen(self, port: int) -> None:
        """Listen on a port of this machine. Raises OSError if another process uses the port."""
        if port not in self._gates:
            self._gates[port] = {}
            serving = asyncio.start_server(lambda r, w: self._serve(port, (r, w)), "127.0.0.1", port)
            asyncio.run_coroutine_threadsafe(serving, self._loop).result()

    def point(self, port: int, role: str, gate: Gate | None) -> None:
        """Forward a port to a role's gate, or stop if `gate` is None. Connections to the role's old gate end."""

        def change() -> None:
            for writer in old.connections if (old := self._gates[port].pop(role, None)) else ():
                writer.transport.abort()
            if gate is not None:
                self._gates[port][role] = gate

        self._loop.call_soon_threadsafe(change)

    def gates(self, port: int) -> list[Gate]:
        return list(dict(self._gates[port]).values())

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def _serve(self, port: int, streams: Streams) -> None:
        gate = min(self.gates(port), key=lambda gate: len(gate.connections), default=None)
        if gate is None:
            streams[1].close()
            return
        gate.connections.add(streams[1])
        try:
            await join(streams, gate.address, gate.port, self.secret)
        finally:
            gate.connections.discard(streams[1])


async def let_in(streams: Streams, secret: bytes, port: int) -> None:
    """Forward a connection to `port` of this machine if it begins with the secret."""
    try:
        said = await asyncio.wait_for(streams[0].readexactly(len(secret)), GREETING)
    except (OSError, asyncio.IncompleteReadError, TimeoutError):
        said = b""
    if hmac.compare_digest(said, secret):
        await join(streams, "127.0.0.1", port)
    else:
        streams[1].transport.abort()


async def join(streams: Streams, address: str, port: int, greeting: bytes = b"") -> None:
    """Connect to an address, and forward bytes both ways until one connection ends. Then end the other."""

    async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(PART):
            sink.write(data)
            await sink.drain()

    (reader, writer), back = streams, None
    try:
        there, back = await asyncio.open_connection(address, port)
        back.write(greeting)
        ways = [asyncio.ensure_future(carry(reader, back)), asyncio.ensure_future(carry(there, writer))]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await way
    except OSError:  # it is gone
        writer.transport.abort()
    finally:
        for sink in (writer, back):
            if sink is not None:
                sink.close()
