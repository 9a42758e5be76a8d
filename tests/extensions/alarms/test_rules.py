"""Each alarm on a made-up run that falls ill at step 30: the step at which it is raised, and what it says."""

import numpy as np
import pytest

from hone.extensions.alarms.config import AlarmsConfig
from hone.extensions.alarms.rules import RULES
from hone.extensions.alarms.watch import MetricAlarms
from hone.runs.alarms import Alarms

ONSET, END = 30, 60
HEALTHY = {
    "reward/mean": 0.6,
    "reward/bonus/mean": 0.2,
    "frac_reward_zero_std": 0.1,
    "outcome/correct": 0.5,
    "outcome/wrong": 0.45,
    "outcome/unparsable": 0.03,
    "outcome/truncated": 0.02,
    "outcome/grader_error": 0.0,
    "outcome/grader_timeout": 0.0,
    "completion/length/mean": 50.0,
    "completion/truncated": 0.02,
    "completion/identical": 0.05,
    "completion/repeated": 0.1,
    "groups/trained": 14,
    "entropy": 0.8,
    "kl": 0.01,
    "clipped": 0.01,
    "grad_norm": 1.0,
    "optimizer/skipped": 0.0,
}


def run_of(ill: dict, weights=None, window: int = 10, **settings) -> dict[str, tuple[int, str]]:
    """First step and evidence of each alarm of a run whose metrics scatter by 2 %, and change at step 30 to `ill`."""
    noise = np.random.default_rng(0)
    info, found = {"reward_weights": weights or {"answer": 1.0, "bonus": 0.5}}, {}
    alarms = MetricAlarms(AlarmsConfig(window=window, **settings), Alarms(), info)
    for step in range(END):
        metrics = HEALTHY | (ill if step >= ONSET else {})
        for name, value in metrics.items():
            if name not in EXACT and value is not None:
                metrics[name] = value * (1 + 0.02 * noise.standard_normal())
        for alarm in alarms.look(step, metrics)[0]:
            found.setdefault(alarm["name"], (alarm["step"], alarm["evidence"]))
    return found


EXACT = ("groups/trained", "optimizer/skipped", "outcome/grader_error", "outcome/grader_timeout")
EXACT += ("pool/active", "pool/retired", "pool/parked")

WORSE = {"reward/mean": 0.2, "outcome/correct": 0.1}
CASES = {
    "falling_reward": (WORSE | {"completion/length/mean": 90.0}, 33),
    "zero_std": ({"frac_reward_zero_std": 0.95}, 38),
    "unparsable": (WORSE | {"outcome/unparsable": 0.5, "outcome/wrong": 0.4}, 33),
    "wrong": (WORSE | {"outcome/wrong": 0.85}, 33),
    "component": ({"reward/bonus/mean": 0.9, "outcome/correct": 0.4}, 34),
    "truncation": ({"completion/truncated": 0.6}, 36),
    "entropy_collapse": ({"entropy": 0.02}, 39),
    "entropy_blowup": ({"entropy": 2.5}, 33),
    "kl": ({"kl": 0.5}, 31),
    "ratio": ({"clipped": 0.5}, 33),
    "grad_spike": ({"grad_norm": 15.0}, 30),
    "identical": ({"completion/identical": 0.9, "outcome/correct": 0.1}, 35),
    "grader": ({"outcome/grader_error": 0.15}, 31),
    "solved_pool": ({"outcome/correct": 0.99, "outcome/wrong": 0.0}, 39),
    "dead_pool": ({"outcome/correct": 0.0}, 49),
    "no_signal": ({"groups/trained": 0, "frac_reward_zero_std": 1.0}, 34),
}


@pytest.mark.parametrize("name", RULES)
def test_an_alarm_is_raised_soon_after_its_cause(name):
    ill, step = CASES[name]
    found = run_of(ill)
    assert found[name][0] == step, found[name]


def test_a_reward_that_falls_without_longer_completions_is_another_matter():
    assert "falling_reward" not in run_of(WORSE) and run_of({}) == {} and run_of({}, window=3) == {}
