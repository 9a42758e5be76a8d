from __future__ import annotations

import json
from pathlib import Path

import pytest

from hone.environments import load_environment
from hone.errors import UserError
from hone.grading import math
from hone.types import Outcome


@pytest.fixture(scope="module")
def env():
    return load_environment("math-problems")


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        (r"So \boxed{\frac{5}{12}}.", Outcome.CORRECT),
        (r"\boxed{\dfrac{10}{24}}", Outcome.CORRECT),
        (r"\boxed{x = 5/12}", Outcome.CORRECT),
        ("<answer>\n5/12\n</answer>\n", Outcome.CORRECT),
        ("**Answer:** $5/12$", Outcome.CORRECT),
        (r"\boxed{1}, no, \boxed{\frac{5}{12}}", Outcome.CORRECT),
        (r"\boxed{\frac{5}{12}}, no, \boxed{1}", Outcome.WRONG),
        (r"\boxed{0.4167}", Outcome.WRONG),
        (r"\boxed{5/12 or 1/2}", Outcome.WRONG),
        (r"\boxed{5 12}", Outcome.UNPARSABLE),
        (r"\boxed{}", Outcome.UNPARSABLE),
        (r"\boxed{\frac{5}{12}", Outcome.UNPARSABLE),
        (r"<think>\boxed{\frac{5}{12}}</think> Hm.", Outcome.UNPARSABLE),
        (r"It is \frac{5}{12}.", Outcome.UNPARSABLE),
    ],
)
def test_answers(env, text: str, outcome: Outcome):
    score = env.grade(env.example(problem="3/4 - 1/3?", answer=r"\frac{5}{12}"), text)
    assert score.outcome is outcome, score.detail
    assert score.reward == (outcome is Outcome.CORRECT)


def test_a_comparison_without_end_is_no_reward_at_all(env, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(math, "CPU_SECONDS", 1)
    math._worker().close()
    score = env.grade(env.example(problem="p", answer="9"), r"\boxed{\binom{999999999}{499999999}}")
    assert score.outcome is Outcome.GRADER_TIMEOUT and score.reward != score.reward
    math._worker().close()


@pytest.mark.parametrize("split", ["train", "eval"])
def test_our_own_problems_are_solved_by_their_reference(env, split: str):
    for example in env.split(split):
        assert env.grade(example, env.reference(example)).reward == 1.0
        assert env.grade(example, example.prompt[-1]["content"]).outcome is Outcome.UNPARSABLE
    assert (len(env.split("train")), len(env.split("eval"))) == (8, 4)
    assert not {e.id for e in env.split("train")} & {e.id for e in env.split("eval")}


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


def test_a_row_without_problem_or_answer_is_named(tmp_path: Path):
    path = tmp_path / "d.jsonl"
    for row, why in [
        ({"problem": "p"}, "no column 'answer'"),
        ({"problem": "p", "answer": " "}, "'answer' must be non-empty text, not ' '"),
        ({"problem": "p", "solution": "no box"}, "no column 'answer'"),
        ({"problem": "", "answer": "1"}, "'problem' must be non-empty text"),
        ({"text": "p", "answer": "1"}, "no column 'problem'"),
    ]:
        path.write_text(json.dumps({"problem": "1?", "answer": "1"}) + "\n" + json.dumps(row))
        env = load_environment("math-problems", dataset=str(path), eval_dataset=str(path))
        with pytest.raises(UserError, match=f"line 2: {why}"):
            env.split("train")
