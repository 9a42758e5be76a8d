import numpy as np
import pytest
import torch

from hone.algorithms.advantages import (
    advantages,
    advantages_to_go,
    distilled,
    has_signal,
    normalized_components,
    overlong_penalty,
)
from hone.config.rl import AdvantageConfig

REWARDS = np.array([[1.0, 0.0, 0.0, 0.5], [0.2, 0.2, 0.8, 0.4]])
ALL = np.ones((2, 4), dtype=bool)
TENSOR = torch.tensor(REWARDS)
STD = TENSOR.std(1, keepdim=True)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, TENSOR - TENSOR.mean(1, keepdim=True)),
        ({"scale": "group_std"}, (TENSOR - TENSOR.mean(1, keepdim=True)) / (STD + 1e-4)),
        ({"scale": "batch_std"}, (TENSOR - TENSOR.mean(1, keepdim=True)) / (TENSOR.std() + 1e-4)),
        ({"scale": "group_mean"}, TENSOR / TENSOR.mean(1, keepdim=True) - 1),
        ({"baseline": "batch", "scale": "batch_std"}, (TENSOR - TENSOR.mean()) / (TENSOR.std() + 1e-4)),
        (
            {"scale": "group_std", "std_ddof": 0, "std_eps": 1e-6},
            (TENSOR - TENSOR.mean(1, keepdim=True)) / (TENSOR.std(1, correction=0, keepdim=True) + 1e-6),
        ),
    ],
)
def test_each_baseline_and_scale_is_its_formula(keys, expected):
    found = advantages(REWARDS, ALL, **keys)
    assert found.dtype == np.float32
    assert found == pytest.approx(expected.numpy(), abs=1e-6)


TOKENS = np.array([[3, 1, 2, 4], [1, 5, 2, 2]])


def normalised(returns: list[list[float]], ddof: int = 1, eps: float = 1e-4) -> list[list[float]]:
    """Plain Python: minus the mean of all tokens, divided by their standard deviation."""
    tokens = [value for one in returns for value in one]
    mean = sum(tokens) / len(tokens)
    std = (sum((value - mean) ** 2 for value in tokens) / (len(tokens) - ddof)) ** 0.5
    return [[(value - mean) / (std + eps) for value in one] for one in returns]


@pytest.mark.parametrize(("ddof", "eps"), [(1, 1e-4), (0, 0.0)])
def test_reinforce_plus_plus_normalises_over_the_tokens_of_the_step(ddof: int, eps: float):
    found = advantages(REWARDS, ALL, "batch", "token_std", ddof, eps, TOKENS)
    returns = [[r] * n for r, n in zip(REWARDS.reshape(-1), TOKENS.reshape(-1), strict=True)]
    expected = [one[0] for one in normalised(returns, ddof, eps)]
    assert found.dtype == np.float32 and found.reshape(-1).tolist() == pytest.approx(expected, abs=1e-6)
    less_mean = REWARDS - REWARDS.mean(1, keepdims=True)  # the variant with a group's baseline
    returns = [[r] * n for r, n in zip(less_mean.reshape(-1), TOKENS.reshape(-1), strict=True)]
    found = advantages(REWARDS, ALL, "group", "token_std", ddof, eps, TOKENS)
    assert found.reshape(-1).tolist() == pytest.approx([one[0] for one in normalised(returns, ddof, eps)], abs=1e-6)


def test_one_rollout_of_a_prompt_is_compared_with_those_of_other_prompts():
    found = advantages(np.array([[1.0], [0.0], [np.nan], [0.5]]), np.array([[1], [1], [0], [1]]) > 0, "batch")
    assert found.tolist() == [[0.5], [-0.5], [0.0], [0.0]]
    tokens = np.array([[2], [3], [7], [0]])
    found = advantages(
        np.array([[1.0], [0.0], [9.0], [0.5]]),
        np.array([[1], [1], [0], [1]]) > 0,
        "batch",
        "token_std",
        tokens_PG=tokens,
    )
    (first, *_), (second, *_) = normalised([[1.0] * 2, [0.0] * 3])
    assert found[:3].tolist() == [[pytest.approx(first)], [pytest.approx(second)], [0.0]]


def test_a_penalty_of_a_token_counts_for_it_and_the_tokens_before():
    """REINFORCE++: r at the end, -β KL at each token, summed from each token on, then normalised."""
    generator = np.random.default_rng(1)
    penalties = [0.1 * generator.normal(size=n) for n in TOKENS.reshape(-1)]
    places = [(row, column) for row in range(2) for column in range(4)]
    returns = [
        [REWARDS[place] - sum(penalty[t:]) for t in range(len(penalty))]
        for place, penalty in zip(places, penalties, strict=True)
    ]
    found = advantages_to_go(REWARDS, ALL, penalties, places, "batch", 1, 1e-4)
    for ours, by_hand in zip(found, normalised(returns), strict=True):
        assert ours.tolist() == pytest.approx(by_hand, abs=1e-12)
    without = advantages_to_go(REWARDS, ALL, [0 * penalty for penalty in penalties], places, "batch", 1, 1e-4)
    plain = advantages(REWARDS, ALL, "batch", "token_std", tokens_PG=TOKENS)
    assert [one[0] for one in without] == pytest.approx(plain.reshape(-1).tolist(), abs=1e-6)
    nothing = advantages_to_go(np.ones((1, 1)), ALL[:1, :1], [np.zeros(3)], [(0, 0)], "batch", 1, 1e-4)
    assert nothing[0].tolist() == [0.0] * 3


