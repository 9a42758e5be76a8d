"""`hone inference --backend vllm`."""

from __future__ import annotations

import contextlib
import signal
import sys
from pathlib import Path
from typing import Any

from hone.errors import UserError
from hone.extensions.server.commands import introduction
from hone.extensions.vllm.server import VllmServer
from hone.inference.memory import KV_GIB
from hone.loops.shared_memory import given_folder, scratch_folder
from hone.model.files import TINY, resolve_model
from hone.model.hf import load_model, save_model
from hone.model.rendering import read_override
from hone.model.tokenizer import save_tokenizer


def serve(config: Any) -> None:
    """Serve with vLLM until SIGINT or SIGTERM."""
    with contextlib.suppress(KeyboardInterrupt), scratch_folder("vllm") as scratch:
        _serve(config, scratch)


def _serve(config: Any, scratch: Path) -> None:
    # Also SIGINT, which a shell's background processes ignore.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    name = config.model.name
    model, template = scratch / "model" if name == TINY else resolve_model(name), None
    if name == TINY:
        save_model(load_model(TINY, seed=config.seed, init=config.model.init), model)
        save_tokenizer(model)
    if config.weights_root is not None and not config.weights_root.is_dir():
        raise UserError(f"weights_root = {config.weights_root} is not a folder: give one that exists")
    if config.model.chat_template is not None:
        template = scratch / "template.jinja"
        template.write_text(read_override(config.model.chat_template), encoding="utf-8")
    fields = ["dtype", "host", "port", "max_model_len", "threads", "seed", "weights_root", "api_key"]
    fields += ["max_lora_rank", "tensor_parallel"]
    server = VllmServer(
        model,
        log=Path(f"outputs/vllm-{config.port}.log"),
        device=config.model.device,
        python=config.vllm_python,
        chat_template=None if template is None else str(template),
        served_name=name,
        kv_gib=config.kv_gib,
        memory=given_folder(),
        progress=lambda line: print(line, flush=True),
        **{field: getattr(config, field) for field in fields},
    )
    if server.installed.cpu:
        server.kv_gib = config.kv_gib or KV_GIB
    with server:
        print(introduction(config, server.described), flush=True)
        code = server.wait()
        print(f"error: vLLM ended with exit code {code}: {server.why()}", file=sys.stderr, flush=True)
        raise SystemExit(1)
