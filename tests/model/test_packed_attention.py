"""Packed attention equals softmax attention within each segment, in value and gradient, whatever the lengths."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hone.model.attention import PackedAttention


def plain(lengths: list[int], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One block-diagonal causal softmax per query head."""
    segment = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    order = torch.arange(len(segment))
    visible = (segment[:, None] == segment[None, :]) & (order[:, None] >= order[None, :])
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("ihd,jhd->hij", q, k) / q.shape[-1] ** 0.5
    return torch.einsum("hij,jhd->ihd", scores.masked_fill(~visible, float("-inf")).softmax(-1), v)


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


@pytest.mark.parametrize(
    ("lengths", "parents"),
    [
        ([4, 3, 3, 4, 3, 3], [-1, 0, 0, -1, 3, 3]),
        ([5, 2, 9, 1, 4, 1, 6], [-1, 0, 0, 0, -1, -1, 5]),
        ([1, 1, 30, 7, 3], [-1, 0, 0, -1, -1]),
    ],
    ids=["equal", "unequal, one without a parent, one only child", "buckets, parent of one token"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_segment_sees_its_parent_as_if_it_were_copied_before_it(
    lengths: list[int], parents: list[int], dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(sum(lengths), heads, 8, generator=generator).to(dtype) for heads in (4, 2, 2))
    upstream = torch.randn(sum(lengths), 4, 8, generator=generator).to(dtype)
    tokens = torch.arange(sum(lengths)).split(lengths)
    rows = [tokens[i] if p < 0 else torch.cat([tokens[p], tokens[i]]) for i, p in enumerate(parents)]
    copied = torch.cat(rows)
    own = torch.cat([torch.arange(len(row)) >= len(row) - n for row, n in zip(rows, lengths, strict=True)])

    exact = [x.float().requires_grad_() for x in (q, k, v)]
    expected = plain([len(row) for row in rows], *(x[copied] for x in exact))[own]
    inputs = [x.requires_grad_() for x in (q, k, v)]
    actual = PackedAttention(lengths, parents)(0, *inputs)

    tolerance = {"atol": 1e-5 if dtype == torch.float32 else 0.05, "rtol": 0.0, "check_dtype": False}
    torch.testing.assert_close(actual, expected, **tolerance)
    torch.testing.assert_close(
        torch.autograd.grad(actual, inputs, upstream), torch.autograd.grad(expected, exact, upstream), **tolerance
    )
