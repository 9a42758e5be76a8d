from __future__ import annotations

import pytest

from hone.grading import GraderFailure, math
from hone.grading.math import readable, same
from hone.types import Outcome

EQUAL = {
    "0.5": [r"\frac{1}{2}"],
    r"\frac{1}{\sqrt{2}}": [r"\dfrac{\sqrt{2}}{2}"],
    r"\left( 3, \frac{\pi}{2} \right)": [r"\left(3, \frac{\pi}{2}\right)."],
    "3,4": ["4, 3"],
    "-3": ["−3"],
    "10000": ["$10{,}000$"],
    "10,\\!000": [r"10\,000"],
    "1000000": ["1 000 000"],
    "3.5": ["3,50"],
    r"\frac{3}{2}": ["1½"],
    "42": ["**42**"],
    r"70 \text{ cm}^2": ["70"],
    "2516_8": [r"2516_{8}"],
    r"\text{Evelyn}": ["evelyn"],
    "C": [r"\text{(C)}"],
    r"\text{June 20}": ["June 20"],
    r"\begin{pmatrix}1\\2\end{pmatrix}": [r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"],
}
DIFFERENT = {
    "3.5": ["3,500", "(3,5)"],
    "(3, 4)": ["(4, 3)"],
    "Evelyn": ["Evleyn"],
    r"\text{even}": [r"\text{odd}"],
    "3": ["yes"],
    "12": ["12_8"],
    "[1,2)": ["[1,2]"],
}
ROUNDED = {
    r"\frac{1}{3}": ["0.333333", "0.3333333", r"33.3333\%", r"3.33333 \times 10^{-1}", r"\frac{1}{3} = 0.333333"],
    r"\pi": ["3.14159", "3.141593"],
    r"\sqrt{5}": ["2.236068", "2.2360680"],
    "e^2": ["7.389056"],
    r"\frac{1}{52!}": [r"1.23980 \times 10^{-68}"],
    r"\frac{1000000}{3}": ["333333.3"],
    "0.333333": [r"\frac{1}{3}"],
    "4.123105625617661": [r"\sqrt{17}"],
    "x = 1/3": ["x = 0.333333", "0.333333"],
    "(1/3, 2)": ["(0.333333, 2)"],
    "[1/3, 1)": ["[0.333333, 1)"],
    r"\{2, 1/3\}": [r"\{0.333333, 2\}"],
    r"\begin{pmatrix} 1/3 \\ 2 \end{pmatrix}": [r"\begin{pmatrix} 0.333333 \\ 2 \end{pmatrix}"],
    r"\frac{3}{8}": ["0.375", "0.3750", r"37.5\%"],
    r"1.6 \times 10^{-19}": [r"1.60 \times 10^{-19}", r"16 \times 10^{-20}"],
}
NOT_ROUNDED = {
    r"\frac{1}{3}": ["0.33333", "0.333334", "0.3333330", r"33.333\%", r"\frac{1}{3} + 10^{-20}"],
    r"\frac{2}{3}": ["0.666666"],
    r"\pi": ["3.1416", "3.141592"],
    r"\frac{3}{8}": ["0.3750001"],
    r"\frac{1000000}{3}": ["333333"],
    "0.333333": ["0.3333333", "0.3333"],
    "0.1234567": ["0.1234568"],
    "12345678.1234561": ["12345678.1234562"],
    "0.0000012": ["0.0000013"],
    "e^{-1000}": ["0", "e^{-1001}"],
    r"6.63 \times 10^{-34}": ["0.0", r"9.11 \times 10^{-31}"],
    r"\frac{1}{52!}": [r"\frac{1}{51!}", r"1.23979 \times 10^{-68}"],
    r"\sqrt{2}": [r"\sqrt{2} + 10^{-30}"],
    r"\sqrt{2} \times 10^{-20}": [r"\sqrt{3} \times 10^{-20}"],
    r"2 \times 10^{-20} x": [r"3 \times 10^{-20} x"],
    "x/3": ["0.333333x"],
    "x = 10^{-20}": ["x = 10^{-21}"],
    "x < 10^{-20}": ["x < 10^{-21}"],
    "x + 10^{-20} = y": ["x + 10^{-21} = y"],
    r"(1, 2 \times 10^{-20})": [r"(1, 5 \times 10^{-20})"],
    "[0, 10^{-20}]": ["[0, 10^{-21}]"],
    r"\{1, 10^{-20}\}": [r"\{1, 10^{-21}\}"],
    r"\begin{pmatrix} 1 \\ 10^{-20} \end{pmatrix}": [r"\begin{pmatrix} 1 \\ 10^{-21} \end{pmatrix}"],
    "5": [r"\infty"],
}
STATED = {
    "7": ["x = 7", "f(2) = 7", "|AB| = 7", "AB = 7", r"x = 3 + 4 = 7"],
    "10": [r"\binom{5}{2} = 10"],
    "3/8": ["P(X=2) = 3/8"],
    r"25\pi": [r"V = \pi r^2 = 25\pi"],
    "2x": [r"\frac{dy}{dx} = 2x"],
    "-7, 7": ["x = -7, x = 7", r"x = \pm 7"],
    "14400 = 120^2": ["14400"],
    "x = 2/3 = 0.67": ["0.67"],
    "4x + 2y = 6": ["2x + y = 3", "3 = 2x + y"],
    "y = 1/x": ["xy = 1"],
    "x < 3": ["3 > x", "2x < 6"],
    "0 < f(x) < 1": ["(0, 1)"],
    "x^2 = 4": [r"\{-2, 2\}"],
}
NOT_STATED = {
    "7": ["6 = 7", "7 = 7", "x + y = 7", "x = 6 = 7", "2x = 7"],
    "14": ["2x = 14"],
    "0": ["0 = 0", "2x + 5y - 3 = 0", "x + y = 0", "x^2 = 0"],
    "12": [r"3 \cdot 5 = 12"],
    "1/2": ["P(X=2) = 3/8 = 1/2"],
    "x + y = 7": ["7"],
    "x = 7": ["y = 7"],
}
WHOLE = {
    "3 2/3": [r"\frac{11}{3}", r"3\frac{2}{3}", "3 ⅔", "3.666667", "3 2/3 cm"],
    r"-\frac{11}{3}": ["-3 2/3"],
    "(7/2, 4)": ["(3 1/2, 4)"],
    r"\frac{7\pi}{2}": [r"3\frac{1}{2}\pi", r"3 1/2 \pi"],
    "3:4": ["6:8", "3/4", "a:b = 3:4"],
    "a:b = 3:4": ["3:4"],
    "6:8:10": ["3:4:5"],
    r"28\%": ["28", "0.28"],
}
NOT_WHOLE = {
    "3 2/3": ["3", "2"],
    "3/4": ["3:4"],
    "0.75": ["3:4"],
    "1:2:3": ["1/6", "1:3:2", "1:6"],
    "3:4": ["3:4:5"],
    r"28\%": ["0.28001"],
    "28.5": [r"28.5\%"],
}


UNREADABLE = {
    "3": ["1 234/567", "2 3/4 4/5", "1 1/2x", "", "1 0000", "{3", "3 + + ", "(" * 200 + "3", "3" * 513, "^", "\ud800"],
    "7": ["? = 6 = 7"],
    "9/2": ["3 3/2"],
}
TABLES = {
    True: (EQUAL, ROUNDED, STATED, WHOLE),
    False: (DIFFERENT, NOT_ROUNDED, NOT_STATED, NOT_WHOLE),
    None: (UNREADABLE,),
}
CASES = [
    (answer, gold, equal) for equal in TABLES for table in TABLES[equal] for gold in table for answer in table[gold]
]


@pytest.mark.parametrize(("answer", "gold", "equal"), CASES)
def test_whether_an_answer_is_the_gold_one(answer: str, gold: str, equal: bool | None):
    """Also decimals, equations, mixed numbers and ratios; None: it can't be read."""
    assert same(answer, gold) is equal


@pytest.mark.parametrize(
    "answer",
    ["9^{9^{9^{9}}}", "10^{10^{10}}!", "2^{10001}", r"(open('/tmp/file','w').close()or \frac{1}{2})", 'sympify("1/2")'],
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
