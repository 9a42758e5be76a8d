"""`hone inference`: serve a model over the OpenAI protocol until it is told to stop.

inference --model.name outputs/weights/step_100
"""

from __future__ import annotations

import json
import shlex
import socket

from hone.commands.serving import is_local, listen, serve
from hone.composition.machine import configure, device_of
from hone.config.inference import ServeConfig
from hone.errors import UserError
from hone.inference.api_key import api_key
from hone.inference.engine import Engine
from hone.inference.server.app import create_app
from hone.inference.server.service import Service
from hone.model.chat import load_renderer
from hone.model.decoder import Decoder
from hone.model.files import TINY
from hone.model.hf import load_model, non_finite

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
        from hone.commands import inference_vllm

        _listen(config).close()  # what is wrong with the address is said here, not in vLLM's log
        return inference_vllm.serve(config, lambda described: _intro(config, described))
    with _listen(config) as listener:
        print(f"Loading {config.model.name} ...", flush=True)
        device = device_of(config.model.device)
        model = load_model(
            config.model.name, device=device, precision=config.precision, seed=config.seed, init=config.model.init
        )
        if (found := non_finite(model)) is not None:
            raise UserError(
                f"{found[1]} values of {found[0]} are not finite: serve other weights than {config.model.name}"
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
        serve(app, listener, _intro(config, _described(config, model, threads)), GRACE)
    print("Stopped.")
    return 0


def _listen(config: ServeConfig) -> socket.socket:
    """Return the server's socket. Raises UserError if other machines could connect, and no key is set."""
    listener = listen(config.host, config.port)
    if config.api_key is None and not is_local(listener):
        listener.close()
        raise UserError(
            f"anyone who reaches {config.host or 'this machine'} could use this server: put a key into an environment "
            "variable and name that with --api-key-var, or leave out --host"
        )
    return listener


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
    if config.weights_root is not None:
        lines.append(f"weights     POST /update_weights takes those under {config.weights_root}")
    else:
        lines.append("weights     it takes none: for a run to train through it, add --weights-root outputs")
    lines += [
        f"try         curl {url}/v1/completions{key} -H 'Content-Type: application/json' -d {shlex.quote(body)}",
        f"            vf-eval reverse-text -m {shlex.quote(name)} -b {url}/v1{f' -k {variable}' if key else ''}",
        "stop        Ctrl-C",
    ]
    return "\n".join(lines)
