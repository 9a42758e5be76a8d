"""What hone passes to torch's kernels for a GPU fits their signatures: of the installed torch and of the oldest one."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch.nn.attention import varlen

from hone.model import attention

VARLEN = "query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None, window_size=(-1, -1)"
LATER = {
    "2.11": "",
    "2.13": ", enable_gqa=False, seqused_k=None, block_table=None, num_splits=None",
}
"""Parameters of `varlen_attn` by torch's version, after those of VARLEN."""
RMS_NORM = {
    "_fused_rms_norm": "(Tensor input, int[] normalized_shape, Tensor? weight, float? eps) -> (Tensor, Tensor)",
    "_fused_rms_norm_backward": "(Tensor grad_out, Tensor input, int[] normalized_shape, Tensor rstd, Tensor? weight, "
    "bool[2] output_mask) -> (Tensor, Tensor)",
}
"""Of torch 2.11 and of 2.13."""


def test_the_installed_kernels_have_these_signatures() -> None:
    version = ".".join(torch.__version__.split(".")[:2])
    expected = inspect.signature(eval(f"lambda {VARLEN}{LATER[version]}: query"))
    found = inspect.signature(varlen.varlen_attn)
    assert list(found.parameters) == list(expected.parameters)
    assert [p.default for p in found.parameters.values()] == [p.default for p in expected.parameters.values()]
    for name, schema in RMS_NORM.items():
        assert str(getattr(torch.ops.aten, name).default._schema) == f"aten::{name}{schema}"


@pytest.mark.parametrize("version", list(LATER))
@pytest.mark.parametrize("parents", [None, [-1, 0, 0]])
def test_packed_attention_calls_each_version_by_its_signature(monkeypatch, version: str, parents: Any) -> None:
    heads = []
    called = eval(
        f"lambda {VARLEN}{LATER[version]}: heads.append((key.shape[1], window_size)) or query", {"heads": heads}
    )
    monkeypatch.setattr(varlen, "varlen_attn", called)
    attention._varlen_kernel.cache_clear()
    try:
        q, k = torch.zeros(6, 4, 8), torch.zeros(6, 2, 8)
        attention.PackedAttention([3, 2, 1], parents)._varlen(q, k, k)
    finally:
        attention._varlen_kernel.cache_clear()
    assert heads == [(4 if version == "2.11" else 2, (-1, 0))]
