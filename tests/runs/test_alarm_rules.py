"""Each alarm on a made-up run that falls ill at step 30: the step at which it is raised, and what it says."""

import re

import numpy as np
import pytest

from hone.config.alarms import AlarmsConfig
from hone.runs.alarm_rules import RULES
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
    alarms, found = Alarms(AlarmsConfig(window=window, **settings), weights or {"answer": 1.0, "bonus": 0.5}), {}
    for step in range(END):
        metrics = HEALTHY | (ill if step >= ONSET else {})
        for name, value in metrics.items():
            if name not in EXACT and value is not None:
                metrics[name] = value * (1 + 0.02 * noise.standard_normal())
        for alarm in alarms.look(step, metrics)[0]:
            found.setdefault(alarm.name, (alarm.step, alarm.finding.evidence))
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


@pytest.mark.parametrize("name", CASES)
def test_an_alarm_is_raised_soon_after_its_cause(name):
    ill, step = CASES[name]
    found = run_of(ill)
    assert found[name][0] == step, found[name]
    assert name not in run_of({}), "a healthy run raises none"


def test_there_is_a_case_for_every_rule_and_a_setting_with_its_default_in_its_description():
    assert CASES.keys() == RULES.keys()
    fields = AlarmsConfig.model_fields
    names = [name for name in fields if name not in ("action", "window")]
    assert sorted(names) == sorted([*RULES, "gap"])
    for name in RULES:
        threshold = AlarmsConfig().of(name).threshold
        assert f"({threshold:g})" in fields[name].description, name


def test_a_healthy_run_raises_nothing_however_its_metrics_scatter():
    assert run_of({}) == {} and run_of({}, window=3) == {}


def test_a_parser_that_loses_answers_is_told_from_a_skill_that_is_lost():
    lost = run_of(WORSE | {"outcome/unparsable": 0.5, "outcome/wrong": 0.4})
    assert "wrong" not in lost and "the parser finds no answer in" in lost["unparsable"][1]
    skill = run_of(WORSE | {"outcome/wrong": 0.85})
    assert "unparsable" not in skill and "while the parser still reads them" in skill["wrong"][1]


def test_evidence_has_the_figures():
    said = run_of(WORSE | {"completion/length/mean": 90.0})["falling_reward"][1]
    assert said.startswith("the reward fell from 0.612 (at step 22)") and "completions grew from 50 to 66" in said
    assert run_of({"grad_norm": 15.0})["grad_spike"][1].endswith("was 0.996 (median) and 1.04 at most")
    skipped = run_of({"optimizer/skipped": 1.0, "grad_norm": None})["grad_spike"]
    assert skipped == (30, "the gradient was not finite, and the update was left out")


def test_a_component_counts_by_its_weight_and_not_while_correctness_rises_too():
    gain = {"reward/bonus/mean": 0.9, "outcome/correct": 0.4}
    assert "component" not in run_of(gain, weights={"answer": 1.0, "bonus": 0.1})
    assert "component" not in run_of(gain | {"outcome/correct": 0.7})
    step, said = run_of({"reward/bonus/mean": 0.9})["component"]
    assert step == 43 and "since step 13" in said, "flat for three windows, where it does not fall"


def test_a_component_that_is_the_task_may_rise_for_long_before_anything_is_exact():
    noise = np.random.default_rng(0)
    rising = [min(0.9, 0.1 + 0.01 * step) + 0.02 * noise.standard_normal() for step in range(150)]
    exact = {"outcome/correct": 0.0}
    for weights, correctness in (
        ({"likeness": 1.0, "exact": 0.0}, "exact"),
        ({"likeness": 0.9, "form": 0.1}, "likeness"),
    ):
        told = [weights, correctness]
        assert raised_by("reward/likeness/mean", rising, *told, **exact) == []
    ((name, _),) = raised_by("reward/likeness/mean", rising, {"likeness": 0.9, "answer": 0.1}, "answer", **exact)
    assert name == "component"


def test_a_reward_that_falls_without_longer_completions_or_rises_with_them_is_another_matter():
    assert "falling_reward" not in run_of(WORSE)
    assert "falling_reward" not in run_of({"reward/mean": 0.9, "completion/length/mean": 90.0})


def test_sameness_is_fine_where_it_is_right():
    assert "identical" not in run_of({"completion/repeated": 0.8, "outcome/correct": 0.8})
    assert "entropy_collapse" not in run_of({"entropy": 0.02, "outcome/correct": 0.97})


