"""What a run in several processes says is exact about it, and that its run.json says so."""

from __future__ import annotations

import pytest

from hone.config.parse import parse
from hone.config.rl import RLConfig
from hone.inference.endpoint import Endpoint
from hone.orchestrator.exactness import exactness, inexact_sampling
from hone.orchestrator.reach import Server

OWN = Server(Endpoint("http://127.0.0.1:8000/v1"), "hone", "m")
VLLM = Server(Endpoint("http://127.0.0.1:8000/v1"), "vllm", "m")


def config(*flags: str) -> RLConfig:
    return parse(RLConfig, ["--mode", "split", "--deterministic", "--display", "none", *flags], "hone rl")


INVARIANT = "--inference.batch-invariant"
ASYNC = ("--orchestrator.max-async-level", "2")
BY_URL = ("--orchestrator.client.base-url", "http://localhost:8000/v1")


@pytest.mark.parametrize(
    ("flags", "server", "tokens", "causes"),
    [
        ((INVARIANT,), OWN, "exact: own engine with batch_invariant, in lock-step; those of a run in one process", []),
        ((), OWN, "not exact: without inference.batch_invariant", ["a server without inference.batch_invariant"]),
        (
            (INVARIANT, *ASYNC),
            OWN,
            "not exact: which version samples a token depends on timing (max_async_level = 2; each token's is",
            ["whichever weights are there, up to 2 versions old"],
        ),
        (BY_URL, OWN, "not exact: hone's server was started by", ["the server at http://localhost:8000/v1"]),
        (BY_URL, VLLM, "not exact: vLLM was started by others", ["the server at http://localhost:8000/v1"]),
        (("--inference.backend", "vllm"), VLLM, "not exact: vLLM's rounding depends", ["vLLM"]),
        ((INVARIANT, "--no-deterministic"), OWN, "not exact: kernels are not pinned (deterministic = false)", []),
    ],
)
def test_tokens(flags: tuple[str, ...], server: Server, tokens: str, causes: list[str]) -> None:
    settings = config(*flags)
    assert exactness(settings, server, 1)["tokens"].startswith(tokens)
    assert inexact_sampling(settings, server) == [f"completions are sampled by {cause}" for cause in causes]


def test_examples_and_training() -> None:
    def facts(*flags: str, ranks: int = 1) -> list[str]:
        found = exactness(config(*flags), OWN, ranks)
        assert list(found) == ["examples", "tokens", "training"]
        return [found["examples"], found["training"]]

    seed, replay = "exact: their order follows from the seed alone", "a replay of the rollouts gives the same weights"
    assert facts(*ASYNC) == [seed, f"exact, given the same batches: {replay}"]
    assert facts("--orchestrator.curriculum.order", "difficulty", INVARIANT)[0].endswith("and from what was solved")
    for ranks, flags in ((1, ()), (2, (INVARIANT,))):
        examples, _ = facts("--orchestrator.curriculum.order", "difficulty", *flags, ranks=ranks)
        assert examples == "not exact: the curriculum goes by what was solved, and so by the tokens"
    for precision, limit in (("fp32", "1e-05"), ("bf16", "0.001")):
        _, training = facts("--precision", precision, ranks=2)
        assert training.startswith("exact on 2 ranks") and f"each loss within {limit} of the recorded one" in training
    assert facts("--no-deterministic")[1] == "not exact: kernels are not pinned (deterministic = false)"
