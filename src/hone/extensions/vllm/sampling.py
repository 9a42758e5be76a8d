"""The policy of `hone rl` with `inference.backend = "vllm"`: vLLM as a child of the run."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch

from hone.extension import MakePolicy
from hone.extensions.vllm.server import VllmServer, check_device, find_vllm
from hone.loops.reach import Server
from hone.loops.remote import ServerPolicy
from hone.loops.sampling import endpoint_of, spool_of
from hone.model.chat import ChatRenderer
from hone.model.hf import save_model
from hone.runs.view import PROCESS_LOGS
from hone.runs.writer import RunWriter
from hone.trainer.export import Spool
from hone.trainer.step import Trainer


def sampler(config: Any) -> MakePolicy:
    """Return what makes the policy of the run. Raises UserError if there is no vLLM for the device."""
    flag = "--inference.vllm-python"
    check_device(find_vllm(config.inference.vllm_python, flag), config.model.device, flag)
    return policy


def policy(stack: ExitStack, config: Any, run: RunWriter, trainer: Trainer, renderer: ChatRenderer) -> ServerPolicy:
    """Start vLLM, which ends with `stack`, and return the policy behind it."""
    alone = config.inference.max_lora_rank is not None
    spool = spool_of(stack, config, run, trainer, in_memory=True, adapter_alone=alone)
    with run.phase("start"):
        vllm = stack.enter_context(_vllm(config, run, trainer, renderer, spool))
    server = Server(replace(endpoint_of(config, vllm.url), log=vllm.log), "vllm", config.model.name)
    return ServerPolicy([server], renderer, trainer.model.config.eos_token_ids, spool)


def _vllm(config: Any, run: RunWriter, trainer: Trainer, renderer: ChatRenderer, spool: Spool) -> VllmServer:
    """Prepare vLLM for the model as it is now; if it is given adapters alone, for the model without."""
    folder = spool.folder / "model"
    off = {name: torch.zeros_like(p) for name, p in trainer.model.trained.items()} if spool.adapter_alone else None
    save_model(trainer.model, folder, parameters=off)
    renderer.save(folder)
    precision = "float32" if config.precision == "fp32" else "bfloat16"
    return VllmServer(
        folder,
        log=run.folder / PROCESS_LOGS / "vllm.log",
        dtype=precision if config.inference.dtype == "auto" else config.inference.dtype,
        device=config.model.device,
        max_model_len=min(config.seq_len + 1, trainer.model.config.max_position_embeddings),
        python=config.inference.vllm_python,
        kv_gib=config.inference.kv_gib,
        more_room="raise inference.kv_gib, or lower seq_len",
        threads=torch.get_num_threads(),
        seed=config.seed,
        weights_root=spool.folder,
        memory=spool.memory,
        served_name=config.model.name,
        max_lora_rank=config.inference.max_lora_rank,
        tensor_parallel=config.inference.tensor_parallel,
        progress=run.display.message,
    )
        shares_gpu=True,
