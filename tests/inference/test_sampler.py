import numpy as np
import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from hone.inference.sampler import BLOCK, WHOLE, inverse_cdf, largest_share, sample_tokens, truncate
from hone.inference.types import SamplingParams


def test_a_token_of_probability_zero_is_never_drawn_even_at_the_edges():
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]])
    edges = torch.tensor([0.0, 0.5, np.nextafter(1.0, 0.0)], dtype=torch.float64)
    tokens, *_ = sample_tokens(logits.expand(3, -1), edges, SamplingParams())
    assert tokens.tolist() == [1, 3, 3]


@pytest.mark.parametrize("size", [WHOLE, WHOLE + 1, 10 * BLOCK, 5000])
def test_large_vocabularies_are_searched_in_blocks_with_the_same_result(size):
    """The first index whose running sum exceeds u times the total: found by one search over the whole row."""
    generator = torch.Generator().manual_seed(1)
    weights = torch.rand(400, size, generator=generator) ** 8
    weights[:, ::3] = 0
    weights[:, 2 * BLOCK : 4 * BLOCK] = 0
    uniforms = torch.rand(400, generator=generator, dtype=torch.float64)
    uniforms[:2] = torch.tensor([0.0, np.nextafter(1.0, 0.0)])
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    whole = torch.searchsorted(cumulative, uniforms[:, None] * cumulative[:, -1:], right=True).squeeze(1)
    found = inverse_cdf(weights, uniforms)
    assert (
        found == whole
    ).float().mean() >= 0.99  # sums in another order: a draw on a border may fall on its other side
    assert bool((weights.gather(1, found[:, None]) > 0).all())
    assert found[0] == 1 and found[1] >= size - 3


def _kept(logits: torch.Tensor, draws: int = 2000, **params) -> list[set[int]]:
    """The tokens that each row can draw: uniforms spread evenly reach every token of probability over 1 / `draws`."""
    uniforms = torch.linspace(0, 1, draws + 1, dtype=torch.float64)[:-1]
    return [set(sample_tokens(row.expand(draws, -1), uniforms, SamplingParams(**params))[0].tolist()) for row in logits]


def _kept_by_transformers(logits: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float):
    warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        warpers.append(TopPLogitsWarper(top_p))
    if min_p:
        warpers.append(MinPLogitsWarper(min_p))
    return [set(row.isfinite().nonzero().flatten().tolist()) for row in warpers(None, logits)]


@pytest.mark.parametrize("temperature", [0.6, 1.3])
@pytest.mark.parametrize("top_k", [0, 3, 20, 100])
@pytest.mark.parametrize("top_p", [0.5, 0.95, 1.0])
@pytest.mark.parametrize("min_p", [0.0, 0.05, 0.3])
def test_the_kept_sets_are_those_of_transformers_warpers(temperature, top_k, top_p, min_p):
    logits = 0.5 * torch.randn(3, 64, generator=torch.Generator().manual_seed(3))
    logits[2] = (2 * logits[2]).round() / 2  # ties: a cut at k keeps all that are as likely as the k-th
    rows = logits[:2] if top_p < 1 else logits  # within a tie top_p is free to choose
    expected = _kept_by_transformers(rows, temperature, top_k, top_p, min_p)
    ways = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    assert _kept(rows, **ways) == expected
    uniforms = torch.full((len(rows),), 0.5, dtype=torch.float64)
    tokens, logprobs, kept = sample_tokens(rows, uniforms, SamplingParams(**ways, return_kept_ids=True))
    assert torch.equal(tokens, sample_tokens(rows, uniforms, SamplingParams(**ways))[0])
    if kept is None:
        assert not top_k and top_p == 1 and not min_p
        return
    assert [set(row.nonzero().flatten().tolist()) for row in kept] == expected
    probs = (rows / temperature).double().softmax(-1) * kept
    right = (probs / probs.sum(-1, keepdim=True)).gather(1, tokens[:, None]).squeeze(1).log()
    assert (logprobs - right).abs().max() < 1e-6


@pytest.mark.parametrize("levels", [2, 7, 10**6])
@pytest.mark.parametrize("top_k", [1, 3, 20, 299])
@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.9999])
def test_the_share_of_the_likeliest_needs_no_sort_of_the_vocabulary(levels, top_k, top_p):
    """As a GPU cuts top_k and top_p: the very sets of the sort, of many equally likely tokens too; none of NaN."""
    logits = torch.randn(40, 300, generator=torch.Generator().manual_seed(levels + top_k))
    logits[:, :] = (logits * levels / 4).round() * 4 / levels
    logits[3, 7] = float("nan")
    logprobs = logits.log_softmax(-1)
    expected = truncate(logprobs, SamplingParams(top_k=top_k, top_p=top_p)) > float("-inf")
    best = logprobs.topk(top_k).values
    left = logprobs.masked_fill(~(logprobs >= best[:, -1:]), float("-inf"))
    assert torch.equal(largest_share(left, best, top_p), expected)
    assert expected.sum(1).min() == 0 == expected[3].sum() and expected[:3].any(1).all()