def test_leave_one_out_is_the_reward_minus_the_mean_of_the_others():
    found = advantages(REWARDS, ALL, baseline="leave_one_out")
    by_hand = [[r - (sum(group) - r) / 3 for r in group] for group in REWARDS.tolist()]
    assert found == pytest.approx(np.array(by_hand), abs=1e-6)


def test_maxrl_leaves_out_groups_whose_mean_is_not_above_zero():
    found = advantages(
        np.array([[1.0, -1.0], [-1.0, -0.5], [1.0, 0.5]]), np.ones((3, 2), dtype=bool), scale="group_mean"
    )
    assert found.tolist() == [[0.0, 0.0], [0.0, 0.0], pytest.approx([1 / 3, -1 / 3])]


@pytest.mark.parametrize("keys", [{}, {"scale": "group_std"}, {"baseline": "batch", "scale": "batch_std"}])
def test_failed_samples_leave_mean_and_std_and_get_zero(keys):
    rewards, valid = np.array([[1.0, np.nan, 0.0, np.nan]]), np.array([[True, False, True, False]])
    found = advantages(rewards, valid, **keys)
    assert found[0, [0, 2]].tolist() == advantages(rewards[:, [0, 2]], valid[:, [0, 2]], **keys)[0].tolist()
    assert found[0, [1, 3]].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("scale", ["none", "group_std", "batch_std", "group_mean"])
def test_group_without_signal_gets_zeros_not_amplified_rounding(scale):
    found = advantages(np.array([[0.5, 0.5 + 5e-7, 0.5, 0.5], [1.0, 0.0, 1.0, 0.0]]), ALL, scale=scale)
    assert found[0].tolist() == [0.0] * 4 and found[1].all()


def test_a_group_of_equal_rewards_has_a_signal_against_the_batch():
    found = advantages(np.array([[1.0, 1.0], [0.0, 0.0]]), np.ones((2, 2), dtype=bool), baseline="batch")
    assert found.tolist() == [[0.5, 0.5], [-0.5, -0.5]]


def test_signal_is_max_minus_min_over_1e6():
    assert not has_signal(np.array([0.3, 0.3 + 9e-7]))
    assert has_signal(np.array([0.3, 0.3 + 2e-6]))
    assert not has_signal(np.array([0.3]))
    assert not has_signal(np.array([]))


def test_components_normalised_before_the_sum_count_by_their_weight():
    """GDPO by hand; an abstained component counts 0."""
    values = torch.tensor(
        [[[1.0, 0.0], [0.0, 0.0], [1.0, 10.0]], [[0.0, 4.0], [1.0, 8.0], [1.0, float("nan")]]]
    ).double()
    weights = torch.tensor([1.0, 0.5]).double()
    mean = values.nanmean(1, keepdim=True)
    std = (values - mean).square().nansum(1, keepdim=True)
    std = (std / ((~values.isnan()).sum(1, keepdim=True) - 1)).sqrt()
    summed = torch.nan_to_num((values - mean) / (std + 1e-4)).mul(weights).sum(-1)
    expected = (summed - summed.mean()) / (summed.std() + 1e-4)
    found = normalized_components(values.numpy(), weights.numpy(), np.ones((2, 3), dtype=bool))
    assert found == pytest.approx(expected.numpy(), abs=1e-6)


def test_a_group_in_which_no_component_varies_has_no_advantages():
    values = np.array([[[1.0, 0.2], [0.0, 0.7], [1.0, 0.1]], [[0.3, 0.1]] * 3])
    found = normalized_components(values, np.array([1.0, 0.3]), np.ones((2, 3), dtype=bool))
    assert found[0].all() and found[1].tolist() == [0.0] * 3


def test_the_overlong_penalty_grows_over_the_buffer():
    assert overlong_penalty(np.array([70, 80, 90, 100, 120]), 100, 20).tolist() == [0.0, 0.0, 0.5, 1.0, 1.0]
    assert overlong_penalty(np.array([99, 100]), 100, 0, 0.5).tolist() == [0.0, 0.5]


def test_the_default_is_the_groups_mean_and_a_std_is_that_of_trl():
    settings = AdvantageConfig()
    assert (settings.baseline, settings.scale, settings.std_ddof, settings.std_eps) == ("group", "none", 1, 1e-4)


def test_a_token_s_advantage_has_its_own_part_of_the_reverse_kl_to_a_teacher():
    logprobs, teacher = np.array([[0, -1.0, -0.5, -2.0], [0, -0.25, -3.0, -1.5]], dtype=np.float32)
    found = distilled(0.4, logprobs, teacher, coef=2.0, reward_coef=0.5)
    assert found.dtype == np.float32
    assert found.tolist() == pytest.approx([0.2, 0.2 + 2 * 0.75, 0.2 - 2 * 2.5, 0.2 + 2 * 0.5])
    assert distilled(0.4, logprobs, teacher, 1.0, 0.0).tolist() == [0.0, 0.75, -2.5, 0.5]
    lost = np.array([0, -np.inf, np.nan, -1.0], dtype=np.float32)
    assert distilled(0.4, lost, teacher, 1.0, 1.0).tolist() == pytest.approx([0.4, 0.4, 0.4, 0.4 - 0.5])
