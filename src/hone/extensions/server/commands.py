"""`hone inference`: serve a model over the OpenAI protocol until stopped, with hone's engine or another one.

inference --model.name outputs/weights/step_100
"""

from __future__ import annotations

import shlex
import socket

from hone.client import api_key
from hone.config.base import changed
from hone.errors import UserError
from hone.extension import gathered
from hone.extensions.server.app import create_app
from hone.extensions.server.config import ServeConfig
from hone.extensions.server.service import Service
from hone.inference.engine import Engine
from hone.inference.memory import GIB
from hone.loops.machine import configure, device_of, serving_kv_gib
from hone.loops.shared_memory import given_folder
from hone.model.chat import load_renderer
from hone.model.files import TINY
from hone.model.hf import load_model
from hone.serving import is_local, listen, serve

GRACE = 5
"""Seconds that requests in flight get to end when the server stops."""


def run(config: ServeConfig) -> int:
    """Serve until SIGINT or SIGTERM, then return 0. Raises UserError if the port is taken or the model can't load."""
    key = config.api_key or api_key(config.api_key_var, "--api-key-var")
    root = config.weights_folder
    if root is not None and config.weights_root is None:
        root.mkdir(parents=True, exist_ok=True)  # the run's first process makes the folder
    config = changed(config, {"api_key": key, "weights_root": root})
    with listen(config.host, config.port) as listener:
        if key is None and not is_local(listener):
            raise UserError(
                f"anyone who reaches {config.host or 'this machine'} could use this server: put a key into an "
                "environment variable and give its name to --api-key-var, or leave out --host"
            )
        if config.backend == "hone":
            _serve_hone(config, listener)
    if config.backend != "hone":  # a wrong address is reported above, not in the server's log
        gathered("SAMPLERS", {})[config.backend].serve(config)
    print("Stopped.")
    return 0


def _serve_hone(config: ServeConfig, listener: socket.socket) -> None:
    name = config.model.name
    print(f"Loading {name} ...", flush=True)
    device = device_of(config.model.device)
    model = load_model(
        name,
        device=device,
        precision=config.precision,
        seed=config.seed,
        init=config.model.init,
        implementation=config.model.implementation,
    )
    on_cpu = model.device.type == "cpu"
    threads = configure(
        config.threads, model.num_parameters, deterministic=on_cpu, compiled=config.model.compile, device=model.device
    )
    renderer = load_renderer(name, config.model.chat_template, config.model.special_tokens)
    kv_gib = config.kv_gib or serving_kv_gib(str(model.device))
    engine = Engine(
        model,
        kv_bytes=int(kv_gib * GIB),
        prefill_tokens=2048,  # longer prompts are split; other requests decode between the parts
        prefix_bytes=GIB // 2,
        batch_invariant=config.batch_invariant,
        cuda_graphs=config.decodes_with_graphs(model.device.type),
        tokenizer=renderer.tokenizer,
    )
    root, memory = config.weights_root, given_folder()
    app = create_app(Service(engine), renderer, name, config.api_key, root, memory, config.seed)
    place = f"{model.device}, {threads} thread{'s' if threads > 1 else ''}, {kv_gib:.3g} GiB for keys and values"
    described = f"{model.num_parameters / 1e6:.2f}M parameters, {config.precision}, {place}"
    serve(app, listener, introduction(config, described), GRACE)


def introduction(config: ServeConfig, described: str) -> str:
    """Return a text that says what is served and how to try it. `described` names the model and its device."""
    name, host = config.model.name, config.host
    url = f"http://{'localhost' if host in ('127.0.0.1', '0.0.0.0', '::', '::1') else host}:{config.port}"
    key = f" -k {config.api_key_var or 'KEY'}" if config.api_key else ""
    weights = "none are taken: to train through this server, add --weights-root outputs"
    if config.weights_root is not None:
        weights = f"POST /update_weights takes weights under {config.weights_root}"
    random = f"{TINY} is a random model that was never trained; give yours with --model.name\n" if name == TINY else ""
    return (
        f"Serving {name} ({described}) at {url}/v1\n{random}weights     {weights}\n"
        f"try         vf-eval reverse-text -m {shlex.quote(name)} -b {url}/v1{key}\nstop        Ctrl-C"
    )
