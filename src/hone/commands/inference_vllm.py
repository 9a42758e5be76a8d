"""`hone inference --backend vllm`: vLLM in place of the own engine, until it is told to stop."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from hone.config.inference import ServeConfig
from hone.errors import UserError
from hone.inference.vllm import VllmServer
from hone.model.files import TINY, resolve_model
from hone.model.hf import load_model, save_model
from hone.model.template import read_override
from hone.model.tokenizer import save_tokenizer


def serve(config: ServeConfig, intro: Callable[[str], str]) -> int:
    """Serves until SIGINT or SIGTERM; returns 0 then. `intro` makes the lines that say so from what is behind them.

    UserError if vLLM is not installed, does not start, or ends by itself.
    """
    # SIGINT as well: what a shell starts in the background ignores it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        with ExitStack() as stack:
            server = stack.enter_context(_server(config, stack))
            print(intro(server.described), flush=True)
            code = server.wait()
            raise UserError(f"vLLM ended by itself, with exit code {code}: {server.why()}")
    except KeyboardInterrupt:
        print("Stopped.")
        return 0


def _server(config: ServeConfig, stack: ExitStack) -> VllmServer:
    """The server, about to be started; files made for it go when `stack` is left."""

    def folder() -> Path:
        return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hone-vllm-")))

    name = config.model.name
    model = folder() if name == TINY else resolve_model(name)
    if name == TINY:
        save_model(load_model(TINY, seed=config.seed, init=config.model.init), model)
        save_tokenizer(model)
    if config.weights_root is not None and not config.weights_root.is_dir():
        raise UserError(f"weights_root = {config.weights_root} is not a folder: give one that exists")
    template = None
    if config.model.chat_template is not None:
        template = folder() / "template.jinja"
        template.write_text(read_override(config.model.chat_template))
    return VllmServer(
        model,
        log=Path(f"outputs/vllm-{config.port}.log"),
        dtype=config.dtype,
        device=config.model.device,
        host=config.host,
        port=config.port,
        max_model_len=config.max_model_len,
        python=config.vllm_python,
        threads=config.threads,
        kv_gib=config.kv_gib,
        seed=config.seed,
        chat_template=str(template) if template else None,
        weights_root=config.weights_root,
        served_name=name,
        api_key=config.api_key,
        progress=lambda line: print(line, flush=True),
    )
