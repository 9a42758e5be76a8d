"""Runs on the fake GPU: the CPU's in fp32, the same bytes when resumed, and two waits a train step.

`sft` and `rl` make updates with every precision, with the trainer's ways to save memory among them; `hone eval` and
the server of `hone inference` sample from what was trained.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from .conftest import report

pytestmark = pytest.mark.device


@pytest.fixture(scope="module", params=("fp32", "bf16_linear", "bf16"))
def precision(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def found(precision: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return report("runs.py", str(tmp_path_factory.mktemp("runs")), precision)


@pytest.mark.parametrize("kind", ["sft", "rl"])
def test_training_computes_what_it_does_on_the_cpu(precision: str, found: dict, kind: str) -> None:
    """In fp32 up to the last bits; weights to 1e-5 after four updates of 1e-3: AdamW divides by small numbers.

    With rounded products, a token whose uniform lies at the edge between two can be the other one: RL is compared up to
    the first step with such a token, and six of the first step's eight completions have none.
    """
    cpu, gpu = found[kind]["cpu"], found[kind]["gpu"]
    steps = 4
    if kind == "rl" and precision != "fp32":
        steps = [*(a == b for a, b in zip(cpu["sampled"], gpu["sampled"], strict=True)), False].index(False)
        assert sum(a == b for a, b in zip(cpu["sampled"][0], gpu["sampled"][0], strict=True)) >= 6
    assert gpu["optimizer/skipped"][:4] == [0.0] * 4 and min(gpu["grad_norm"][:4]) > 0.1
    rel, atol, apart = {"fp32": (1e-5, 1e-6, 1e-5)}.get(precision, (2e-2, 1e-2, 2e-2))
    for name in ("loss", "grad_norm", *(["reward/mean"] if kind == "rl" else [])):
        np.testing.assert_allclose(gpu[name][:steps], cpu[name][:steps], rtol=rel, atol=atol)
    assert found[kind]["apart"]["cpu"] <= apart


@pytest.mark.parametrize("kind", ["sft", "rl"])
def test_a_resumed_run_has_the_bytes_of_one_that_was_not_interrupted(found: dict, kind: str) -> None:
    assert found[kind]["resumed"] == found[kind]["gpu"]
    assert found[kind]["apart"]["resumed"] == 0


@pytest.mark.parametrize("kind", ["sft", "rl"])
def test_the_host_waits_twice_a_train_step_and_once_a_token(precision: str, found: dict, kind: str) -> None:
    """For the statistics of all micro-batches, and for the norm of the gradient. An offloaded update takes more."""
    train, decode = found[kind]["train"], found[kind]["decode"]
    assert len(train) == 4 and all(waits <= 2 <= micro_batches for waits, micro_batches in train), found[kind]["places"]
    assert (found[kind]["offloads"] > 0) == (precision == "bf16_linear"), "which is offloaded"
    assert set(decode) == ({1} if kind == "rl" else set()) and (kind == "sft" or len(decode) > 32)


def test_an_evaluation_and_a_server_answer_as_on_the_cpu(precision: str, found: dict) -> None:
    """Kernels are pinned on the CPU alone: there an evaluation has the same bytes each time."""
    cpu, gpu = found["eval"]["cpu"], found["eval"]["gpu"]
    assert len(gpu) == 6 and [row["completion_tokens"] for row in gpu] == [row["completion_tokens"] for row in cpu]
    answers = found["inference"]
    assert [answers[name]["pinned"] for name in ("cpu", "gpu", "without graphs")] == [True, False, False]
    assert len(answers["gpu"]["logprobs"]) == len(answers["cpu"]["logprobs"]) > 8
    if precision == "fp32":
        assert gpu == cpu
        for name in ("gpu", "without graphs"):
            assert answers[name]["choices"] == answers["cpu"]["choices"]
            np.testing.assert_allclose(answers[name]["logprobs"], answers["cpu"]["logprobs"], atol=2e-6, rtol=0)


def test_graphs_are_the_default(found: dict) -> None:
    """Of `rl`, `hone eval` and the server, one after the other; none are recorded with --no-cuda-graphs."""
    assert found["rl"]["graphs"] > 0 and found["sft"]["graphs"] == 0
    evaluated, served, without = found["graphs"]
    assert 0 < evaluated < served == without
