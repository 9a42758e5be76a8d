from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from hone import rng
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


def test_a_style_that_grows_verbose_is_lost_on_sparse_alone(sparse, two_part):
    text = "ANSWER: 42\nThis follows by the 2 rules of chapter 7."
    assert sparse.grade(sparse.example(**ROW), text).reward == 0.0
    assert two_part.grade(two_part.example(**ROW), text).outcome is Outcome.CORRECT


def test_the_column_answer_is_a_solution_or_just_the_number(two_part):
    example = two_part.example(**ROW)
    assert example.answer == "42"
    assert example.info == {"solution": "There are 3*14 = 42 nuts."}
    assert two_part.reference(example) == "There are 3*14 = 42 nuts.\nANSWER: 42"
    assert two_part.example(question="q", answer="1,234").answer == "1,234"
    assert two_part.reference(two_part.example(question="q", answer="7")) == "ANSWER: 7"
    with pytest.raises(UserError, match="the answer 'about ten' of 'How many\\?' is no number"):
        two_part.example(question="How many?", answer="Let me see. #### about ten")


@pytest.mark.parametrize("mode", ["two_part", "sparse"])
@pytest.mark.parametrize("split", ["train", "eval"])
def test_made_up_problems_are_solved_by_their_reference(mode: str, split: str):
    env = load_environment("gsm8k", mode=mode)
    for example in env.split(split)[:200]:
        score = env.grade(example, env.reference(example))
        assert (score.outcome, score.reward) == (Outcome.CORRECT, pytest.approx(1.1 if mode == "two_part" else 1.0))


def test_demonstrations_are_as_sloppy_as_documented():
    env = load_environment("gsm8k", demo_noise=1.0)
    outcomes = Counter()
    for i, example in enumerate(env.split("train")[:2000]):
        outcomes[env.grade(example, env.demonstrate(example, rng.stream(0, i))).outcome] += 1
    assert outcomes[Outcome.UNPARSABLE] == pytest.approx(2000 * 0.3, rel=0.1)
    assert outcomes[Outcome.WRONG] == pytest.approx(2000 * 0.7 * 0.3, rel=0.12)
    clean = load_environment("gsm8k")
    for example in clean.split("train")[:20]:
        assert clean.demonstrate(example, rng.stream(0)) == clean.reference(example)


def test_the_steps_of_made_up_problems_are_right_and_use_numbers_there_are():
    env = load_environment("gsm8k")
    stories = set()
    for i in range(500):
        row = env.split("train").rows[i]
        stories.add(re.sub(r"\d+", "#", row["answer"].splitlines()[0]).split(" ", 1)[1])
        known = {int(n) for n in re.findall(r"\d+", row["question"])} | {2, 4, 100}
        for a, op, b, result in re.findall(r"<<(\d+)([-+*/])(\d+)=(\d+)>>", row["answer"]):
            a, b, result = int(a), int(b), int(result)
            assert {a, b} <= known
            assert result == {"+": a + b, "-": a - b, "*": a * b, "/": a / b}[op]
            known.add(result)
        assert row["answer"].endswith(f"#### {result}")
    assert len(stories) >= 10


def test_no_made_up_problem_of_evaluation_has_the_numbers_of_a_training_problem():
    env = load_environment("gsm8k")

    def numbers(split):
        return {tuple(re.findall(r"\d+|[a-z]{6,}", row["question"])) for row in env.split(split).rows}

    train, held_out = numbers("train"), numbers("eval")
    assert not train & held_out
    assert len(env.split("train")) == 7500 and len(train) > 6000 and len(held_out) > 700


def test_the_first_problems_are_fixed_for_ever():
    env = load_environment("gsm8k")
    assert [env.split(s).rows[0]["question"] for s in ("train", "eval")] == [
        "A museum ticket costs $10 for an adult and $2 less for a child. How many dollars do 5 adults and 5 children "
        "pay together?",
        "A bicycle costs $81. Ben saves $4 a week for 10 weeks and is given $9. How many dollars does Ben still need?",
    ]
    assert load_environment("gsm8k", seed=1).split("train")[0] != env.split("train")[0]


def test_the_hint_fits_the_mode_and_can_be_left_out(two_part, sparse):
    assert (
        two_part.example(**ROW)
        .prompt[0]["content"]
        .endswith("?\nThink step by step, and end with a line ANSWER: {number}")
    )
    assert "ANSWER" not in sparse.example(**ROW).prompt[0]["content"]
    bare = load_environment("gsm8k", format_hint=False, system_prompt="s")
    assert [message["content"] for message in bare.example(**ROW).prompt] == ["s", ROW["question"]]


def test_a_file_of_the_same_columns(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    rows = [ROW | {"question": f"{i}. {ROW['question']}"} for i in range(20)]
    path.write_text("\n".join(map(json.dumps, rows)))
    env = load_environment("gsm8k", dataset=str(path))
    assert (len(env.split("train")), len(env.split("eval"))) == (18, 2)
    assert not {e.id for e in env.split("train")} & {e.id for e in env.split("eval")}
    both = load_environment("gsm8k", dataset=str(path), eval_dataset=str(path))
    assert (len(both.split("train")), len(both.split("eval"))) == (20, 20)
    only = load_environment("gsm8k", eval_dataset=str(path))
    assert len(only.split("eval")) == 20
    with pytest.raises(UserError, match="has no train split; it has eval"):
        only.split("train")


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


@pytest.mark.parametrize(
    ("kwargs", "why"),
    [
        ({"mode": "dense"}, "mode is 'dense'; it must be 'two_part'"),
        ({"num_eval_examples": 0}, "num_eval_examples is 0; it must be at least 1"),
        ({"demo_noise": 4}, "demo_noise is 4"),
        ({"demo_noise": float("nan")}, "demo_noise is nan"),
        ({"seed": "x"}, "seed is 'x'; it must be a whole number"),
    ],
)
def test_bad_arguments(kwargs: dict, why: str):
    with pytest.raises(UserError, match=why):
        load_environment("gsm8k", **kwargs)
