from __future__ import annotations

import pytest

from hone.environments import load_environment
from hone.types import Outcome


@pytest.fixture(scope="module")
def env():
    return load_environment("math-problems")


RIGHT_14400 = [
    r"Final Answer: The final answer is $\boxed{14400}$. I hope it is correct.",
    "\\boxed{14400}\nI am sure of my answer: every step was checked.",
    "\\boxed{14400}\nAnswer: see the box above.",
    "\\boxed{14400}.\nLet me check the answer: 120*120=14400.",
    "\\boxed{14400}\nI first thought the answer is 7.",
    "<answer>14400</answer> Answer: as stated.",
    "\\boxed{7}, no.\nANSWER: 14400",
    "Answer: 7. Answer: 14400",
    "ANSWER: 14400 (I checked it)",
    "ANSWER: 14400. I hope it is correct.",
    "The answer is 14400.",
    "Answer: **14400**",
    "Answer: $14400$ dollars",
    "Answer: $$14400$$",
    r"Answer: \[14400\]",
    "ANSWER: 14400 cm^2",
    "ANSWER: 14400 = 120^2",
    "ANSWER: \\boxed{14400} (I checked it)",
    r"\boxed{14\,400}",
    r"\boxed{14400 dollars}",
]
WRONG_14400 = [
    "ANSWER: 144001",
    "ANSWER: not 14400",
    "ANSWER: 14400 (or 14401)",
    "ANSWER: 14400 if n is odd, else 7",
    "ANSWER: 14400 + 1",
    "ANSWER: 14.400",
    "\\boxed{14400}\nANSWER: 7",
    "\\boxed{14400}\nANSWER: 14400 or 7",
    "answer: I tried 14400 but it is 7",
]


RIGHT = {
    "14400": RIGHT_14400,
    r"\frac{5}{12}": [r"So \boxed{\frac{5}{12}}.", r"\boxed{\dfrac{10}{24}}", r"\boxed{x = 5/12}", "**Answer:** $5/12$",
        "<answer>\n5/12\n</answer>\n", r"\boxed{1}, no, \boxed{\frac{5}{12}}", r"ANSWER: \frac{5}{12} (I checked it)"],
    "x^2 - 5x + 6": ["ANSWER: $x^2 - 5x + 6$ (by Vieta's formulas)"],
    "-7, 7": ["ANSWER: x = -7 or x = 7"],
    "(3, 6)": ["ANSWER: (3, 6), since both lines meet there."],
    r"25\pi": ["\\boxed{25\\pi}. The answer: checked."],
    "x < 5": ["ANSWER: x < 5"],
    "B": ["**Answer: (B)** because it fits"],
    r"\text{Evelyn}": ["Answer: Evelyn", "\\boxed{Evelyn}\nAnswer: as above."],
    "3.5": [r"\boxed{3,5}", r"\boxed{3{,}5}", "ANSWER: 3,5 cm"],
    "3,5": [r"\boxed{3.5}"],
    "1234.5": [r"\boxed{1 234,5}"],
    "3, 100": [r"\boxed{3,\ 100}"],
    "3 2/3": [r"\boxed{3 2/3}", "ANSWER: 3 2/3"],
}  # fmt: skip
WRONG = {
    "14400": WRONG_14400,
    r"\frac{5}{12}": [r"\boxed{\frac{5}{12}}, no, \boxed{1}", r"\boxed{0.4167}", r"\boxed{5/12 or 1/2}"],
    "3.125": [r"\boxed{3,125}"],
    "35": [r"\boxed{3,5}"],
    "3100": [r"\boxed{3,\ 100}"],
}
UNPARSABLE = {
    "14400": ["ANSWER: 14400. No, 7.", "The answer is not 14400.", "It is 14400."],
    r"\frac{5}{12}": [r"\boxed{5 12}", r"\boxed{}", r"\boxed{\frac{5}{12}", r"<think>\boxed{\frac{5}{12}}</think> Hm.",
        r"It is \frac{5}{12}."],
}  # fmt: skip
OUTCOMES = {Outcome.CORRECT: RIGHT, Outcome.WRONG: WRONG, Outcome.UNPARSABLE: UNPARSABLE}


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_an_answer_is_read_however_it_is_written_and_a_hedge_is_none(env, outcome: Outcome):
    for gold, texts in OUTCOMES[outcome].items():
        scores = env.grade_many([(env.example(problem="?", answer=gold), text) for text in texts])
        found = {text: (score.outcome, score.reward) for text, score in zip(texts, scores, strict=True)}
        assert found == dict.fromkeys(texts, (outcome, float(outcome is Outcome.CORRECT)))


def test_the_columns_of_the_field(env):
    """MATH-500's; a solution with the answer in a box; questions and messages."""
    math_500 = {"problem": "1+1?", "solution": r"It is \boxed{2}.", "answer": "2", "subject": "Algebra", "level": 1}
    for row in (
        math_500,
        {"problem": "1+1?", "solution": r"\boxed{1+1}=\boxed{2}"},
        {"question": " 1+1? ", "answer": 2},
        {"prompt": [{"role": "user", "content": "1+1?"}], "answer": "2"},
    ):
        example = env.example(**row)
        hint = "" if "prompt" in row else "\nReason step by step, and put your final answer within \\boxed{}."
        assert example.prompt == [{"role": "user", "content": f"1+1?{hint}"}]
        assert example.answer == "2"
    bare = load_environment("math-problems", format_hint=False, system_prompt="s")
    assert [m["content"] for m in bare.example(problem="p", answer="1").prompt] == ["s", "p"]
