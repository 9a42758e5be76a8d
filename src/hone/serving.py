"""Serves a web application of hone on a socket until Ctrl-C.

A server on the loopback address has no password: it trusts local programs, but `local_only` refuses web pages.
"""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from urllib.parse import urlsplit

import uvicorn
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from hone.errors import UserError


def listen(host: str, port: int) -> socket.socket:
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
                f"port {port} is in use: stop the other server, or choose another port with --port {port + 1}"
            ) from error
        raise UserError(f"cannot listen on {host}, port {port} ({error}): choose others with --host, --port") from error
    return listener


def is_local(listener: socket.socket) -> bool:
    return ip_address(listener.getsockname()[0]).is_loopback


def settings(app: ASGIApp, grace: int, keep_alive: int = 75) -> uvicorn.Config:
    """Return uvicorn's config. Open requests get `grace` seconds at a stop, idle connections `keep_alive` seconds."""
    return uvicorn.Config(
        app,
        loop="asyncio",  # and not uvloop and httptools where they are installed: Trackio brings them
        http="h11",
        ws="none",
        log_level="warning",
        use_colors=False,  # hone.terminal would escape them
        access_log=False,
        timeout_graceful_shutdown=grace,
        # with 5, uvicorn's own, a call now and then meets the end of its idle connection
        timeout_keep_alive=keep_alive,
    )


def serve(app: ASGIApp, listener: socket.socket, intro: str, grace: int) -> None:
    """Serve until SIGINT or SIGTERM, then give open requests `grace` seconds. Print `intro` once the server runs."""

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                print(intro, flush=True)

    # uvicorn raises the signal that ended it once more when it has shut down; then there is nothing left to end.
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        Server(settings(local_only(app, listener), grace)).run(sockets=[listener])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@asynccontextmanager
async def serving_here(app: ASGIApp) -> AsyncIterator[str]:
    """Serve on a free local port, in the running event loop; yield the URL. The application must check clients."""
    with listen("127.0.0.1", 0) as listener:
        listener.listen()  # whoever comes before the server runs waits
        server = uvicorn.Server(settings(app, grace=1, keep_alive=3600))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


def local_only(app: ASGIApp, listener: socket.socket) -> ASGIApp:
    """If only this machine can connect, refuse web pages: requests with a foreign host (DNS rebinding) or Origin.

    A browser sends Origin with every request that can change something; other programs send no Origin.
    """
    if not is_local(listener):
        return app
    names = {"localhost", "127.0.0.1", "::1", listener.getsockname()[0]}

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await app(scope, receive, send)
        headers = Headers(scope=scope)
        host, origin = headers.get("host", "").lower(), headers.get("origin")
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            name = None
        if name not in names:
            refused = 400, "this server answers only to the name localhost (a proxy must send `Host: localhost`)"
        elif origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}"):
            refused = 403, f"web pages of {origin[:100]!r} may not use this server"
        else:
            return await app(scope, receive, send)
        error = {"message": refused[1], "type": "invalid_request_error", "param": None, "code": None}
        await JSONResponse({"error": error}, refused[0])(scope, receive, send)

    return guarded
