import numpy as np
import pytest
import torch

from hone import rng
from hone.inference.sampler import sample_tokens
from hone.inference.types import SamplingParams

LOGITS = torch.tensor([[1.0, 3.0, 0.0, 2.0, -1.0]])


def draw(n: int, **params):
    uniforms = torch.from_numpy(rng.uniforms(np.array([7], dtype=np.uint64), 0, n)[0])
    return sample_tokens(LOGITS.expand(n, -1), uniforms, SamplingParams(**params))


def test_frequencies_match_the_softmax():
    tokens, _ = draw(200_000)
    shares = torch.bincount(tokens, minlength=5) / len(tokens)
    assert shares.tolist() == pytest.approx(LOGITS.softmax(-1)[0].tolist(), abs=4e-3)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_logprob_is_of_the_distribution_at_the_sampling_temperature(temperature):
    tokens, logprobs = draw(50, temperature=temperature)
    expected = (LOGITS[0] / temperature).log_softmax(-1)[tokens]
    assert torch.equal(logprobs, expected)


def test_greedy_takes_the_maximum_and_reports_the_untempered_logprob():
    tokens, logprobs = draw(3, temperature=0.0)
    assert tokens.tolist() == [1, 1, 1]
    assert torch.allclose(logprobs, LOGITS[0].log_softmax(-1)[1])


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
    tokens, _ = sample_tokens(logits.expand(3, -1), edges, SamplingParams())
    assert tokens.tolist() == [1, 3, 3]


def test_a_row_does_not_depend_on_its_neighbours():
    logits = torch.randn(64, 300, generator=torch.Generator().manual_seed(0))
    uniforms = torch.from_numpy(rng.uniforms(np.arange(64, dtype=np.uint64), 0, 1)[:, 0])
    together = sample_tokens(logits, uniforms, SamplingParams())
    for row in (0, 17, 63):
        alone = sample_tokens(logits[row : row + 1], uniforms[row : row + 1], SamplingParams())
        assert alone[0].item() == together[0][row].item() and alone[1].item() == together[1][row].item()
