"""Every variant of the engine on the fake GPU: the CPU's samples, one wait a step, none while a graph is captured.

In fp32 tokens are the CPU's, and logprobs to 6e-6 nats: other kernels attend. Batch-invariant ones are equal bit for
bit. The rounded precisions keep to the trainer on the same device: within contract 3, or within `APART`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from .conftest import report

pytestmark = pytest.mark.device
PRECISIONS = ("fp32", "bf16_linear", "bf16")
VARIANTS = ("grouped", "graphs", "varlen", "adapter", "invariant", "prefixes", "small cache")
BOUNDS = {"fp32": (1e-5, 1e-5), "bf16_linear": (2e-3, 5e-2), "bf16": (2e-3, 5e-2)}
APART = (1.5e-2, 0.1)
"""For what rounds the weights of attention elsewhere than the trainer's kernel: SDPA, which falls back to plain
operations here."""


@pytest.fixture(scope="module", params=PRECISIONS)
def precision(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def found(precision: str) -> dict[str, Any]:
    return report("engines.py", precision)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("when", ["", " after updates"])
def test_samples_are_those_of_the_cpu(precision: str, found: dict, variant: str, when: str) -> None:
    """In fp32; else as many tokens, as rounding may change one and so all that follow. Of each the likeliest too."""
    cpu, gpu = found[variant]["cpu" + when], found[variant]["gpu" + when]
    assert cpu.keys() == gpu.keys() and sum(map(len, cpu.values())) > 60
    for key, tokens in cpu.items():
        # Ticket, id, logprob, the likeliest, version, stop reason, stop string.
        assert [token[5] for token in gpu[key]] == [token[5] for token in tokens]
        if precision != "fp32":
            continue
        assert [token[1] for token in gpu[key]] == [token[1] for token in tokens]
        atol = 0 if variant == "invariant" else 6e-6
        np.testing.assert_allclose([t[2] for t in gpu[key]], [t[2] for t in tokens], atol=atol, rtol=0)
        for ours, theirs in zip(gpu[key], tokens, strict=True):
            assert [id for id, _ in ours[3]] == [id for id, _ in theirs[3]]
            np.testing.assert_allclose([p for _, p in ours[3]], [p for _, p in theirs[3]], atol=atol, rtol=0)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("when", ["", " after updates"])
def test_logprobs_are_those_of_the_trainer_on_the_gpu(precision: str, found: dict, variant: str, when: str) -> None:
    gaps, (mean, most) = np.array(found[variant]["gaps" + when]), BOUNDS[precision]
    if variant in ("graphs", "adapter") and precision != "fp32":
        mean, most = APART
    assert len(gaps) > 60 and gaps.mean() <= mean and gaps.max() <= most, (gaps.mean(), gaps.max())


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_host_waits_once_a_step(found: dict, variant: str) -> None:
    """Prompts, joined batches and rows that leave included."""
    waits = found[variant]["waits"]
    assert len(waits) > 20 and max(waits) == 1, found[variant]["places"]


@pytest.mark.parametrize("variant", ["graphs", "adapter"])
def test_graphs_are_recorded_once_whatever_updates_come(found: dict, variant: str) -> None:
    """After each of three updates the same graphs sample from the new weights (see the samples after updates)."""
    recorded = found[variant]["recorded"]
    assert recorded[0] > 2 and recorded == recorded[:1] * 4
