"""The run stops while there is still time, money and room for tokens to save and evaluate."""

import pytest

from hone.config.shared import BudgetConfig
from hone.runs import budget as module
from hone.runs.budget import Budget, Spent, spent
from hone.runs.files import JsonlLog


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
    assert budget.used_up == "0.0842 of 0.1 hours"


def test_what_was_spent_before_a_resume_counts(clock):
    budget = Budget(BudgetConfig(usd=2.0, usd_per_hour=4.0), Spent(seconds=1700.0), clock=clock)
    assert budget.seconds == 1700.0 and budget.used_up == ""
    assert Budget(BudgetConfig(usd=10, usd_per_hour=8.0), Spent(seconds=7200.0, usd=2.5), clock=clock).usd == 2.5
    budget.step(100.0, None)
    assert budget.used_up == "1.89 of 2.00 US dollars"


def test_what_a_run_spent_is_read_from_its_logs(tmp_path):
    """Of time and money what was rolled back counts, of tokens it doesn't; the last ten steps predict the next."""
    metrics, timings = JsonlLog(tmp_path / "metrics.jsonl"), JsonlLog(tmp_path / "timings.jsonl")
    for step in range(12):
        metrics.append({"step": step, "tokens/total": 100 + step * 10})
        line = {"step": step, "time/step": 1.0 + step, "time/total": 10.0 * step, "usd/total": 0.5 * step}
        timings.append(line | ({"time/evaluate": 7.0} if step == 0 else {}))
    metrics.append({"step": 12, "eval/x/correct": 0.5})
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
