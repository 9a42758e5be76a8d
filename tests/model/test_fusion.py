"""torch.compile's kernels of the element-wise steps: the same numbers up to rounding, few kernels, only if asked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import setuptools  # noqa: F401  Inductor takes its distutils, so no test may import another before
import torch
from torch._dynamo.utils import counters

from hone.config.shared import InitConfig
from hone.errors import UserError
from hone.inference.engine import Engine
from hone.inference.types import SamplingParams
from hone.model import fusion
from hone.model.presets import random_decoder, tiny_config
from hone.trainer.logprobs import token_logprobs
from hone.trainer.packing import Sequence, pack

SIZE = InitConfig(hidden=32, intermediate=48, head_dim=8, max_positions=128)
CONFIG = replace(tiny_config(SIZE, 50), eos_token_ids=(), pad_token_id=None)


@pytest.fixture
def compiled():
    torch._dynamo.reset()
    counters.clear()
    yield fusion.set_compiled
    fusion.set_compiled(False)


def gradients(model, lengths):
    """Return logprobs, and gradients by name, of sequences of these lengths."""
    rng = np.random.default_rng(0)
    batch = pack([Sequence(rng.integers(0, 50, n), np.arange(n) > 0) for n in lengths])
    model.zero_grad()
    logprobs, entropies = token_logprobs(model, batch, batch.loss_indices)
    (logprobs.sum() + entropies.sum()).backward()
    return logprobs.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize(
    ("precision", "qk_norm", "checkpointing", "bound"),
    [
        ("fp32", True, "none", 2e-6),
        ("bf16_linear", True, "none", 2e-3),
        ("bf16", False, "none", 2e-2),
        ("fp32", True, "selective", 2e-6),
    ],
)
def test_compiled_steps_train_and_sample_as_eager_ones(precision, qk_norm, checkpointing, bound, compiled):
    model = random_decoder(replace(CONFIG, qk_norm=qk_norm), seed=1, precision=precision)
    model.set_checkpointing(checkpointing)
    lengths = ([9, 5], [12, 7, 3], [30])
    prompts, params = [[1, 2, 3], [4, 5]], SamplingParams(max_tokens=12, ignore_eos=True)
    eager = [gradients(model, some) for some in lengths], Engine(model).generate(prompts, params)
    compiled(True)
    got = [gradients(model, some) for some in lengths], Engine(model).generate(prompts, params)
    for (logprobs, grads), (wanted, wanted_grads) in zip(got[0], eager[0], strict=True):
        assert (logprobs - wanted).abs().max() <= bound
        for name, grad in grads.items():
            assert (grad - wanted_grads[name]).norm() <= 10 * bound * wanted_grads[name].norm(), name
    for (one,), (other,) in zip(got[1], eager[1], strict=True):
        assert precision != "fp32" or one.token_ids == other.token_ids
        same = [a == b for a, b in zip(one.token_ids, other.token_ids, strict=True)]
        first = [*same, False].index(False)
        np.testing.assert_allclose(one.logprobs[:first], other.logprobs[:first], atol=bound)
    # Eight functions, for one number of tokens and then for any, and once more where some are computed again under
    # another mode; no layer, shape or step has kernels of its own.
    assert 8 <= counters["stats"]["unique_graphs"] <= (20 if checkpointing == "none" else 28)
    assert not counters["graph_break"] and not counters["recompile_limit"]


def test_a_cpu_and_a_gpu_without_triton_are_refused(monkeypatch):
    monkeypatch.setattr(fusion, "has_triton", lambda: False)
    for device, why in (("cpu", "nothing faster on a CPU"), ("cuda:1", "needs Triton")):
        with pytest.raises(UserError, match=why):
            fusion.check_compiler(device)
