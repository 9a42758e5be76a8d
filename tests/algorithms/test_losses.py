import math

import pytest
import torch

from hone.algorithms.losses import clipped_policy_loss, importance_ratio, k3_kl, nll_loss


def test_clipped_loss_by_hand():
    """ratio 1.5 and 0.5 against clip range [0.8, 1.28], both signs of the advantage."""
    ratios = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.0])
    advantages = torch.tensor([2.0, -2.0, 2.0, -2.0, 3.0])
    loss, clipped = clipped_policy_loss(ratios.log(), torch.zeros(5), advantages, 0.2, 0.28)
    assert loss.tolist() == pytest.approx([-1.28 * 2, 1.5 * 2, -0.5 * 2, 0.8 * 2, -3.0])
    assert clipped.tolist() == [True, False, False, True, False]


def test_gradient_is_zero_where_clipped_and_policy_gradient_at_ratio_one():
    logprobs = torch.tensor([math.log(1.5), 0.0], requires_grad=True)
    loss, _ = clipped_policy_loss(logprobs, torch.zeros(2), torch.tensor([2.0, 2.0]))
    loss.sum().backward()
    assert logprobs.grad is not None and logprobs.grad.tolist() == [0.0, -2.0]


def test_dual_clip_bounds_what_a_stale_token_that_should_be_unlearned_can_do():
    ratios, advantages = torch.tensor([5.0, 2.0, 5.0, 0.5]), torch.tensor([-1.0, -1.0, 1.0, -2.0])
    logprobs = ratios.log().requires_grad_()
    free, _ = clipped_policy_loss(logprobs, torch.zeros(4), advantages, 0.2, 0.28)
    loss, clipped = clipped_policy_loss(logprobs, torch.zeros(4), advantages, 0.2, 0.28, dual_clip=3.0)
    assert free.tolist() == pytest.approx([5.0, 2.0, -1.28, 1.6])
    assert loss.tolist() == pytest.approx([3.0, 2.0, -1.28, 1.6])
    assert clipped.tolist() == [True, False, True, True]
    loss.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([0.0, 2.0, 0.0, 0.0])


def test_ratio_of_a_broken_token_is_clamped_not_infinite():
    ratio = importance_ratio(torch.tensor([0.0, -100.0]), torch.tensor([-100.0, 0.0]))
    assert ratio.tolist() == pytest.approx([math.exp(10), math.exp(-10)])


def test_k3_is_zero_at_equality_and_positive_elsewhere():
    values = k3_kl(torch.tensor([-1.0, -1.0, -2.0]), torch.tensor([-1.0, -2.0, -1.0]))
    assert values.tolist() == pytest.approx([0.0, math.exp(-1) + 1 - 1, math.e - 1 - 1])


def test_nll():
    assert nll_loss(torch.tensor([-0.5, -2.0])).tolist() == [0.5, 2.0]
