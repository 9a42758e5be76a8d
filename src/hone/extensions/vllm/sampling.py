"""The policy of `hone rl` with `inference.backend = "vllm"`: vLLM as a child of the run."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
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
    """Return the function `policy`. Raises UserError if no vLLM for the device is installed."""
    flag = "--inference.vllm-python"
    check_device(find_vllm(config.inference.vllm_python, flag), config.model.device, flag)
    return policy


class SleepingPolicy(ServerPolicy):
    """Samples with a vLLM on the trainer's GPU. vLLM frees its memory while the trainer works."""

    def __init__(self, vllm: VllmServer, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.vllm, self.asleep = vllm, False

    def sleep(self) -> None:
        self.vllm.post("/sleep", {})
        self.asleep = True

    def load(self, version: int, path: Path | None = None) -> None:
        assert self.spool is not None
        path = path or self.spool.put(version)
        torch.cuda.empty_cache()  # the server needs what the train step has freed
        super().load(version, path)
        self.asleep = False

    def sample(self, *arguments: Any, **named: Any) -> Any:
        if self.asleep:  # the train step was given up
            self.load(self.version)
        return super().sample(*arguments, **named)


def policy(stack: ExitStack, config: Any, run: RunWriter, trainer: Trainer, renderer: ChatRenderer) -> ServerPolicy:
    """Start vLLM until `stack` closes; return the policy that samples with it."""
    alone = config.inference.max_lora_rank is not None
    # With other implementations, parts of the model may stay in fp32.
    half = config.inference.served_dtype(config) == "bfloat16" and trainer.model.config.implementation == "hone"
    spool = spool_of(stack, config, run, trainer, True, alone, torch.bfloat16 if half else None)
    with run.phase("start"):
        vllm = stack.enter_context(_vllm(config, run, trainer, renderer, spool))
    server = Server(replace(endpoint_of(config, vllm.url), log=vllm.log), "vllm", config.model.name)
    arguments = [server], renderer, trainer.model.config.eos_token_ids, spool
    return SleepingPolicy(vllm, *arguments) if not vllm.installed.cpu else ServerPolicy(*arguments)


def _vllm(config: Any, run: RunWriter, trainer: Trainer, renderer: ChatRenderer, spool: Spool) -> VllmServer:
    """Return a vLLM server with the current model, but without the adapter if updates send only adapters."""
    folder = spool.folder / "model"
    off = {name: torch.zeros_like(p) for name, p in trainer.model.trained.items()} if spool.adapter_alone else None
    save_model(trainer.model, folder, parameters=off)
    renderer.save(folder)
    return VllmServer(
        folder,
        log=run.folder / PROCESS_LOGS / "vllm.log",
        dtype=config.inference.served_dtype(config),
        device=config.model.device,
        max_model_len=min(config.seq_len + 1, trainer.model.config.max_position_embeddings),
        python=config.inference.vllm_python,
        kv_gib=config.inference.kv_gib,
        shares_gpu=True,
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
