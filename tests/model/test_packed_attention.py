"""Packed attention equals softmax attention within each segment, in value and gradient, whatever the lengths."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hone.model.attention import PackedAttention, _bucket_by_length


def plain(lengths: list[int], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One block-diagonal causal softmax per query head."""
    segment = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    order = torch.arange(len(segment))
    visible = (segment[:, None] == segment[None, :]) & (order[:, None] >= order[None, :])
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("ihd,jhd->hij", q, k) / q.shape[-1] ** 0.5
    weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
    return torch.einsum("hij,jhd->ihd", weights, v)


@pytest.mark.parametrize(
    "lengths",
    [[5, 5, 5], [1], [6, 5, 6, 7], [1, 30, 2, 29, 3, 11], [4, 1, 1, 1]],
    ids=["equal", "one token", "one bucket", "buckets out of order", "mostly single"],
)
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_equals_a_block_diagonal_mask(lengths: list[int], kv_heads: int) -> None:
    generator = torch.Generator().manual_seed(0)
    num_tokens = sum(lengths)
    q, k, v = (
        torch.randn(num_tokens, heads, 8, generator=generator).requires_grad_() for heads in (4, kv_heads, kv_heads)
    )
    upstream = torch.randn(num_tokens, 4, 8, generator=generator)
    attention = PackedAttention(lengths)
    actual, expected = attention(0, q, k, v), plain(lengths, q, k, v)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(
        torch.autograd.grad(actual, [q, k, v], upstream),
        torch.autograd.grad(expected, [q, k, v], upstream),
        atol=1e-5,
        rtol=0,
    )
    assert torch.equal(attention(1, q, k, v), actual)


def test_buckets_hold_every_segment_once_and_pad_little() -> None:
    lengths = [3, 50, 4, 49, 10, 36, 9, 1]
    buckets = _bucket_by_length(lengths)
    assert buckets == [[1, 3, 5], [4, 6], [2, 0], [7]]
