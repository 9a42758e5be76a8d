"""The servers that `hone rl` samples from instead of its engine: a running server, or one that hone starts."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from functools import partial

import torch

from hone.client import Endpoint, api_key
from hone.config.rl import SAMPLED_BY, RLConfig
from hone.extension import MakePolicy, gathered, sampler_name
from hone.inference.policy import Policy
from hone.loops.reach import Server, connect_to_server
from hone.loops.remote import ServerPolicy
from hone.loops.shared_memory import NO_ROOM, disk_message, shared_folder, shortage
from hone.model.chat import ChatRenderer
from hone.runs.view import SPOOL
from hone.runs.writer import RunWriter
from hone.trainer.export import Spool
from hone.trainer.step import Trainer


def other_sampler(config: RLConfig, renderer: ChatRenderer, parameters: int) -> tuple[str, MakePolicy]:
    """Return the kind of server to sample from, and a function that makes its policy.

    Raises UserError if the server can't be used.
    """
    if (backend := gathered("SAMPLERS", {}).get(config.inference.backend)) is not None:
        return config.inference.backend, backend.sampler(config)
    (url,) = config.orchestrator.client.urls  # several imply mode split
    endpoint, spool = endpoint_of(config, url), config.output_dir / SPOOL
    server = connect_to_server(endpoint, config.model.name, renderer, config.seq_len, spool, parameters)
    if not server.is_hone:
        config.refuse_cuts(sampler_name(server.backend))
    return server.backend, partial(server_policy, server)


def server_policy(
    server: Server, stack: ExitStack, config: RLConfig, run: RunWriter, trainer: Trainer, renderer: ChatRenderer
) -> Policy:
    return ServerPolicy([server], renderer, trainer.model.config.eos_token_ids, spool_of(stack, config, run, trainer))


def spool_of(
    stack: ExitStack,
    config: RLConfig,
    run: RunWriter,
    trainer: Trainer,
    in_memory: bool = False,
    adapter_alone: bool = False,
    dtype: torch.dtype | None = None,
) -> Spool:
    """Return the spool of weights in `dtype` for a server. With `in_memory` it is in memory if two versions fit."""
    assert config.sampled_by is not None
    run.mark_inexact(run.start_step, SAMPLED_BY + config.sampled_by)
    say = run.display.message
    no_room = partial(say, disk_message(NO_ROOM))
    memory = stack.enter_context(shared_folder(say)) if in_memory else None
    size = trainer.model.num_parameters * (dtype or trainer.model.embed.dtype).itemsize
    if memory is not None and (sentence := shortage(memory, size, versions=2)) is not None:
        say(sentence)
        memory = None
    spool = Spool(config.output_dir / SPOOL, trainer.model, memory, no_room, adapter_alone=adapter_alone, dtype=dtype)
    remove = partial(shutil.rmtree, spool.folder, ignore_errors=True)
    remove()  # what a killed process left
    stack.callback(remove)
    return spool


def endpoint_of(config: RLConfig, url: str) -> Endpoint:
    client = config.orchestrator.client
    key = api_key(client.api_key_var, "--orchestrator.client.api-key-var")
    return Endpoint(url, key, timeout=client.timeout, max_retries=client.max_retries)
