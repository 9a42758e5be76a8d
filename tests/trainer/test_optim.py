"""Muon, and AdamW's lean forms: moments of 8 bits (torchao), and masters on the host."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from rank_worker import sequences

from hone.algorithms.losses import sft_objective
from hone.config.shared import InitConfig, OptimConfig, SchedulerConfig
from hone.errors import UserError
from hone.loops.rl import RL
from hone.loops.sft import SFT
from hone.model.presets import random_decoder, tiny_config
from hone.runs.checkpoint import load_groups, save_groups
from hone.trainer.packing import deal
from hone.trainer.step import Trainer

PRECISIONS = ["fp32", "bf16_linear", "bf16"]
CONFIG = tiny_config(InitConfig(layers=2, hidden=64, heads=2, kv_heads=1, head_dim=32, intermediate=128))


def make_trainer(precision: str = "bf16_linear", **optim) -> Trainer:
    settings = OptimConfig(lr=3e-3, weight_decay=0.1, **optim)
    scheduler = SchedulerConfig(type="cosine", warmup_steps=2)
    return Trainer(random_decoder(CONFIG, seed=1, precision=precision), settings, scheduler, 10, sft_objective)


def train(trainer: Trainer, count: int) -> list[dict[str, float]]:
    return [trainer.step(deal(sequences(0), 60)) for _ in range(count)]


def weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat([p.detach().float().flatten() for p in trainer.model.parameters()])


def separate(fused: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies of the layers' matrices, with q, k, v, gate and up apart."""
    q, kv, inner = CONFIG.q_size, CONFIG.kv_size, CONFIG.intermediate_size
    sizes = {"qkv_proj": (q, kv, kv), "gate_up_proj": (inner, inner)}
    found = {}
    for name, tensor in fused.items():
        if name.startswith("layers.") and tensor.ndim == 2:
            for i, part in enumerate(tensor.detach().split(sizes.get(name.split(".")[2], len(tensor)))):
                found[f"{name}.{i}"] = part.clone()
    return found


