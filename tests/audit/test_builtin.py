"""The tasks that come with hone pass the audit that they are to be a model for.

Under their default arguments none has a failure. `gsm8k` that reads the last number is known to break as solutions grow
(docs/tasks.md says so), and its audit says just that.
"""

from __future__ import annotations

from typing import Any

import pytest

from hone.audit.environment import audit_before_training, audit_environment
from hone.audit.report import Report
from hone.environments import load_environment

pytestmark = pytest.mark.audit

TASKS = (
    "reverse-text",
    "char-count",
    "countdown",
    "scramble",
    "calculator",
    "gsm8k",
    "math-problems",
    "one-shot",
    pytest.param("math-python", marks=pytest.mark.sandbox),
)
EXAMPLES = 8


def failures(report: Report) -> list[str]:
    return [f"{finding.name}: {finding.title} {finding.shown[:1]}" for finding in report.failures]


@pytest.mark.parametrize("task", TASKS)
def test_a_task_of_hones_own_passes(task: str) -> None:
    report = audit_environment(load_environment(task), num_examples=EXAMPLES, max_tokens=1024)
    assert not failures(report)
    restyled = next(check for check in report.checks if check.name == "restylings")
    assert restyled.figures["restylings"] >= 25 and not restyled.figures["lost"]


def test_the_last_number_is_lost_as_solutions_grow_and_training_is_refused() -> None:
    env = load_environment("gsm8k", mode="sparse")
    report = audit_environment(env, num_examples=EXAMPLES, max_tokens=1024)
    assert report.names() == {"growth"}, failures(report)
    assert audit_before_training(env, max_tokens=1024).names() == {"growth"}


@pytest.mark.parametrize("args", [{"prompt": "{word} {letter}", "format_hint": False}])
def test_a_task_that_does_not_tell_its_form_is_taught_it_by_examples(args: dict[str, Any]) -> None:
    assert not failures(audit_environment(load_environment("char-count", **args), num_examples=EXAMPLES))
