"""A vLLM on the trainer's GPU is asleep while the trainer works, and has new weights before it samples."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from hone.client import Endpoint
from hone.extensions.vllm.sampling import SleepingPolicy
from hone.inference.types import SamplingParams
from hone.loops.colocated import LocalTrainer
from hone.loops.reach import Server


class Noted:
    """Notes what is called on it, in `asked`."""

    def __init__(self, asked: list[str], **results: Any) -> None:
        self._asked, self._results = asked, results

    def __getattr__(self, name: str) -> Any:
        def call(*_: Any, **__: Any) -> Any:
            self._asked.append(name)
            return self._results.get(name)

        return call


def sleeping(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> SleepingPolicy:
    server = Server(Endpoint("http://localhost:1/v1"), "vllm", "model")
    renderer = cast(Any, SimpleNamespace(stop_ids=()))
    spool = cast(Any, Noted(asked, put=Path("step")))
    policy = SleepingPolicy(cast(Any, Noted(asked)), [server], renderer, (), spool)
    monkeypatch.setattr(policy.fleet, "load", lambda version, path: asked.append(f"load {version}"))
    monkeypatch.setattr(policy.fleet, "ask", lambda *_: asked.append("ask"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: asked.append("empty_cache"))
    return policy


def test_it_sleeps_while_the_trainer_works_and_wakes_with_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    policy = sleeping(asked, monkeypatch)
    trainer = LocalTrainer(cast(Any, Noted(asked, fingerprint="f", step={})), 64, policy)
    for version in (1, 2):
        policy.sample([], SamplingParams())
        trainer.put(0, cast(Any, None))
        trainer.publish(version)
    step = ["fingerprint", "post", "deal", "step", "token_stats", "put", "empty_cache"]
    assert asked == ["ask", *step, "load 1", "ask", *step, "load 2"]


def test_after_a_step_that_was_given_up_it_wakes_before_it_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    policy = sleeping(asked, monkeypatch)
    policy.sleep()
    for _ in range(2):
        policy.sample([], SamplingParams())
    assert asked == ["post", "put", "empty_cache", "load 0", "ask", "ask"]
