"""Serving an application of ours: the socket it listens on, and the server until Ctrl-C.

A server on this machine's own address has no password, so it trusts whoever runs programs here, and no web page:
`LocalOnly`. Clients that never finish a request lose their connection: `Connection`.
"""

from __future__ import annotations

import asyncio
import errno
import resource
import signal
import socket
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import h11
import uvicorn
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from hone.errors import UserError

HEAD_SECONDS = 10.0
"""Seconds that a client may leave a connection without the head of a request, or an answered one without its end."""


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


def is_local(listener: socket.socket) -> bool:
    """Return True if only programs on this machine can connect, whatever name the address was given by."""
    return ip_address(listener.getsockname()[0]).is_loopback


def settings(app: ASGIApp, listener: socket.socket, grace: int, head_seconds: float = HEAD_SECONDS) -> uvicorn.Config:
    """Return how uvicorn serves `app` on `listener`; a stop leaves requests under way `grace` seconds."""
    return uvicorn.Config(
        LocalOnly(app, listener.getsockname()[0]) if is_local(listener) else app,
        loop="asyncio",  # and not uvloop and httptools where they are installed: Trackio brings them
        http=Connection,
        ws="none",
        log_level="warning",
        access_log=False,
        timeout_keep_alive=head_seconds,  # pyright: ignore[reportArgumentType]
        timeout_graceful_shutdown=grace,
    )


def serve(app: ASGIApp, listener: socket.socket, intro: str, grace: int) -> None:
    """Serves until SIGINT or SIGTERM, then `grace` seconds for what is under way. Prints `intro` once it answers."""

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                print(intro, flush=True)

    # uvicorn raises the signal that ended it once more when it has shut down; then there is nothing left to end.
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        Server(settings(app, listener, grace)).run(sockets=[listener])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class LocalOnly:
    """Refuses what a web page sends to this machine: by another name that points here (DNS rebinding), or from its own.

    A browser names the page that asks (Origin) in every request that can change something; other programs send none.
    """

    def __init__(self, app: ASGIApp, address: str) -> None:
        self.app, self.names = app, {"localhost", "127.0.0.1", "::1", address}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._refusal(Headers(scope=scope)) if scope["type"] == "http" else None
        await (app or self.app)(scope, receive, send)

    def _refusal(self, headers: Headers) -> ASGIApp | None:
        host, origin = headers.get("host", "").lower(), headers.get("origin")
        if _name(host) not in self.names:
            words = "this server answers to localhost only: connect to that (a proxy has to send `Host: localhost`)"
            return _refuse(400, words)
        if origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}"):
            return _refuse(403, f"web pages of {origin[:100]!r} may not use this server")
        return None


def _name(host: str) -> str | None:
    """Return the name in a Host header, without its port."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _refuse(status: int, words: str) -> JSONResponse:
    error = {"message": words, "type": "invalid_request_error", "param": None, "code": None}
    return JSONResponse({"error": error}, status)


class Connection(H11Protocol):
    """A connection that is closed when its client owes a part of a request for too long (`timeout_keep_alive`), or when
    there are so many that no files could be opened any more.

    While a request is being answered nothing is closed: an answer takes as long as it takes.
    """

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if files != resource.RLIM_INFINITY and len(self.connections) > files // 2:
            transport.abort()
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unwatch()

    def _watch(self) -> None:
        """Run the timer exactly while the head of a request is missing, or the end of one that was answered."""
        answered: Any = self.cycle is None or self.cycle.response_complete
        if not (answered and self.conn.their_state in (h11.IDLE, h11.SEND_BODY)):
            self._unwatch()
        elif self._timer is None and not self.transport.is_closing():
            self._timer = self.loop.call_later(self.timeout_keep_alive, self.transport.close)

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
