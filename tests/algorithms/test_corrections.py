import math

import pytest
import torch

from hone.algorithms import corrections

LENGTHS = torch.tensor([3, 2])
SAMPLED = torch.tensor([-1.0, -2.0, -0.5, -3.0, -0.1], dtype=torch.float64)
RATIOS = [1.5, 0.4, 1.1, 6.0, 0.9]
OLD = SAMPLED + torch.tensor(RATIOS, dtype=torch.float64).log()


def test_token_truncated():
    assert corrections.token_truncated(OLD, SAMPLED, 2.0).tolist() == pytest.approx([1.5, 0.4, 1.1, 2.0, 0.9])


def test_sequence_truncated():
    found = corrections.sequence_truncated(OLD, SAMPLED, LENGTHS, 2.0).tolist()
    assert found == pytest.approx([1.5 * 0.4 * 1.1] * 3 + [2.0] * 2)


def test_a_product_of_broken_tokens_is_capped_not_infinite():
    found = corrections.sequence_truncated(torch.zeros(5), torch.full((5,), -1e4), torch.tensor([5]), 1e9)
    assert found.tolist() == pytest.approx([math.exp(10)] * 5)


def test_band():
    assert corrections.band(OLD, SAMPLED, 0.5, 5.0).tolist() == pytest.approx([1.5, 0.0, 1.1, 0.0, 0.9])


def test_geometric_rejection():
    means = [(1.5 * 0.4 * 1.1) ** (1 / 3), (6.0 * 0.9) ** 0.5]
    assert corrections.geometric_rejection(OLD, SAMPLED, LENGTHS, 0.8, 1.2).tolist() == [1.0] * 3 + [0.0] * 2
    assert corrections.geometric_rejection(OLD, SAMPLED, LENGTHS, means[0] + 0.01, 3).tolist() == [0.0] * 3 + [1.0] * 2
