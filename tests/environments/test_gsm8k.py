from __future__ import annotations

import re
from pathlib import Path

import pytest

from hone.environments import load_environment
from hone.environments.data import load_rows
from hone.errors import UserError
from hone.types import Outcome

ROW = {
    "question": "Mia has 3 bags of 14 nuts. How many nuts has she?",
    "answer": "There are 3*14 = <<3*14=42>>42 nuts.\n#### 42",
}


@pytest.fixture(scope="module")
def two_part():
    return load_environment("gsm8k")


@pytest.fixture(scope="module")
def sparse():
    return load_environment("gsm8k", mode="sparse")


def test_the_default_is_two_part_and_its_parts_add_up(two_part):
    example = two_part.example(**ROW)
    for text, reward, outcome in [
        ("14 a bag.\nANSWER: 42", 1.1, Outcome.CORRECT),
        ("answer: $42.00 (three bags)", 1.1, Outcome.CORRECT),
        ("ANSWER: **42** nuts.", 1.1, Outcome.CORRECT),
        ("ANSWER: <42>", 1.1, Outcome.CORRECT),
        ("Final Answer: The final answer is $\\boxed{42}$. I hope it is correct.", 1.1, Outcome.CORRECT),
        ("ANSWER: 42\nI am sure of my answer: every step was checked.", 1.1, Outcome.CORRECT),
        ("ANSWER: 41\nNo:\nANSWER: 42", 1.1, Outcome.CORRECT),
        ("ANSWER: 41", 0.1, Outcome.WRONG),
        ("ANSWER: 42\nANSWER: 41", 0.1, Outcome.WRONG),
        ("ANSWER: 41 or 42", 0.0, Outcome.UNPARSABLE),
        ("ANSWER: many", 0.0, Outcome.UNPARSABLE),
        ("It is 42.", 0.0, Outcome.UNPARSABLE),
        ("<think>ANSWER: 42</think> I am not sure.", 0.0, Outcome.UNPARSABLE),
        ("", 0.0, Outcome.UNPARSABLE),
    ]:
        score = two_part.grade(example, text)
        assert (score.reward, score.outcome) == (pytest.approx(reward), outcome), text


def test_sparse_takes_the_last_number(sparse, two_part):
    example = sparse.example(**ROW)
    for text, reward, outcome in [
        ("3 bags of 14 make 42.", 1.0, Outcome.CORRECT),
        ("So 42, for 3 bags", 0.0, Outcome.WRONG),
        ("It is 40.", 0.0, Outcome.WRONG),
        ("I do not know.", 0.0, Outcome.UNPARSABLE),
    ]:
        score = sparse.grade(example, text)
        assert (score.reward, score.outcome) == (reward, outcome), text


def test_the_column_answer_is_a_solution_or_just_the_number(two_part):
    example = two_part.example(**ROW)
    assert example.answer == "42"
    assert example.info == {"solution": "There are 3*14 = 42 nuts."}
    assert two_part.reference(example) == "There are 3*14 = 42 nuts.\nANSWER: 42"
    assert two_part.example(question="q", answer="1,234").answer == "1,234"
    assert two_part.reference(two_part.example(question="q", answer="7")) == "ANSWER: 7"
    with pytest.raises(UserError, match="the answer 'about ten' of 'How many\\?' is no number"):
        two_part.example(question="How many?", answer="Let me see. #### about ten")


def test_no_made_up_problem_of_evaluation_has_the_numbers_of_a_training_problem():
    env = load_environment("gsm8k")

    def numbers(split):
        return {tuple(re.findall(r"\d+|[a-z]{6,}", example.prompt[0]["content"])) for example in env.split(split)}

    train, held_out = numbers("train"), numbers("eval")
    assert not train & held_out
    assert len(env.split("train")) == 7500 and len(train) > 6000 and len(held_out) > 700


def test_the_set_on_the_hub_is_asked_for_by_its_config(monkeypatch: pytest.MonkeyPatch):
    asked = []

    def read(source, split):
        asked.append((source, split))
        return load_rows(Path(__file__), split)

    monkeypatch.setattr("hone.environments.data.load_rows", read)
    env = load_environment("gsm8k", dataset="openai/gsm8k")
    for split in ("train", "eval"):
        with pytest.raises(UserError):
            env.split(split)
    assert asked == [("openai/gsm8k:main", "train"), ("openai/gsm8k:main", "test")]