def test_a_curriculum_says_itself_that_its_pool_is_solved_or_dead():
    solved = run_of({"pool/active": 1, "pool/retired": 196, "pool/parked": 3})
    assert solved["solved_pool"][0] == 30, solved
    assert solved["solved_pool"][1].endswith("prompts are retired as solved")
    assert run_of({"pool/active": 2, "pool/retired": 2, "pool/parked": 196})["dead_pool"][0] == 30


def small_batches(seed: int, steps: int = 800, correct: float = 0.6, **settings) -> dict[str, int]:
    """First step of each alarm of a run that stays as it is, at 4 prompts of uneven difficulty x 4 rollouts a step."""
    noise = np.random.default_rng(seed)
    alarms, found = Alarms(AlarmsConfig(**settings), {"answer": 0.9, "format": 0.1}), {}
    for step in range(steps):
        rates = noise.beta(correct, 1 - correct, size=4)
        solved = noise.binomial(4, rates).sum() / 16
        unparsable = noise.binomial(16, 0.3 * (1 - solved)) / 16
        metrics = {
            "reward/mean": 0.9 * solved + 0.1 * (1 - unparsable),
            "reward/format/mean": 1 - unparsable,
            "outcome/correct": solved,
            "outcome/wrong": 1 - solved - unparsable,
            "outcome/unparsable": unparsable,
            "outcome/truncated": 0.0,
            "completion/length/mean": 100 * (1 + step / steps) * noise.lognormal(0, 0.2),
            "completion/identical": 0.0,
            "completion/repeated": noise.binomial(16, 0.05) / 16,
            "groups/trained": 3,
            "grad_norm": noise.lognormal(0, 0.8),
        }
        for alarm in alarms.look(step, metrics)[0]:
            found.setdefault(alarm.name, step)
    return found


@pytest.mark.parametrize("correct", [0.3, 0.6])
def test_small_batches_scatter_without_an_alarm(correct):
    assert [small_batches(seed, correct=correct) for seed in range(2)] == [{}, {}]


def test_gradients_that_come_in_bursts_are_no_spike_but_one_that_stays_is():
    noise = np.random.default_rng(1)
    norms = [float(noise.lognormal(-2, 0.3) * (12 if step % 12 == 7 else 1)) for step in range(60)]
    assert raised_by("grad_norm", norms) == []
    assert raised_by("grad_norm", [1.0] * 30 + [6.0, 20.0, 30.0, 40.0, 40.0]) == [("grad_spike", 33)]


def raised_by(name: str, values: list[float], weights=None, correctness=None, **others) -> list[tuple[str, int]]:
    alarms = Alarms(AlarmsConfig(dead_pool={"action": "off"} if weights else {}), weights, correctness)
    looks = ((step, alarms.look(step, {"loss": 1.0, name: value} | others)[0]) for step, value in enumerate(values))
    return [(alarm.name, step) for step, raised in looks for alarm in raised]


def test_sft_that_leaves_no_choice_has_not_collapsed():
    falling = [0.8 * 0.95**step for step in range(120)]
    assert raised_by("entropy", falling) == []
    assert raised_by("entropy", falling, **{"outcome/correct": 0.3}) == [("entropy_collapse", 68)]
    assert raised_by("entropy", [0.0] * 30, **{"outcome/correct": 0.3}) == [], "there was none from the beginning"


def test_a_reward_that_rises_slowly_is_not_dead_though_nothing_is_exact():
    noise = np.random.default_rng(0)
    rewards = [0.3 + 0.004 * step + 0.02 * noise.standard_normal() for step in range(100)]
    assert raised_by("reward/mean", rewards, **{"outcome/correct": 0.0}) == []
    flat = [0.3 + 0.02 * noise.standard_normal() for _ in range(100)]
    ((name, step),) = raised_by("reward/mean", flat, **{"outcome/correct": 0.0})[:1]
    assert name == "dead_pool" and step <= 40


def test_a_threshold_of_ones_own():
    assert "truncation" not in run_of({"completion/truncated": 0.6}, truncation={"threshold": 0.9})
    assert run_of({"completion/truncated": 0.1}, truncation={"threshold": 0.05})["truncation"][0] == 33


@pytest.mark.parametrize(("window", "said"), [(10, "(the reward is 0.000)"), (40, "and the reward is 0.000")])
def test_a_reward_is_told_before_a_window_is_full(window, said):
    alarms = Alarms(AlarmsConfig(window=window))
    metrics = {"reward/mean": 0.0, "groups/trained": 0, "outcome/correct": 0.0}
    raised = [alarm for step in range(30) for alarm in alarms.look(step, metrics)[0]]
    assert {alarm.name for alarm in raised} >= {"no_signal", "dead_pool"}
    assert any(said in alarm.finding.evidence for alarm in raised)
    assert not any("nan" in alarm.finding.evidence for alarm in raised)


