"""`hone inference`: serve a model over the OpenAI protocol until it is told to stop.

inference --model.name outputs/weights/step_100
"""

from __future__ import annotations

import errno
import json
import shlex
import signal
import socket

import uvicorn
from fastapi import FastAPI

from hone.commands.api_key import api_key
from hone.commands.machine import configure, device_of
from hone.config.inference import ServeConfig
from hone.errors import UserError
from hone.inference.engine import Engine
from hone.inference.server.app import create_app
from hone.inference.server.service import Service
from hone.model.chat import load_renderer
from hone.model.decoder import Decoder
from hone.model.files import TINY
from hone.model.hf import load_model

GRACE = 5
"""Seconds that requests in flight have to end when the server is stopped."""


def run(config: ServeConfig) -> int:
    """Serves until SIGINT or SIGTERM; returns 0 then. UserError if the port is taken or the model can't be loaded."""
    key = config.api_key or api_key(config.api_key_var, "--api-key-var")
    root = config.weights_folder
    if root is not None and config.weights_root is None:
        root.mkdir(parents=True, exist_ok=True)  # whichever process of a run comes first makes it
    config = config.model_copy(update={"api_key": key, "weights_root": root})
    if config.backend == "vllm":
        from hone.commands.inference_vllm import serve

        _listen(config.host, config.port).close()  # what is wrong with the address is said here, not in vLLM's log
        return serve(config, lambda described: _intro(config, described))
    with _listen(config.host, config.port) as listener:
        print(f"Loading {config.model.name} ...", flush=True)
        device = device_of(config.model.device)
        model = load_model(
            config.model.name, device=device, precision=config.precision, seed=config.seed, init=config.model.init
        )
        threads = configure(config.threads, model.num_parameters)
        renderer = load_renderer(config.model.name, config.model.chat_template)
        engine = Engine(
            model,
            kv_bytes=int(config.kv_gib * 2**30),
            prefill_tokens=config.prefill_tokens,
            prefix_bytes=int(config.prefix_gib * 2**30),
            batch_invariant=config.batch_invariant,
            cuda_graphs=config.cuda_graphs,
        )
        service = Service(engine)
        app = create_app(service, renderer, config.model.name, config.api_key, config.weights_root, config.seed)
        _serve(app, listener, _intro(config, _described(config, model, threads)))
    print("Stopped.")
    return 0


def _listen(host: str, port: int) -> socket.socket:
    """A socket bound to the address, before the model takes its time to load."""
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


def _serve(app: FastAPI, listener: socket.socket, intro: str) -> None:
    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                print(intro, flush=True)

    settings = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=GRACE)
    # uvicorn raises the signal that ended it once more when it has shut down; then there is nothing left to end.
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        Server(settings).run(sockets=[listener])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _described(config: ServeConfig, model: Decoder, threads: int) -> str:
    plural = "s" if threads > 1 else ""
    return f"{model.num_parameters / 1e6:.2f}M parameters, {config.precision}, {model.device}, {threads} thread{plural}"


def _intro(config: ServeConfig, described: str) -> str:
    """What is served, and two lines to try it with; `described` is what samples."""
    name, local = (
        config.model.name,
        "localhost" if config.host in ("127.0.0.1", "0.0.0.0", "::", "::1") else config.host,
    )
    url = f"http://{local}:{config.port}"
    body = json.dumps({"model": name, "prompt": "Hello", "max_tokens": 32, "seed": 0})
    variable = config.api_key_var or "KEY"
    key = f' -H "Authorization: Bearer ${variable}"' if config.api_key else ""
    lines = [f"Serving {name} ({described}) at {url}/v1"]
    if name == TINY:
        lines.append(f"{TINY} is a random model that was never trained; name yours with --model.name")
    if config.host not in ("127.0.0.1", "localhost", "::1") and config.api_key is None:
        lines.append(f"Anyone who reaches {config.host} can use it: set --api-key-var, or leave out --host")
    if config.weights_root is not None:
        lines.append(f"POST /update_weights takes weights under {config.weights_root}")
    lines += [
        f"try         curl {url}/v1/completions{key} -H 'Content-Type: application/json' -d {shlex.quote(body)}",
        f"            vf-eval reverse-text -m {shlex.quote(name)} -b {url}/v1{f' -k {variable}' if key else ''}",
        "stop        Ctrl-C",
    ]
    return "\n".join(lines)
