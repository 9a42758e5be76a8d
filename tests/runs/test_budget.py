"""The run stops while there is still time, money and room for tokens to save and evaluate."""

import pytest

from hone.config.rl import RLConfig
from hone.config.shared import BudgetConfig
from hone.errors import UserError
from hone.runs import budget as module
from hone.runs.budget import Budget, process_seconds


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    monkeypatch.setattr(module, "process_seconds", lambda: 0.0)
    return Clock()


def test_another_step_and_what_follows_must_fit(clock):
    budget = Budget(BudgetConfig(hours=0.1), clock=clock)  # 360 s
    budget.took("checkpoint", 5.0)
    budget.took("evaluate", 20.0)
    budget.took("evaluate", 15.0)
    budget.took("sample", 100.0)  # a part of a step: nothing that follows the last one
    budget.step(30.0, None)
    clock.now += 304.9  # 304.9 + 30 + 5 + 20 < 360
    assert budget.used_up == ""
    clock.now += 0.2
    assert budget.limit_reached == "hours" and budget.used_up == "0.0848 of 0.1 hours"


def test_what_was_spent_before_a_resume_counts(clock):
    budget = Budget(BudgetConfig(usd=2.0, usd_per_hour=4.0), seconds=1700.0, clock=clock)
    assert budget.seconds == 1700.0 and budget.used_up == ""
    budget.step(101.0, None)
    assert budget.limit_reached == "usd" and budget.used_up == "1.89 of 2.00 US dollars"


def test_the_slowest_of_the_last_ten_steps_is_expected(clock):
    budget = Budget(BudgetConfig(hours=1), clock=clock)
    budget.step(3000.0, None)
    clock.now += 1000
    assert budget.limit_reached == "hours"
    slow_start = Budget(BudgetConfig(hours=1), clock=clock)
    for seconds in [3000.0] + 10 * [1.0]:
        slow_start.step(seconds, None)
    clock.now += 3500
    assert slow_start.used_up == ""


def test_tokens_are_those_of_the_run(clock):
    budget = Budget(BudgetConfig(tokens=1000), tokens=700, step_tokens=100, clock=clock)
    assert budget.used_up == ""
    budget.step(1.0, 850)
    assert budget.used_up == "", "850 + 150 is not over 1,000"
    budget.step(1.0, 851)
    assert budget.used_up == "851 of 1,000 tokens"


def test_once_reached_a_limit_stays_reached(clock):
    budget = Budget(BudgetConfig(hours=1), clock=clock)
    budget.step(4000.0, None)
    assert budget.used_up
    for _ in range(11):
        budget.step(1.0, None)
    assert budget.used_up


def test_without_limits_nothing_is_ever_used_up(clock):
    budget = Budget(None, seconds=1e9, clock=clock)
    budget.step(1e9, 10**15)
    assert budget.used_up == "" and budget.seconds == 1e9


def test_a_process_is_older_than_its_first_import():
    assert 0 < process_seconds() < 24 * 3600


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"usd": 5}, "set usd_per_hour as well"), ({"usd_per_hour": 5}, "a budget needs a limit")],
)
def test_a_budget_that_limits_nothing_is_refused(settings, message):
    with pytest.raises((UserError, ValueError), match=message):
        RLConfig(budget=settings)
