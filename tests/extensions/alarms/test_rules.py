"""Each alarm on a made-up run that falls ill at step 30: the step at which it is raised, and what it says."""

import numpy as np
import pytest

from hone.extensions.alarms.config import AlarmsConfig
from hone.extensions.alarms.history import History
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


def test_an_update_that_had_nothing_to_train_on_is_no_gradient_that_was_not_finite():
    for kind in ({}, {"groups/trained": 0}):  # of SFT, and of RL
        history = History(10)
        history.append(0, {"loss": 1.0, "optimizer/skipped": 1.0} | kind)
        assert RULES["grad_spike"](history, 10) is None
        history.append(1, {"loss": 1.0, "optimizer/skipped": 1.0, "grad_norm": None} | kind)
        assert RULES["grad_spike"](history, 10).evidence == "the gradient was not finite, and the update was left out"
    step, evidence = run_of({"groups/trained": 0, "completion/truncated": 1.0})["no_signal"]
    assert step == 34 and "100 % of the completions were cut off at the length limit" in evidence


def test_a_component_counts_by_its_weight_and_not_while_correctness_rises_too():
    gain = {"reward/bonus/mean": 0.9, "outcome/correct": 0.4}
    assert "component" not in run_of(gain, weights={"answer": 1.0, "bonus": 0.1})
    assert "component" not in run_of(gain | {"outcome/correct": 0.7})
    step, text = run_of({"reward/bonus/mean": 0.9})["component"]
    assert step == 43 and "since step 13" in text, "flat for three windows, where it does not fall"


def test_a_component_that_is_the_task_may_rise_for_long_before_anything_is_exact():
    noise = np.random.default_rng(0)
    rising = [min(0.9, 0.1 + 0.01 * step) + 0.02 * noise.standard_normal() for step in range(150)]
    exact = {"outcome/correct": 0.0}
    for weights, correctness in (
        ({"likeness": 1.0, "exact": 0.0}, "exact"),
        ({"likeness": 0.9, "form": 0.1}, "likeness"),
    ):
        shown = [weights, correctness]
        assert raised_by("reward/likeness/mean", rising, *shown, **exact) == []
    ((name, _),) = raised_by("reward/likeness/mean", rising, {"likeness": 0.9, "answer": 0.1}, "answer", **exact)
    assert name == "component"


def test_gradients_that_come_in_bursts_are_no_spike_but_one_that_stays_is():
    noise = np.random.default_rng(1)
    norms = [float(noise.lognormal(-2, 0.3) * (12 if step % 12 == 7 else 1)) for step in range(60)]
    assert raised_by("grad_norm", norms) == []
    assert raised_by("grad_norm", [1.0] * 30 + [6.0, 20.0, 30.0, 40.0, 40.0]) == [("grad_spike", 33)]


def raised_by(name: str, values: list[float], weights=None, correctness=None, **others) -> list[tuple[str, int]]:
    config, info = AlarmsConfig(dead_pool={"action": "off"} if weights else {}), {"reward_weights": weights}
    alarms = MetricAlarms(config, Alarms(), info | {"correctness": correctness})
    looks = ((step, alarms.look(step, {"loss": 1.0, name: value} | others)[0]) for step, value in enumerate(values))
    return [(alarm["name"], step) for step, raised in looks for alarm in raised]


def test_sft_that_leaves_no_choice_has_not_collapsed():
    falling = [0.8 * 0.95**step for step in range(120)]
    assert raised_by("entropy", falling) == []
    assert raised_by("entropy", falling, **{"outcome/correct": 0.3}) == [("entropy_collapse", 68)]
    assert raised_by("entropy", [0.0] * 30, **{"outcome/correct": 0.3}) == [], "there was none from the beginning"
