from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest
from countdown import Expression, read_expression, solve

from hone.environments import load_environment
from hone.errors import UserError
from hone.types import Outcome


@pytest.fixture(scope="module")
def env():
    return load_environment("countdown")


EXPRESSIONS = {
    "3": ["1+2", "1 +\n 2 ", "8-3-2", r"\(1+2\)", "$1+2$", r"\boxed{1+2}", "**1+2**"],
    "14": ["2+3*4"],
    "20": ["(2+3)*4"],
    "2": ["16/4/2", r"\dfrac {6} {3}", "-3+5"],
    "1/2": ["1/3+1/6"],
    "24": ["8/(3-8/3)"],
    "15": ["6×4÷3·2−1"],
    "16": [r"6\times4\div3\cdot2"],
    "6": [r"\frac{1+2}{4}*8"],
    "2/3": [r"\frac{\frac{1}{2}}{\frac{3}{4}}"],
    "9": [r"\left(1+2\right)*3"],
    "-6": ["-2*3", "2*-3"],
    "5": ["2-(-3)"],
    "7": ["7", "(" * 250 + "7" + ")" * 250],
    "0": ["0*5"],
}  # fmt: skip


@pytest.mark.parametrize(("text", "value"), [(given, value) for value, texts in EXPRESSIONS.items() for given in texts])
def test_expressions_are_worth_exact_fractions(text: str, value: str):
    expression = read_expression(text)
    assert expression is not None and expression.value == Fraction(value) and expression.stated is None


def test_what_an_expression_is_made_of():
    assert read_expression(r"\frac{44+19}{35} = 98") == Expression(Fraction(9, 5), (44, 19, 35), frozenset("+/"), 98)
    assert read_expression("1/(2-2)") == Expression(None, (1, 2, 2), frozenset("/-"), None)


POWERS = ["2**3", "7//2", "2^3", "44**35**19", "2* *3", "7% 2", "5!"]
PRODUCTS = ["2(3)", "(2)(3)", "2 3", "(1+2)3", r"3\frac{1}{2}", r"\frac{1}{2}3"]
NUMBERS = ["2.5*4", "1,000+1", "05+1", "00", "1e3+1", "4.", "½+1", "٤+1", "x+1", "one+1"]
BROKEN = ["", "+", "1+", "+1", "*1", "()", "(1", "1)", ")1(", "(1+)2", "{1}", "1}", "[1+2]", "1+-", "((", r"\frac"]
FRACTIONS = [r"\frac{1}", r"\frac{1}2", r"\frac12", r"\frac{1}{2", r"\frac(1)(2)", r"\frac{1}{2}{3}", r"\frac{}{2}"]
EQUATIONS = ["1+2=", "=3", "1=2=3", "98 = 44+54", "1+2 = 3.", "1+2 = 2+1", "1+2 == 3", "(1+2 = 3)"]
CODE = ["__import__('os')", "1 if 1 else 2", "print(1)", "1;2", "1+2 # three", "1+2 so 3", "1+2, 3"]


@pytest.mark.parametrize("text", POWERS + PRODUCTS + NUMBERS + BROKEN + FRACTIONS + EQUATIONS + CODE)
def test_what_is_not_in_the_grammar_is_no_answer(env, text: str):
    assert read_expression(text) is None
    score = env.grade(env.example(nums=[2, 3], target=6), f"<answer>{text}</answer>")
    assert (score.reward, score.outcome) == (0.0, Outcome.UNPARSABLE)


def test_hostile_expressions_return_at_once(env):
    """Each would take for ever if it were worked out, or end Python's recursion."""
    example = env.example(nums=[44, 35, 19], target=98)
    for text in (
        "44**35**19",
        "(" * 5000 + "1" + ")" * 5000,
        "9" * 5000,
        "-" * 5000 + "1",
        r"\frac{" * 2000,
        "1+" * 9999,
    ):
        assert env.grade(example, f"<answer>{text}</answer>").outcome is Outcome.UNPARSABLE
    for text in ("9" * 512, "-" * 511 + "1", "9*" * 255 + "9", "1/7+" * 127 + "1/3"):
        assert env.grade(example, f"<answer>{text}</answer>").outcome is Outcome.WRONG
    assert env.grade(example, f"<answer>{'1+' * 256}1</answer>").outcome is Outcome.UNPARSABLE, "513 characters"


def test_each_number_at_most_once_by_option(env):
    some = load_environment("countdown", use_all=False)
    example, text = some.example(nums=[44, 19, 35, 7], target=98), "<answer>44+19+35</answer>"
    assert some.grade(example, text).reward == 1.0 and env.grade(example, text).reward == 0.1
    assert some.grade(example, "<answer>7*7+49</answer>").reward == 0.1
    assert "at most once" in some.split("train")[0].prompt[0]["content"]


def test_what_solve_finds_is_worth_the_target_of_these_numbers():
    """Also where brackets are needed."""
    for nums, target in (([9, 5, 3], 7), ([9, 5, 3], 1), ([24, 4, 2], 12), ([24, 4, 2], 3), ([8, 5, 3, 2], 16)):
        expression = read_expression(solve(nums, target) or "")
        assert expression and expression.value == target and sorted(expression.numbers) == sorted(nums)
    found = [solve([3, 3, 8, 8], 24), solve([2, 3, 4], 20), solve([5], 5), solve([3, 8], 3)]
    assert found == ["8/(3-8/3)", "(2+3)*4", "5", None] and solve([3, 8], 3, use_all=False) == "3"


def test_the_first_rows_to_train_and_the_next_to_evaluate(tmp_path: Path):
    path = str(tmp_path / "rows.jsonl")
    Path(path).write_text("".join(json.dumps({"target": 10 + i, "nums": [1 + i, 4, 5]}) + "\n" for i in range(40)))
    env = load_environment("countdown", dataset=path, num_train_examples=20, num_eval_examples=5)
    assert [e.answer for e in env.split("train")] == [str(10 + i) for i in range(20)]
    assert [e.answer for e in env.split("eval")] == [str(30 + i) for i in range(5)]
    with pytest.raises(UserError, match="has 40 rows, fewer than the 45 asked for"):
        load_environment("countdown", dataset=path, num_train_examples=40, num_eval_examples=5).split("train")
