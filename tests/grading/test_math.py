from __future__ import annotations

import pytest

from hone.grading import GraderFailure, math
from hone.grading.math import readable, same
from hone.types import Outcome


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        (r"\frac{1}{2}", "0.5"),
        (r"\dfrac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}"),
        (r"\left(3, \frac{\pi}{2}\right).", r"\left( 3, \frac{\pi}{2} \right)"),
        ("4, 3", "3,4"),
        ("x = 5", "5"),
        ("−3", "-3"),
        ("$10{,}000$", "10000"),
        (r"10\,000", "10,\\!000"),
        ("1 000 000", "1000000"),
        ("3,50", "3.5"),
        ("1½", r"\frac{3}{2}"),
        ("**42**", "42"),
        (r"70", r"70 \text{ cm}^2"),
        (r"2516_{8}", "2516_8"),
        ("evelyn", r"\text{Evelyn}"),
        (r"\text{(C)}", "C"),
        ("June 20", r"\text{June 20}"),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
    ],
)
def test_equal(answer: str, gold: str):
    assert same(answer, gold) is True


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("3,500", "3.5"),
        ("(3,5)", "3.5"),
        ("(4, 3)", "(3, 4)"),
        ("Evleyn", "Evelyn"),
        (r"\text{odd}", r"\text{even}"),
        ("yes", "3"),
        ("12_8", "12"),
        ("12_9", "12_8"),
        ("[1,2]", "[1,2)"),
    ],
)
def test_different(answer: str, gold: str):
    assert same(answer, gold) is False


@pytest.mark.parametrize(
    "answer", ["", "1 0000", "10 00", "{3", "3}{", "3 + + ", "(" * 200 + "3", "3" * 513, "^", "\ud800"]
)
def test_unreadable(answer: str):
    assert same(answer, "3") is None


@pytest.mark.parametrize(
    "answer",
    [
        "9^{9^{9^{9}}}",
        "9**9**9**9",
        "10^{10^{10}}!",
        "(10^5)!",
        "2^{10001}",
        r"(open('/tmp/file','w').close()or \frac{1}{2})",
        'sympify("1/2")',
    ],
)
def test_what_nobody_can_work_out_is_not_read_and_code_neither(answer: str):
    assert not readable(answer) and same(answer, r"\frac{1}{2}") is None
    assert same(answer, answer) is True  # equal text is equal


def test_what_takes_too_long_is_a_timeout_and_the_next_question_is_answered(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(math, "CPU_SECONDS", 3)
    math._worker().close()  # so that a worker with the shorter time is started
    assert same("2", "1+1") is True
    failure = same(r"\binom{999999999}{499999999}", "9")
    assert isinstance(failure, GraderFailure) and failure.outcome is Outcome.GRADER_TIMEOUT
    assert failure.detail == "comparing the answer took 3 seconds of processor time"
    assert same("3", "1+2") is True
    math._worker().close()


def test_an_error_of_math_verify_is_a_failure_and_is_not_remembered(monkeypatch: pytest.MonkeyPatch):
    def broken(question):
        raise RuntimeError(f"cannot compare {question}")

    monkeypatch.setattr(math, "inside", lambda: True)
    monkeypatch.setattr(math, "_right_here", lambda: broken)
    failure = same("7^2", "48+1")
    assert isinstance(failure, GraderFailure) and failure.outcome is Outcome.GRADER_ERROR
    assert failure.detail.endswith("RuntimeError: cannot compare ['7^2', '48+1']")
    monkeypatch.undo()
    assert same("7^2", "48+1") is True


def test_an_answer_is_not_evaluated(tmp_path):
    canary = tmp_path / "canary"
    for code in (
        f"__import__('os').system('touch {canary}')",
        f"open('{canary}', 'w')",
        f"print(open('{canary}','w'))",
    ):
        same(code, "1")
        same(rf"\text{{{code}}}", "1")
    assert not canary.exists()
