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

from hone import rng
from hone.inference.sampler import BLOCK, WHOLE, as_words, inverse_cdf, largest_share, sample_tokens, set_bits, truncate
from hone.inference.types import SamplingParams

LOGITS = torch.tensor([[1.0, 3.0, 0.0, 2.0, -1.0]])


def draw(n: int, **params):
    uniforms = torch.from_numpy(rng.uniforms(np.array([7], dtype=np.uint64), 0, n)[0])
    return sample_tokens(LOGITS.expand(n, -1), uniforms, SamplingParams(**params))[:2]


def test_frequencies_match_the_softmax():
    tokens, _ = draw(200_000)
    shares = torch.bincount(tokens, minlength=5) / len(tokens)
    assert shares.tolist() == pytest.approx(LOGITS.softmax(-1)[0].tolist(), abs=4e-3)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_logprob_is_of_the_distribution_at_the_sampling_temperature(temperature):
    tokens, logprobs = draw(50, temperature=temperature)
    assert torch.equal(logprobs, (LOGITS[0] / temperature).log_softmax(-1)[tokens])


def test_top_k_and_top_p_cut_the_tail_but_not_the_logprobs():
    tokens, logprobs = draw(2000, top_k=2)
    assert set(tokens.tolist()) == {1, 3}
    assert torch.equal(logprobs, LOGITS[0].log_softmax(-1)[tokens])
    # softmax = .636 .234 .086 …: 0.636 < 0.7 so two tokens are needed to reach 0.7, one to reach 0.6
    assert set(draw(2000, top_p=0.7)[0].tolist()) == {1, 3}
    assert set(draw(2000, top_p=0.6)[0].tolist()) == {1}


def test_a_token_of_probability_zero_is_never_drawn_even_at_the_edges():
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]])
    edges = torch.tensor([0.0, 0.5, np.nextafter(1.0, 0.0)], dtype=torch.float64)
    tokens, *_ = sample_tokens(logits.expand(3, -1), edges, SamplingParams())
    assert tokens.tolist() == [1, 3, 3]


def test_a_row_does_not_depend_on_its_neighbours():
    logits = torch.randn(64, 300, generator=torch.Generator().manual_seed(0))
    uniforms = torch.from_numpy(rng.uniforms(np.arange(64, dtype=np.uint64), 0, 1)[:, 0])
    together = sample_tokens(logits, uniforms, SamplingParams())
    for row in (0, 17, 63):
        alone = sample_tokens(logits[row : row + 1], uniforms[row : row + 1], SamplingParams())
        assert alone[0].item() == together[0][row].item() and alone[1].item() == together[1][row].item()


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


@pytest.mark.parametrize("size", [1, 31, 32, 33, 151_936])
def test_kept_ids_go_through_words_of_bits(size):
    mask = torch.rand(3, size, generator=torch.Generator().manual_seed(0)) < 0.3
    mask[0], mask[1] = True, False
    words = as_words(mask)
    assert words.dtype == torch.float64 and words.shape == (3, -(-size // 32)) and words[0, 0] == 2 ** min(size, 32) - 1
    for row, expected in zip(words.numpy(), mask, strict=True):
        ids = set_bits(row)
        assert ids.dtype == np.int32 and ids.tolist() == expected.nonzero().flatten().tolist()
