"""Serving an application of ours: the socket it listens on, and the server until Ctrl-C."""

from __future__ import annotations

import errno
import signal
import socket

import uvicorn
from fastapi import FastAPI

from hone.errors import UserError


def listen(host: str, port: int) -> socket.socket:
    """A socket bound to the address. UserError if that is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off (TCP_NODELAY) only for sockets that name their protocol: without it every
    # request but the first of a connection waits 40 ms for the client's delayed acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise UserError(
                f"port {port} is in use, by another server maybe: stop that, or choose another with --port {port + 1}"
            ) from error
        raise UserError(f"cannot listen on {host}, port {port} ({error}): choose others with --host, --port") from error
    return listener


def serve(app: FastAPI, listener: socket.socket, intro: str, grace: int) -> None:
    """Serves until SIGINT or SIGTERM, then `grace` seconds for what is under way. Prints `intro` once it answers."""

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                print(intro, flush=True)

    settings = uvicorn.Config(
        app,
        loop="asyncio",  # and not uvloop and httptools where they are installed: Trackio brings them
        http="h11",
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=grace,
    )
    # uvicorn raises the signal that ended it once more when it has shut down; then there is nothing left to end.
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        Server(settings).run(sockets=[listener])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
