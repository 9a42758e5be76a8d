"""Right answers that a task is given, or that an audit derives from the answers and the prompt."""

from __future__ import annotations

import re

import pytest

from hone.environments import Rubric, SingleTurnEnv
from hone.environments.references import forms
from hone.errors import UserError
from hone.extensions.audit.environment import audit_before_training
from hone.extensions.audit.report import Verdict
from hone.types import Example


def env(reward, prompt="What is {i} + 1?", **more):
    rows = [{"question": prompt.format(i=i), "answer": str(i + 1)} for i in range(8)]
    return SingleTurnEnv(id="sums", rubric=Rubric([reward]), dataset=rows, **more)


def last_number(completion, answer):
    numbers = re.findall(r"-?\d+", completion[-1]["content"])
    return float(bool(numbers) and numbers[-1] == answer)


@pytest.mark.parametrize(
    ("prompt", "first"),
    [
        ("What is 1 + 1?", "{answer}"),
        ("Think in <think>…</think>, answer in <solution>…</solution>.", "<solution>{answer}</solution>"),
        ("End with ANSWER: and a number.", "ANSWER: {answer}"),
        (r"Put the answer into \boxed{}.", r"\boxed{{{answer}}}"),
        ("End with #### and the number.", "#### {answer}"),
    ],
)
def test_the_form_that_the_prompt_asks_for_is_tried_first(prompt: str, first: str) -> None:
    found = forms(Example([{"role": "user", "content": prompt}], "2"))
    assert found[0] == first and "{answer}" in found and len(set(found)) == len(found)


def test_a_reward_that_takes_the_last_number_fails_its_audit_without_a_reference() -> None:
    """A longer text with more numbers loses the right answer; this passed with "nothing fails" before."""
    report = audit_before_training(env(last_number))
    assert "growth" in report.names() and report.facts["reference"] == "{answer}"
    assert report.checks[0].summary == "8 of 8 references are correct (derived from the answer as {answer})"


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
