"""Right answers that a task is given, or that an audit derives from the answers and the prompt."""

from __future__ import annotations

import re

import pytest

from hone.environments import Rubric, SingleTurnEnv
from hone.errors import UserError
from hone.extensions.audit.environment import audit_before_training
from hone.extensions.audit.report import Verdict


def env(reward, prompt="What is {i} + 1?", **more):
    rows = [{"question": prompt.format(i=i), "answer": str(i + 1)} for i in range(8)]
    return SingleTurnEnv(id="sums", rubric=Rubric([reward]), dataset=rows, **more)


def last_number(completion, answer):
    numbers = re.findall(r"-?\d+", completion[-1]["content"])
    return float(bool(numbers) and numbers[-1] == answer)


def exact(completion, answer):
    return float(completion[-1]["content"].strip() == answer)


def boxed(completion, answer):
    found = re.findall(r"\\boxed\{(.*?)\}", completion[-1]["content"])
    return float(bool(found) and found[-1].strip() == answer)


def test_the_form_is_one_that_the_reward_calls_right_if_there_is_one() -> None:
    assert audit_before_training(env(boxed)).facts["reference"] == r"\boxed{{{answer}}}"
    report = audit_before_training(env(exact))
    assert report.verdict == "warn" and "false-negative" in report.names(Verdict.WARN)
    for reward in (lambda completion, answer: 0.0, lambda completion: 1.0):
        assert "reference" not in audit_before_training(env(reward)).facts


def test_a_reference_is_a_template_or_a_function_of_columns() -> None:
    def written(answer, info):
        return f"It is {answer}."

    for reference in ("It is {answer}.", written):
        task = env(last_number, reference=reference)
        assert task.reference(task.split("train")[2]) == "It is 3."
        assert "reference" not in audit_before_training(task).facts
    with pytest.raises(UserError, match="no column 'solution'"):
        audit_before_training(env(last_number, reference="{solution}"))
    with pytest.raises(UserError, match="reference asks for 'solution'; the columns are answer, "):
        audit_before_training(env(last_number, reference=lambda solution: solution))
