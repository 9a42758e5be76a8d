"""Threads, kernels, and what deterministic kernels cost."""

from __future__ import annotations

import pytest
import torch

from hone.composition import machine
from hone.composition.machine import cost_sentence, determinism_cost, determinism_note
from hone.errors import UserError
from hone.model.hf import load_model


@pytest.fixture(autouse=True)
def _kernels_as_they_were():
    before = torch.are_deterministic_algorithms_enabled()
    yield
    torch.use_deterministic_algorithms(before)


class Clock:
    """Read twice a step. With deterministic kernels it takes 1.25 s, without 1 s; the first of each, ten times that."""

    def __init__(self) -> None:
        self.now = 0.0
        self.reads: list[bool] = []

    def __call__(self) -> float:
        if len(self.reads) % 2:
            slow = 10 if len(self.reads) < 4 else 1
            self.now += slow * (1.25 if torch.are_deterministic_algorithms_enabled() else 1.0)
        self.reads.append(torch.are_deterministic_algorithms_enabled())
        return self.now


@pytest.mark.parametrize("pinned", [True, False])
def test_the_cost_is_that_of_turns_taken_with_and_without(tiny_model_dir, pinned: bool):
    model = load_model(tiny_model_dir)
    weights = [p.clone() for p in model.parameters()]
    torch.use_deterministic_algorithms(pinned)
    clock = Clock()
    assert determinism_cost(model, 8, 32, seconds=8.0, clock=clock) == pytest.approx(0.25)
    assert clock.reads == [False, False, True, True] * 5  # 2.25 s a turn, after the first
    assert torch.are_deterministic_algorithms_enabled() is pinned
    assert all(p.grad is None and p.equal(w) for p, w in zip(model.parameters(), weights, strict=True))


def test_one_counted_turn_is_taken_however_long_it_is(tiny_model_dir):
    assert determinism_cost(load_model(tiny_model_dir), 8, 32, seconds=0.0, clock=Clock()) == pytest.approx(0.25)


def test_a_measurement_that_fails_leaves_the_kernels_as_they_were(tiny_model_dir, monkeypatch):
    torch.use_deterministic_algorithms(False)

    def fails(*args):
        if torch.are_deterministic_algorithms_enabled():
            raise RuntimeError("x_cuda does not have a deterministic implementation, but you set it.\nMore")
        return torch.ones(2, requires_grad=True), None

    monkeypatch.setattr(machine, "token_logprobs", fails)
    with pytest.raises(RuntimeError):
        determinism_cost(load_model(tiny_model_dir), 8, 32)
    assert not torch.are_deterministic_algorithms_enabled()


def on_gpu():
    """A stand-in for a model on a GPU, and deterministic kernels."""
    torch.use_deterministic_algorithms(True)
    return type("Model", (), {"device": torch.device("cuda")})()


def test_the_note_says_what_the_machine_was_measured_to_lose(monkeypatch):
    asked = []
    monkeypatch.setattr(machine, "determinism_cost", lambda model, *args: asked.append(args) or 0.084)
    note = determinism_note(on_gpu(), 512)
    assert note.startswith("Deterministic kernels (deterministic = true)")
    assert note.endswith("forward and backward of 4,096 tokens take 8 % longer than without.")
    determinism_note(on_gpu(), 512, micro_batch_tokens=1024)
    assert asked == [(512, 4096), (512, 1024)]
    assert "no longer than" in cost_sentence(-0.03, 4096)


def test_no_note_where_there_is_nothing_to_choose(tiny_model_dir, monkeypatch):
    monkeypatch.setattr(machine, "determinism_cost", lambda *args: pytest.fail("measured"))
    gpu = on_gpu()
    assert determinism_note(load_model(tiny_model_dir), 512) == ""
    torch.use_deterministic_algorithms(False)
    assert determinism_note(gpu, 512) == ""


def test_an_operation_without_a_deterministic_kernel_is_told_with_the_remedy(monkeypatch):
    def fails(*args):
        raise RuntimeError("x_cuda does not have a deterministic implementation, but you set it.\nMore")

    monkeypatch.setattr(machine, "determinism_cost", fails)
    with pytest.raises(UserError, match=r"x_cuda does not have .*: set --deterministic false; the run is marked"):
        determinism_note(on_gpu(), 512)

    def other(*args):
        raise RuntimeError("an illegal memory access")

    monkeypatch.setattr(machine, "determinism_cost", other)
    with pytest.raises(RuntimeError, match="illegal"):
        determinism_note(on_gpu(), 512)
