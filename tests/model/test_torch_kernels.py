"""What hone passes to torch's kernels for a GPU fits their signatures: of the installed torch and of the oldest one."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch.nn.attention import varlen

from hone.model import attention

VARLEN = ["query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k"]
OPTIONS = {"return_aux": None, "scale": None, "window_size": (-1, -1)}
LATER = {"2.11": {}, "2.13": {"enable_gqa": False, "seqused_k": None, "block_table": None, "num_splits": None}}
"""Parameters of `varlen_attn`, and by torch's version those behind OPTIONS, with their defaults."""


@pytest.mark.parametrize("version", list(LATER))
@pytest.mark.parametrize("parents", [None, [-1, 0, 0]])
def test_packed_attention_calls_each_version_by_its_signature(monkeypatch, version: str, parents: Any) -> None:
    heads = []
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(name, kind) for name in (*VARLEN, *OPTIONS, *LATER[version])])

    def called(*args: Any, **named: Any) -> Any:
        given = signature.bind_partial(*args, **named).arguments
        heads.append((given["key"].shape[1], given["window_size"]))
        return given["query"]

    called.__signature__ = signature  # type: ignore[attr-defined]
    monkeypatch.setattr(varlen, "varlen_attn", called)
    attention._varlen_kernel.cache_clear()
    try:
        q, k = torch.zeros(6, 4, 8), torch.zeros(6, 2, 8)
        attention.PackedAttention([3, 2, 1], parents)._varlen(q, k, k)
    finally:
        attention._varlen_kernel.cache_clear()
    assert heads == [(4 if version == "2.11" else 2, (-1, 0))]
