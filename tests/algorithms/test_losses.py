"""Losses of tokens against their formulas, written out in plain Python in float64, values and gradients."""

import math

import pytest
import torch

from hone.algorithms.losses import cispo, clip, dppo, gspo, kl_estimate, reinforce, sapo
from hone.algorithms.losses.ratio import importance_ratio

LENGTHS = torch.tensor([3, 2])
OLD = torch.tensor([-1.0, -2.0, -0.5, -3.0, -0.1], dtype=torch.float64)
RATIOS = [1.5, 0.5, 1.1, 4.0, 0.9]
ADVANTAGES = torch.tensor([2.0, 2.0, 2.0, -1.0, -1.0], dtype=torch.float64)
A = ADVANTAGES.tolist()


def logprobs() -> torch.Tensor:
    return (OLD + torch.tensor(RATIOS, dtype=torch.float64).log()).requires_grad_()


def check(loss_of, losses, gradients, clipped=None):
    """`gradients` are to the logprobs, of the sum of the losses."""
    new = logprobs()
    found = loss_of(new)
    loss, active = found if isinstance(found, tuple) else (found, None)
    (gradient,) = torch.autograd.grad(loss.sum(), new)
    assert loss.tolist() == pytest.approx(losses, rel=1e-12)
    assert gradient.tolist() == pytest.approx(gradients, rel=1e-12, abs=1e-15)
    assert (None if active is None else active.tolist()) == clipped


@pytest.mark.parametrize(("dual", "loss", "gradient"), [(None, 4.0, 4.0), (3.0, 3.0, 0.0)])
def test_clip_and_dual_clip_which_bounds_what_a_token_that_should_be_unlearned_can_do(dual, loss, gradient):
    check(
        lambda new: clip(new, OLD, ADVANTAGES, 0.2, 0.28, dual_clip=dual),
        [-1.28 * 2, -0.5 * 2, -1.1 * 2, loss, 0.9],
        [0.0, -0.5 * 2, -1.1 * 2, gradient, 0.9],
        [True, False, False, dual is not None, False],
    )


def test_gspo_has_one_ratio_a_completion_the_mean_of_the_logs():
    first, second = (1.5 * 0.5 * 1.1) ** (1 / 3), (4.0 * 0.9) ** (1 / 2)
    check(
        lambda new: gspo(new, OLD, ADVANTAGES, LENGTHS, 0.2, 0.3),
        [-2 * first] * 3 + [second] * 2,  # a negative advantage is not clipped above
        [-2 * first] * 3 + [second] * 2,  # each of n tokens has 1/n of n losses
        [False] * 5,
    )
    check(
        lambda new: gspo(new, OLD, -ADVANTAGES, LENGTHS, 0.02, 0.3),
        [0.98 * 2] * 3 + [-1.3] * 2,
        [0.0] * 5,
        [True] * 5,
    )


def test_cispo_caps_the_weight_and_keeps_the_gradient():
    new = logprobs().tolist()
    weights = [1.5, 0.5, 1.1, 2.0, 0.9]
    check(
        lambda new: cispo(new, OLD, ADVANTAGES, 2.0),
        [-w * a * p for w, a, p in zip(weights, A, new, strict=True)],
        [-w * a for w, a in zip(weights, A, strict=True)],
        [False, False, False, True, False],
    )


def test_sapo():
    def sigmoid(x: float) -> float:
        return 1 / (1 + math.exp(-x))

    taus = [1.0, 1.0, 1.0, 1.05, 1.05]
    gates = [sigmoid(tau * (r - 1)) for tau, r in zip(taus, RATIOS, strict=True)]
    check(
        lambda new: sapo(new, OLD, ADVANTAGES),
        [-4 / tau * gate * a for tau, gate, a in zip(taus, gates, A, strict=True)],
        [-4 * gate * (1 - gate) * r * a for gate, r, a in zip(gates, RATIOS, A, strict=True)],
    )


def test_dppo_masks_by_the_difference_of_probabilities_and_keeps_the_penalty():
    """pi - pi_old: 0.18, -0.07, 0.06, 0.15, -0.09."""
    logs = [math.log(r) for r in RATIOS]
    kept = [0, 1, 1, 1, 0]
    check(
        lambda new: dppo(new, OLD, ADVANTAGES, 0.05, 0.15, 1e-3),
        [-k * a * r + 1e-3 * d * d for k, a, r, d in zip(kept, A, RATIOS, logs, strict=True)],
        [-k * a * r + 2e-3 * d for k, a, r, d in zip(kept, A, RATIOS, logs, strict=True)],
        [True, False, False, False, True],
    )


def test_reinforce():
    check(lambda new: reinforce(new, ADVANTAGES), (-ADVANTAGES * logprobs()).tolist(), [-a for a in A])


@pytest.mark.parametrize(
    ("kind", "value", "gradient"),
    [
        ("k1", lambda d: d, lambda d: 1.0),
        ("k2", lambda d: d * d / 2, lambda d: d),
        ("k3", lambda d: math.exp(-d) - 1 + d, lambda d: 1 - math.exp(-d)),
    ],
)
def test_kl_estimates(kind, value, gradient):
    logs = [math.log(r) for r in RATIOS]
    check(lambda new: kl_estimate(new, OLD, kind), [value(d) for d in logs], [gradient(d) for d in logs])


def test_ratio_of_a_broken_token_is_clamped_not_infinite():
    ratio = importance_ratio(torch.tensor([0.0, -100.0]), torch.tensor([-100.0, 0.0]))
    assert ratio.tolist() == pytest.approx([math.exp(10), math.exp(-10)])