FIGURES = {
    "falling_reward": "best:reward/mean step:reward/mean now:reward/mean best:reward/mean|completion/length/mean "
    "now:completion/length/mean",
    "zero_std": "now:frac_reward_zero_std window first:frac_reward_zero_std",
    "unparsable": "now:outcome/unparsable least:outcome/unparsable step:outcome/unparsable "
    "least:outcome/unparsable|outcome/wrong now:outcome/wrong",
    "wrong": "best:outcome/correct step:outcome/correct now:outcome/correct best:outcome/correct|outcome/wrong "
    "now:outcome/wrong",
    "component": "least:reward/bonus/mean now:reward/bonus/mean weight step:reward/bonus/mean "
    "least:reward/bonus/mean|outcome/correct now:outcome/correct",
    "truncation": "now:completion/truncated window first:completion/truncated",
    "entropy_collapse": "first:entropy now:entropy now:outcome/correct",
    "entropy_blowup": "least:entropy step:entropy now:entropy",
    "kl": "now:kl window",
    "ratio": "now:clipped window",
    "identical": "now:completion/identical first:completion/identical now:outcome/correct",
    "grader": "failed window now:outcome/grader_error now:outcome/grader_timeout latest:failed",
    "solved_pool": "now:outcome/correct window",
    "dead_pool": "steps now:reward/mean",
    "no_signal": "steps now:reward/mean",
}
"""What each number in an alarm's sentence is, in order: a metric's mean over a window (the last, the first, that with
its `best` or `least` mean, or of another metric (after `|`) over that one), the step at which the window ends, …
"""


@pytest.mark.parametrize(
    ("name", "early"), [*((name, False) for name in FIGURES), ("grader", True), ("no_signal", True)]
)
def test_the_figures_in_a_sentence_are_of_the_steps_that_it_names(name, early):
    """Compared with means that are taken here. `early`: ill from the first step on, before a window is full."""
    ill, window, noise = CASES[name][0], 10, np.random.default_rng(1)
    alarms = Alarms(AlarmsConfig(window=window), {"answer": 1.0, "bonus": 0.5})
    lines: list[dict[str, float]] = []
    found = []
    while not found and len(lines) < END:
        line = HEALTHY | (ill if early or len(lines) >= ONSET else {})
        lines.append(
            {k: v if k in EXACT and "grader" not in k else v * noise.uniform(0.7, 1.3) for k, v in line.items()}
        )
        found = [one for one in alarms.look(len(lines) - 1, lines[-1])[0] if one.name == name]
    ((evidence, value),) = [(one.finding.evidence, one.finding.value) for one in found]

    def mean(metric: str, end: int, steps: int = window) -> float:
        return float(np.mean([line[metric] for line in lines[max(0, end + 1 - steps) : end + 1]]))

    def end_of(which: str, metric: str) -> int:
        ends = {"now": len(lines) - 1, "first": window - 1}
        order = sorted(range(window - 1, len(lines)), key=lambda end: mean(metric, end))
        return ends.get(which, order[-1] if which == "best" else order[0] if which == "least" else -1)

    def figure(said: str) -> float:
        which, _, metric = said.partition(":")
        over, _, other = metric.partition("|")
        if which == "step":
            return end_of("best" if name in ("falling_reward", "wrong") else "least", metric)
        taken = min(window, len(lines))
        failed = ("outcome/grader_error", "outcome/grader_timeout")
        known = {"window": taken, "weight": 0.5, "steps": {"dead_pool": 20, "no_signal": 5}.get(name, 0)}
        known["failed"] = sum(mean(one, len(lines) - 1) for one in failed)
        known["latest"] = sum(lines[-1][one] for one in failed)
        if which in known:
            return known[which]
        return mean(other or over, end_of(which, over), int(known["steps"]) or window)

    numbers = NUMBER.findall(evidence)
    assert len(numbers) == len(FIGURES[name].split()), evidence
    for (number, percent), said in zip(numbers, FIGURES[name].split(), strict=True):
        last_digit = 10.0 ** -len(number.partition(".")[2])
        assert float(number) == pytest.approx(figure(said) * (100 if percent else 1), abs=0.51 * last_digit), evidence
    if name == "grader":
        assert value == pytest.approx(figure("failed"))


NUMBER = re.compile(r"(\d+(?:\.\d+)?)( %)?")
