"""The run stops while there is still time, money and room for tokens to save and evaluate."""

import pytest

from hone.config.rl import RLConfig
from hone.config.shared import BudgetConfig
from hone.errors import UserError
from hone.runs import budget as module
from hone.runs.budget import Budget, process_seconds
from hone.runs.files import JsonlLog
from hone.runs.spent import Spent, spent


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
    clock.now += 302.9  # 302.9 + 30 + 5 + 20, and 2 s to end the process, < 360
    assert budget.used_up == ""
    clock.now += 0.2
    assert budget.limit_reached == "hours" and budget.used_up == "0.0842 of 0.1 hours"


def test_a_save_is_guessed_until_one_was_timed(clock):
    budget = Budget(BudgetConfig(hours=0.1), clock=clock)
    budget.expect("checkpoint", 50.0)
    budget.step(30.0, None)
    clock.now += 285.0
    assert budget.used_up == "0.0792 of 0.1 hours", "285 + 30 + 50 + 2 is over 360"
    timed = Budget(BudgetConfig(hours=0.1), clock=clock)
    timed.expect("checkpoint", 50.0)
    timed.took("checkpoint", 3.0)
    timed.step(30.0, None)
    clock.now += 324.0
    assert timed.used_up == "", "324 + 30 + 3 + 2 is not"


def test_the_end_of_a_process_takes_two_fifths_of_its_start(clock):
    budget = Budget(BudgetConfig(hours=0.1), clock=clock)
    clock.now += 60.0
    budget.step(10.0, None)  # after a start of 50 s
    clock.now += 269.9
    assert budget.used_up == "", "329.9 + 10 + 20 is not over 360"
    clock.now += 0.2
    assert budget.limit_reached == "hours"


def test_what_was_spent_before_a_resume_counts(clock):
    budget = Budget(BudgetConfig(usd=2.0, usd_per_hour=4.0), Spent(seconds=1700.0), clock=clock)
    assert budget.seconds == 1700.0 and budget.used_up == ""
    budget.step(100.0, None)
    assert budget.limit_reached == "usd" and budget.used_up == "1.89 of 2.00 US dollars"


def test_each_process_is_paid_at_its_own_price(clock):
    budget = Budget(BudgetConfig(usd=10, usd_per_hour=8.0), Spent(seconds=7200.0, usd=2.5), clock=clock)
    clock.now += 1800
    assert budget.usd == pytest.approx(2.5 + 4.0)
    assert Budget(None, Spent(seconds=7200.0, usd=2.5), clock=clock).usd == 2.5
    assert Budget(None, Spent(seconds=7200.0), clock=clock).usd is None


def test_what_a_run_spent_is_read_from_its_logs(tmp_path):
    """Of time and money what was rolled back counts, of tokens it doesn't; the last ten steps predict the next."""
    metrics, timings = JsonlLog(tmp_path / "metrics.jsonl"), JsonlLog(tmp_path / "timings.jsonl")
    for step in range(12):
        metrics.append({"step": step, "tokens/total": 100 + step * 10})
        line = {"step": step, "time/step": 1.0 + step, "time/total": 10.0 * step, "usd/total": 0.5 * step}
        timings.append(line | ({"time/evaluate": 7.0} if step == 0 else {}))
    metrics.append({"step": 12, "eval/x/exact": 0.5})
    timings.append({"step": 12, "time/step": 99.0, "time/evaluate": 6.0, "time/total": 125.0})
    (tmp_path / "superseded" / "1").mkdir(parents=True)
    JsonlLog(tmp_path / "superseded" / "1" / "timings.jsonl").append({"step": 12, "time/total": 130.0})
    found = spent(tmp_path, {"seconds": 128.0, "usd": 6.0})
    assert (found.seconds, found.usd, found.tokens) == (130.0, 6.0, 210)
    assert found.recent_tokens == (10,) * 10 and found.recent_seconds == tuple(range(3, 13))
    assert found.phases == {"checkpoint": 0.0, "publish": 0.0, "evaluate": 7.0, "validate": 0.0}
    assert spent(tmp_path / "none", {}) == Spent(
        phases=dict.fromkeys(("checkpoint", "publish", "evaluate", "validate"), 0.0)
    )


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
    budget = Budget(BudgetConfig(tokens=1000), Spent(tokens=700, recent_tokens=(100, 90)), clock=clock)
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
    budget = Budget(None, Spent(seconds=1e9), clock=clock)
    budget.step(1e9, 10**15)
    assert budget.used_up == "" and budget.seconds == 1e9


def test_a_price_alone_limits_nothing_and_tells_the_cost(clock):
    budget = Budget(BudgetConfig(usd_per_hour=2.0), Spent(seconds=7200.0, usd=4.0), clock=clock)
    clock.now += 1800
    budget.step(1e9, 10**15)
    assert budget.used_up == "" and budget.usd == pytest.approx(4.0 + 1.0)


def test_a_process_is_older_than_its_first_import():
    assert 0 < process_seconds() < 24 * 3600


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"usd": 5}, "set usd_per_hour as well"), ({}, "a budget needs a limit, or a price")],
)
def test_a_budget_that_limits_nothing_is_refused(settings, message):
    with pytest.raises((UserError, ValueError), match=message):
        RLConfig(budget=settings)
