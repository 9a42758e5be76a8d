"""Prints, as JSON, what three steps and one after a resume give on the fake GPU, by precision and form of the state.

Moments of 8 bits are not among them: torchao's tensors want the real device of what they are made of.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import fake_cuda  # isort: skip  it patches torch.cuda before hone is there

sys.path.append(str(Path(__file__).parents[1] / "trainer"))
from rank_worker import sequences

from hone.algorithms.losses import sft_objective
from hone.config.shared import InitConfig, OptimConfig, SchedulerConfig
from hone.model.presets import random_decoder, tiny_config
from hone.trainer.packing import deal
from hone.trainer.step import Trainer

CONFIG = tiny_config(InitConfig(layers=2, hidden=64, heads=2, kv_heads=1, head_dim=32, intermediate=128))


def make_trainer(precision: str, seed: int, settings: dict[str, object]) -> Trainer:
    model = random_decoder(CONFIG, seed=seed, precision=precision).to("cuda:0")
    return Trainer(model, OptimConfig(lr=1e-2, **settings), SchedulerConfig(), 10, sft_objective)


def result(precision: str, settings: dict[str, object]) -> dict[str, object]:
    def train(trainer: Trainer, count: int) -> list[dict[str, float]]:
        return [trainer.step(deal(sequences(0), 60, "cuda:0")) for _ in range(count)]

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
    hosted = [master for master in straight.optimizer.masters.values() if not master.is_cuda]
    blocks = len({master.untyped_storage().data_ptr() for master in hosted})
    found = {"lines": lines, "straight": after[0], "resumed": after[1]}
    return found | {"devices": sorted(devices), "blocks": blocks}


with fake_cuda.FakeCuda().there():
    forms: list[dict[str, object]] = [{}, {"offload": True}]
    found = {p: {"".join(form): result(p, form) for form in forms} for p in ("fp32", "bf16_linear", "bf16")}
json.dump(found, sys.stdout)
