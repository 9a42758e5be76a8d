"""A vLLM on the trainer's GPU is asleep while the trainer works, and has new weights before it samples."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from hone.client import Endpoint
from hone.config.parse import parse
from hone.config.rl import RLConfig
from hone.extensions.vllm import sampling
from hone.extensions.vllm.sampling import SleepingPolicy
from hone.extensions.vllm.server import Installed
from hone.inference.types import SamplingParams
from hone.loops.colocated import LocalTrainer
from hone.loops.reach import Server
from hone.loops.remote import ServerPolicy


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


@pytest.mark.parametrize(
    ("flags", "on_gpu", "implementation", "served", "written"),
    [
        ("--precision bf16_linear", True, "hone", "bfloat16", torch.bfloat16),
        ("--precision bf16_linear", False, "hone", "bfloat16", torch.bfloat16),
        ("--precision bf16_linear", True, "transformers", "bfloat16", None),
        ("--precision bf16_linear --inference.dtype float32", True, "hone", "float32", None),
        ("--precision fp32", True, "hone", "float32", None),
        ("--precision fp32 --inference.dtype bfloat16", True, "hone", "bfloat16", torch.bfloat16),
    ],
)
def test_weights_travel_in_the_servers_dtype(monkeypatch, flags, on_gpu, implementation, served, written) -> None:
    seen: list[Any] = []

    @contextmanager
    def started(config: Any, *_: Any) -> Any:
        seen.append(config.inference.served_dtype(config))
        yield SimpleNamespace(
            url="http://localhost:1/v1", log=Path("log"), installed=Installed(Path("python"), "0.32.0", cpu=not on_gpu)
        )

    monkeypatch.setattr(sampling, "spool_of", lambda *given: seen.append(given[-1]))
    monkeypatch.setattr(sampling, "_vllm", started)
    config = parse(RLConfig, ["--inference.backend", "vllm", *flags.split()], "rl")
    model = SimpleNamespace(config=SimpleNamespace(implementation=implementation, eos_token_ids=()))
    run, renderer = SimpleNamespace(phase=lambda name: nullcontext()), SimpleNamespace(stop_ids=())
    with ExitStack() as stack:
        arguments = cast(Any, (stack, config, run, SimpleNamespace(model=model), renderer))
        policy = sampling.policy(*arguments)
    assert seen == [written, served]
    assert type(policy) is (SleepingPolicy if on_gpu else ServerPolicy), "a CPU has no sleep mode"
