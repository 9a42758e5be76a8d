import numpy as np
import pytest
import torch

from hone.algorithms.advantages import group_advantages, has_signal
from hone.config.rl import AdvantageConfig

ALL = np.ones(4, dtype=bool)


def test_advantage_is_reward_minus_group_mean():
    advantages = group_advantages(np.array([1.0, 0.0, 0.0, 0.5]), ALL)
    assert advantages.dtype == np.float32
    assert advantages == pytest.approx([0.625, -0.375, -0.375, 0.125])


def test_std_normalised_advantage_has_unit_population_std():
    rewards = np.array([1.0, 0.0, 0.0, 0.5])
    advantages = group_advantages(rewards, ALL, normalize_std=True)
    assert advantages == pytest.approx((rewards - 0.375) / (np.sqrt(0.171875) + 1e-6), abs=1e-6)


def test_failed_samples_leave_mean_and_std_and_get_zero():
    advantages = group_advantages(np.array([1.0, np.nan, 0.0, np.nan]), np.array([True, False, True, False]))
    assert advantages.tolist() == [0.5, 0.0, -0.5, 0.0]


@pytest.mark.parametrize("normalize_std", [False, True])
def test_group_without_signal_gets_zeros_not_amplified_rounding(normalize_std):
    rewards = np.array([0.5, 0.5 + 5e-7, 0.5, 0.5])
    assert group_advantages(rewards, ALL, normalize_std).tolist() == [0.0] * 4


def test_signal_is_max_minus_min_over_1e6():
    assert not has_signal(np.array([0.3, 0.3 + 9e-7]))
    assert has_signal(np.array([0.3, 0.3 + 2e-6]))
    assert not has_signal(np.array([0.3]))
    assert not has_signal(np.array([]))


def test_ddof_and_eps_are_settings_and_trls_values_give_trls_advantages():
    rewards = np.array([1.0, 0.0, 0.0, 0.5])
    config = AdvantageConfig(normalize_std=True, std_ddof=1, std_eps=1e-4)
    tensor = torch.tensor(rewards)
    expected = (tensor - tensor.mean()) / (tensor.std() + 1e-4)  # as TRL writes it; torch's std has ddof 1
    assert group_advantages(rewards, ALL, **config.model_dump()) == pytest.approx(expected.numpy(), abs=1e-7)


def test_the_default_divides_by_the_groups_size():
    assert AdvantageConfig().model_dump() == {"normalize_std": False, "std_ddof": 0, "std_eps": 1e-6}
