"""Whose the groups of a step are."""

import re

import numpy as np
import pytest

from hone.config.dump import to_toml
from hone.config.parse import from_settings, parse
from hone.config.rl import RLConfig
from hone.errors import UserError
from hone.loops.mix import shares

STEPS = 200


def mixed(*weights: float, groups: int = 7, seed: int = 0) -> RLConfig:
    envs = [{"id": "countdown", "name": f"t{i}", "weight": weight} for i, weight in enumerate(weights)]
    size = {"orchestrator.batch_size": 4 * groups, "orchestrator.rollouts_per_example": 4}
    return from_settings(RLConfig, None, {"seed": seed, "orchestrator.envs": envs, **size})


@pytest.mark.parametrize("weights", [(1, 1), (3, 1), (0.2, 0.5, 0.3), (1e-3, 1), (2,), (5, 4, 3, 2, 1, 0.1)])
def test_shares_are_the_weights_within_rounding_in_each_step_and_over_many(weights):
    config, wanted = mixed(*weights), 7 * np.array(weights) / sum(weights)
    found = np.array([list(shares(config, step).values()) for step in range(STEPS)])
    assert (found.sum(axis=1) == 7).all() and (abs(found - wanted) < 1).all()
    assert (abs(found.cumsum(axis=0) - np.arange(1, STEPS + 1)[:, None] * wanted) < 4).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"orchestrator.envs": [{"id": "gsm8k"}, {"id": "gsm8k"}]}, 'orchestrator.envs have the name "gsm8k"'),
        ({"orchestrator.eval.envs": [{"id": "a", "name": "b"}, {"id": "b"}]}, 'eval.envs have the name "b"'),
        ({"orchestrator.env.id": "countdown", "orchestrator.envs": [{"id": "gsm8k"}]}, "list all tasks in envs"),
        ({"orchestrator.envs": [{"id": "a"}, {"id": "b", "sampling": {"temperature": 0.7}}]}, "the same temperature"),
        ({"orchestrator.envs": [{"id": "a", "name": "x/y"}]}, "name is 'x/y'"),
        ({"orchestrator.envs": [{"id": "a", "weight": 0}]}, "weight"),
        ({"orchestrator.envs": [{"id": "a", "sampling": {"max_tokens": 99}}], "seq_len": 64}, "no room for a prompt"),
    ],
)
def test_a_mix_that_cannot_be_is_refused(settings, message):
    with pytest.raises(UserError, match=re.escape(message)):
        from_settings(RLConfig, None, settings)


def test_the_config_of_a_mix_can_be_read_again_with_another_sampling(tmp_path):
    own = [{"id": "a", "sampling": {"max_tokens": 32}}, {"id": "b"}]
    settings = {"orchestrator.envs": own, "orchestrator.sampling.top_p": 0.9, "orchestrator.eval.envs": own}
    first = from_settings(RLConfig, None, settings)
    (tmp_path / "config.toml").write_text(to_toml(first))
    flags = (
        "--orchestrator.sampling.top-p 0.8 --orchestrator.sampling.temperature 0.5 --orchestrator.eval.sampling.stop ."
    )
    again = parse(RLConfig, ["@", str(tmp_path / "config.toml"), *flags.split()], "rl")
    found = [one.orchestrator.sampling for one in again.tasks().values()]
    assert [(s.max_tokens, s.top_p, s.temperature) for s in found] == [(32, 0.8, 0.5), (None, 0.8, 0.5)]
    evaluated = [one.orchestrator.eval.sampling for one in again.eval_tasks().values()]
    assert [(s.max_tokens, s.stop) for s in evaluated] == [(32, ["."]), (None, ["."])]
    assert parse(RLConfig, ["@", str(tmp_path / "config.toml")], "rl") == first