@pytest.mark.parametrize("precision", PRECISIONS)
def test_muon_updates_as_torchs_does_on_separate_matrices(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit; and what is no matrix of a layer as AdamW does."""
    trainer = make_trainer(precision, type="muon")
    optimizer, masters = trainer.optimizer, trainer.optimizer.masters
    rest = {name: m.detach().clone() for name, m in masters.items() if m.ndim == 1 or name == "embed"}
    matrices = separate(masters)
    assert len(matrices) == 2 * 7 and len(rest) + 2 * 4 == len(masters)
    monkeypatch.setattr(optimizer, "clear", lambda: None)  # leaves the clipped gradients to be looked at
    muon = torch.optim.Muon(matrices.values(), weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW(rest.values(), betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    for step in range(4):
        lr, before = trainer.lr, masters["layers.0.qkv_proj.weight"].detach().clone()
        trainer.step(deal(sequences(step), 60))
        grads = {name: m.grad for name, m in masters.items() if m.grad is not None}
        assert torch.nn.utils.get_total_norm(grads.values()) < 1.001, "clipped"
        for name, grad in separate(grads).items():
            matrices[name].grad = grad
        for name, value in rest.items():
            value.grad = grads[name].clone()
        for other in (muon, adamw):
            other.param_groups[0]["lr"] = lr
            other.step()
        for name, value in separate(masters).items():
            assert torch.equal(value, matrices[name]), name
        for name, value in rest.items():
            assert torch.equal(value, masters[name]), name
        change = masters["layers.0.qkv_proj.weight"].detach() - before
        assert 0.5 < float(change.square().mean().sqrt()) / (0.2 * lr) < 2, "the RMS of an update of AdamW"
        type(optimizer).clear(optimizer)


def test_a_state_of_the_other_type_is_refused() -> None:
    muon, adamw = make_trainer(type="muon"), make_trainer()
    fresh = adamw.tensors()
    train(muon, 1), train(adamw, 1)
    for one, other, name in ((muon, adamw, "adamw"), (adamw, muon, "muon")):
        with pytest.raises(UserError, match=f'set optim.type to "{name}"'):
            one.load_tensors(other.tensors(), 1)
    muon.load_tensors(fresh, 0)  # of no step: there is no state yet
    assert not any(momentum.any() for momentum in muon.optimizer.momenta.values())


@pytest.mark.parametrize("settings", [{"state": "8bit"}, {"type": "muon"}], ids=str)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_run_resumes_to_the_bit(precision: str, settings: dict[str, str], tmp_path: Path) -> None:
    if "state" in settings:
        pytest.importorskip("torchao")
    straight = make_trainer(precision, **settings)
    lines = train(straight, 3)
    save_groups(tmp_path, straight.tensors())
    lines += train(straight, 3)
    resumed = make_trainer(precision, **settings)
    train(resumed, 1)  # what it had is forgotten
    resumed.load_tensors(load_groups(tmp_path), 3)
    assert train(resumed, 3) == lines[3:]
    assert torch.equal(weights(straight), weights(resumed))
    assert straight.tensors().keys() == resumed.tensors().keys()
    for name, value in straight.optimizer.state().items():
        assert torch.equal(value, resumed.optimizer.state()[name]), name


def test_moments_of_8_bits_take_2_bytes_a_weight_and_train_as_fp32_does() -> None:
    pytest.importorskip("torchao")
    lean, plain = make_trainer(state="8bit"), make_trainer()
    losses = [[line["loss"] for line in train(trainer, 10)] for trainer in (lean, plain)]
    assert losses[0] == pytest.approx(losses[1], rel=0.02) and losses[0][-1] < 0.8 * losses[0][0]
    name = "layers.0.gate_up_proj.weight"
    state, size = lean.optimizer.state(), lean.optimizer.params[name].numel()
    kept = {key.split("/")[0]: value for key, value in state.items() if key.endswith(f"/{name}")}
    assert {key: (value.dtype, value.numel()) for key, value in kept.items()} == {
        "step": (torch.float32, 1),
        **{f"{moment}.codes": (torch.uint8, size) for moment in ("exp_avg", "exp_avg_sq")},
        **{f"{moment}.scale": (torch.float32, size // 256) for moment in ("exp_avg", "exp_avg_sq")},
    }
    assert {type(value) for value in state.values()} == {torch.Tensor}
    assert state["exp_avg/norm.weight"].dtype == torch.float32  # too small


def test_a_state_is_rounded_to_8_bits_but_not_made_of_them() -> None:
    pytest.importorskip("torchao")
    lean, plain = make_trainer(state="8bit"), make_trainer()
    train(lean, 2), train(plain, 2)
    saved = plain.tensors()
    lean.load_tensors(saved, 2)
    assert lean.optimizer.state()["exp_avg.codes/embed"].dtype == torch.uint8
    moment = lean.optimizer.adamw.state[lean.optimizer.masters["embed"]]["exp_avg"].dequantize()
    wanted = saved["optimizer"]["exp_avg/embed"]
    assert float((moment - wanted).norm() / wanted.norm()) < 0.02
    # As on a GPU, from a checkpoint on the CPU; "meta" refuses what mixes the two.
    state, master = {}, torch.empty(64, 64, device="meta")
    lean.optimizer._load_8bit(state, master, "exp_avg", "", torch.ones(64, 64))
    assert state["exp_avg"].codes.is_meta
    with pytest.raises(UserError, match=r'set optim\.state to "8bit"'):
        plain.load_tensors(lean.tensors(), 2)


def test_without_torchao_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a run directory is there."""
    monkeypatch.setitem(sys.modules, "torchao.optim", None)
    sft = {"data.env.id": "reverse-text", "optim.state": "8bit"}
    for kind, settings in ((SFT, sft), (RL, {"trainer.optim.state": "8bit"})):
        settings |= {"model.name": "hone/tiny", "output_dir": tmp_path / "out"}
        with pytest.raises(UserError, match=r"pip install 'torchao>=0\.18'"), kind(**settings):
            raise AssertionError
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_on_a_cpu_offloading_changes_nothing(precision: str) -> None:
    plain, offloaded = make_trainer(precision), make_trainer(precision, offload=True)
    assert train(plain, 2) == train(offloaded, 2)
    assert plain.fingerprint() == offloaded.fingerprint()
    assert plain.optimizer.state().keys() == offloaded.optimizer.state().keys()
