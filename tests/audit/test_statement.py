"""Where the answer stands in a completion, and what marks it as such."""

from __future__ import annotations

import pytest

from hone.audit.probes import Subject
from hone.audit.restyling import RESTYLINGS
from hone.audit.statement import Form, statement_of
from hone.environments import Rubric, SingleTurnEnv
from hone.types import Example

ENV = SingleTurnEnv(rubric=Rubric([lambda completion: 0.0]), id="any")
CODE = "Here it is.\n```python\ndef f(x):\n    return x + 3\n```\nThat is all."


def subject(text: str, gold: str, answer: str | None = None) -> Subject:
    """`answer`: as the task's parser finds it; by default that takes the whole text."""
    return Subject(Example([{"role": "user", "content": "?"}], gold), text, text, answer or text.strip())


@pytest.mark.parametrize(
    ("given", "parts", "form"),
    [
        (
            subject("6 * 7 is\n<answer>42</answer>\n", "42"),
            ("6 * 7 is\n", "<answer>", "42", "</answer>", "\n"),
            Form.TAG,
        ),
        (subject("So \\boxed{42}.", "42"), ("So ", "\\boxed{", "42", "}", "."), Form.BOXED),
        (subject("6 * 7\nANSWER: 42", "42"), ("6 * 7\n", "ANSWER: ", "42", "", ""), Form.LINE),
        (subject("42", "42"), ("", "", "42", "", ""), Form.BARE),
        (subject('{"sum": 42}', "42"), ("", '{"sum": ', "42", "}", ""), Form.CODE),
        (
            subject(CODE, "3"),
            ("Here it is.\n", "```python\n", "def f(x):\n    return x + 3", "\n```", "\nThat is all."),
            Form.CODE,
        ),
        (
            subject("```python\nprint(6 * 7)\n```\nThe answer is 42.", "42"),
            ("```python\nprint(6 * 7)\n```\n", "The answer is ", "42", ".", ""),
            Form.LINE,
        ),
        (subject("```json\n[1, 2]\n```", "1 2", "[1, 2]"), ("", "```json\n", "[1, 2]", "\n```", ""), Form.CODE),
    ],
)
def test_a_completion_is_taken_apart_where_its_answer_stands(
    given: Subject, parts: tuple[str, ...], form: Form
) -> None:
    found = statement_of(given)
    assert (found.head, found.opening, found.answer, found.closing, found.tail) == parts
    assert found.form is form and found.text == given.text


def test_code_stays_as_it_is_in_every_style() -> None:
    given = subject(CODE, "3")
    styles = {restyling.name: restyling.apply(given, ENV) for restyling in RESTYLINGS}
    texts = {name: text for name, text in styles.items() if text is not None}
    assert len(texts) >= 25
    for name, text in texts.items():
        assert "```python\ndef f(x):\n    return x + 3\n```" in text.replace("\r\n", "\n"), name
