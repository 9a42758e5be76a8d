"""Prints, as JSON, what three steps and one after a resume give on the fake GPU, by precision and form of the state."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec

import torch
from fake_cuda import FakeCuda
from rank_worker import CONFIG, sequences

from hone.algorithms.losses import sft_objective
from hone.config.shared import OptimConfig, SchedulerConfig
from hone.model.presets import random_decoder
from hone.trainer.packing import split_micro_batches
from hone.trainer.step import Trainer


def make_trainer(precision: str, seed: int, settings: dict[str, object]) -> Trainer:
    model = random_decoder(CONFIG, seed=seed, precision=precision).to("cuda:0")
    trainer = Trainer(model, OptimConfig(lr=1e-2, **settings), SchedulerConfig(), 10, sft_objective)
    if "state" in settings:  # a fake GPU has no compiler
        trainer.optimizer._uncompiled = lambda: torch.compiler.set_stance("force_eager")
    return trainer


def result(precision: str, settings: dict[str, object]) -> dict[str, object]:
    def train(trainer: Trainer, count: int) -> list[dict[str, float]]:
        return [trainer.step(split_micro_batches(sequences(0), 60, "cuda:0")) for _ in range(count)]

    straight, resumed = make_trainer(precision, 1, settings), make_trainer(precision, 2, settings)
    lines = train(straight, 3)
    saved = {group: {k: v.cpu().clone() for k, v in named.items()} for group, named in straight.tensors().items()}
    resumed.load_tensors(saved, 3)
    after = [(train(trainer, 1), trainer.fingerprint()) for trainer in (straight, resumed)]
    devices = {
        "gpu" if tensor.is_cuda else "host"
        for master in straight.optimizer.masters.values()
        for kind, tensor in (("master", master), *straight.optimizer.adamw.state[master].items())
        if kind != "step"
    }
    return {"lines": lines, "straight": after[0], "resumed": after[1], "devices": sorted(devices)}


with FakeCuda().there():
    forms: list[dict[str, object]] = [{}, {"offload": True}]
    forms += [{"state": "8bit"}] if find_spec("torchao") else []
    found = {p: {"".join(form): result(p, form) for form in forms} for p in ("fp32", "bf16_linear", "bf16")}
json.dump(found, sys.stdout)
