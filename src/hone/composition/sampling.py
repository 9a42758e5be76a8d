"""What `hone rl` samples from, if not from the engine in this process: a server that is up, or vLLM as a child."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import torch

from hone.client import Endpoint, api_key
from hone.config.rl import SAMPLED_BY, RLConfig
from hone.extensions.vllm import VllmServer
from hone.extensions.vllm.server import check_device, find_vllm
from hone.model.chat import ChatRenderer
from hone.model.hf import save_model
from hone.orchestrator.reach import Server, reach
from hone.orchestrator.remote import ServerPolicy
from hone.orchestrator.shared_memory import NO_ROOM, disk_message, shared_folder, shortage
from hone.orchestrator.types import Policy
from hone.runs.view import PROCESS_LOGS, SPOOL
from hone.runs.writer import RunWriter
from hone.trainer.export import Spool
from hone.trainer.step import Trainer


def reached(config: RLConfig, renderer: ChatRenderer, parameters: int) -> Server | None:
    """Return the server that the run is to use for its model of so many `parameters`, if it is to use one that is up.

    Raises UserError if it can't, or has no vLLM.
    """
    if config.inference.backend == "vllm":
        flag = "--inference.vllm-python"
        check_device(find_vllm(config.inference.vllm_python, flag), config.model.device, flag)
    if not (urls := config.orchestrator.client.urls):
        return None
    (url,) = urls  # several imply mode split
    endpoint = endpoint_of(config, url)
    server = reach(endpoint, config.model.name, renderer, config.seq_len, config.output_dir / SPOOL, parameters)
    if server.backend == "vllm":
        config.refuse_cuts()
    return server


def server_policy(
    stack: ExitStack, config: RLConfig, server: Server | None, run: RunWriter, trainer: Trainer, renderer: ChatRenderer
) -> Policy:
    """Make the policy of the run. A server takes weights from a spool in the run's directory; one started here ends
    with `stack`, and takes them from memory if two versions of the model have room there.
    """
    assert config.sampled_by is not None
    run.mark_inexact(run.start_step, SAMPLED_BY + config.sampled_by)
    say = run.display.message
    no_room = partial(say, disk_message(NO_ROOM))
    memory = stack.enter_context(shared_folder(say)) if server is None else None
    size = trainer.model.num_parameters * trainer.model.embed.itemsize
    if memory is not None and (sentence := shortage(memory, size, versions=2)) is not None:
        say(sentence)
        memory = None
    alone = config.inference.max_lora_rank is not None
    spool = Spool(config.output_dir / SPOOL, trainer.model, memory, no_room, adapter_alone=alone)
    remove = partial(shutil.rmtree, spool.folder, ignore_errors=True)
    remove()  # what a killed process left
    stack.callback(remove)
    if server is None:
        with run.phase("start"):
            vllm = stack.enter_context(_vllm(config, run, trainer, renderer, spool))
        server = Server(replace(endpoint_of(config, vllm.url), log=vllm.log), "vllm", config.model.name)
    return ServerPolicy([server], renderer, trainer.model.config.eos_token_ids, spool)


def endpoint_of(config: RLConfig, url: str) -> Endpoint:
    """Return the server at `url`, with the patience and the key that the config names."""
    client = config.orchestrator.client
    key = api_key(client.api_key_var, "--orchestrator.client.api-key-var")
    return Endpoint(url, key, timeout=client.timeout, max_retries=client.max_retries)


def _vllm(config: RLConfig, run: RunWriter, trainer: Trainer, renderer: ChatRenderer, spool: Spool) -> VllmServer:
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
