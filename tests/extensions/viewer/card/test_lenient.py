"""Strict against lenient on every built-in task: right answers in other forms count, wrong ones never do."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
from samples_made import BARE, LOST, RIGHT, evaluation, make_run, row

from hone.environments import Environment, Rubric, SingleTurnEnv, TagParser, inline, load_environment
from hone.extensions.audit.answers import Kind, answer_of, wrong_answers
from hone.extensions.audit.probes import subject_of
from hone.extensions.viewer.card.facts import facts_of
from hone.extensions.viewer.card.lenient import AT_ONCE, candidates, read
from hone.extensions.viewer.card.measures import Evaluated
from hone.types import Outcome

TASKS = {
    "reverse-text": {},
    "char-count": {},
    "countdown": {},
    "scramble": {},
    "gsm8k": {},
    "gsm8k sparse": {"mode": "sparse"},
    "math-problems": {},
    "one-shot": {"task": "gsm8k"},
}
FORMS = {
    "plain": "{}",
    "boxed": r"I get \boxed{{{}}}.",
    "answer tag": "So it is <answer>{}</answer>",
    "own line": "Let me think.\nFinal answer:\n\n{}",
    "other tag": "<result>{}</result>",
    "stated": "The answer is {}",
    "bold": "The answer is **{}**.",
}
COUNT = 6


@pytest.fixture(scope="module", params=TASKS)
def env(request) -> Iterator[Environment]:
    """The task, its workers started once."""
    made = load_environment(request.param.split()[0], **TASKS[request.param])
    made.limits = replace(made.limits, timeout=1.0, workers=1)
    yield made
    made.close_workers()


def evaluated(env: Environment, texts: list[list[str]]) -> Evaluated:
    """The texts of each example of the task, graded."""
    pairs = [(i, j, env.split("eval")[i], text) for i, some in enumerate(texts) for j, text in enumerate(some)]
    scores = env.grade_many([(example, text) for _, _, example, text in pairs])
    rows = []
    for (i, j, example, text), score in zip(pairs, scores, strict=True):
        rows.append(
            row(i, j, text, str(score.outcome), score.reward)
            | {"prompt": example.prompt, "answer": example.answer, "info": example.info, "example_id": example.id}
        )
    return Evaluated(0, rows)


def read_texts(env: Environment, texts: dict[str, list[str]]) -> dict[str, list[bool]]:
    """Of each form whether its texts are right leniently: the texts of a form are of the first examples."""
    one = evaluated(env, [list(some) for some in zip(*texts.values(), strict=True)])
    reading = read(env, [one], seed=0, seconds=60)
    assert reading.why_not == "" and len(reading.examples) == len(one.by_example)
    right = {answer[:2] for answer in reading.found["0"] if answer.correct and answer.reward > 1.0 - 1e-9}
    right |= {(sample["example"], sample["rollout"]) for sample in one.rows if sample["outcome"] == "correct"}
    return {form: [(i, j) in right for i in one.by_example] for j, form in enumerate(texts)}


def subjects(env: Environment, count: int = COUNT):
    split = env.split("eval")
    return [subject_of(env, split[i]) for i in range(min(count, len(split)))]


def test_right_answers_are_right_and_wrong_ones_wrong_in_any_form(env):
    known = subjects(env)
    found = read_texts(env, {form: [text.format(answer_of(s)) for s in known] for form, text in FORMS.items()})
    assert all(right for results in found.values() for right in results), found
    wrong = [wrong_answers(subject, known, 1)[0] for subject in known]
    found = read_texts(env, {form: [text.format(answer) for answer in wrong] for form, text in FORMS.items()})
    assert not any(right for results in found.values() for right in results), found


def test_a_list_of_guesses_is_worth_no_more_than_its_last(env):
    """The right answer stands among others, and at no place of its own: it does not count."""
    known, texts = subjects(env), []
    for subject in known:
        first, last = wrong_answers(subject, known, 2)
        guesses = (first, answer_of(subject), last)
        texts.append("\n".join(f"<answer>{x}</answer> \\boxed{{{x}}} The answer is {x}" for x in guesses))
    assert not any(read_texts(env, {"guesses": texts})["guesses"])


@pytest.mark.parametrize(
    ("text", "kind", "like", "found"),
    [
        ("<answer>12 or 13</answer>", Kind.NUMBER, "12", {"end": "13"}),
        ("The answer is 3, 4 or 5", Kind.NUMBER, "3", {"end": "5"}),
        ("I get <answer>42", Kind.NUMBER, "7", {"tag": "42"}),
        ("42</answer> done", Kind.NUMBER, "7", {"tag": "42"}),
        (r"\boxed{1}, so $n$ is \boxed{\frac{1}{2}}", Kind.MATH, "x", {"box": r"\frac{1}{2}", "end": "n"}),
        ("2 + 2 = 4, so x = 5.", Kind.NUMBER, "7", {"statement": "5"}),
        ("3*4 = 12\n12+5", Kind.EXPRESSION, "1+2", {"end": "12+5"}),
        ("1+2\n3+4\n5+6", Kind.EXPRESSION, "1+2", {"end": "5+6"}),
        ("3*4+5 = 17", Kind.EXPRESSION, "1+2", {"end": "3*4+5"}),
        ("<think>the answer is 9</think>", Kind.NUMBER, "7", {}),
        ("<think>the answer is 9", Kind.NUMBER, "7", {}),
        ("The answer is the word **stop**.", Kind.WORD, "pots", {"end": "stop"}),
        ("the answer is stop or pots", Kind.WORD, "pots", {"end": "pots"}),
        ("The answer is (B)", Kind.WORD, "C", {"statement": "(B)"}),
        ("I say B, as it is a dog", Kind.WORD, "C", {"end": "B"}),
        ("<answer>A</answer>, or the answer is B. Or C", Kind.WORD, "D", {"tag": "A"}),
        ("The answer is yes.\nOr is it no", Kind.WORD, "no", {"statement": "yes"}),
        ("<b><i>4</i> and <i>5</i></b>", Kind.NUMBER, "7", {"tag": "5"}),
        ("<reversed_text>olleh", Kind.EXACT, "x", {"tag": "olleh"}),
        ("", Kind.NUMBER, "7", {}),
        ("x" * 5000, Kind.TEXT, "x", {}),
    ],
)  # fmt: skip
def test_where_an_answer_is_looked_for(text, kind, like, found):
    assert candidates(text, kind, like) == found


@pytest.mark.parametrize("piece", [
    "(", "1", "1+", "1 - (", " ", "<a>", "\\(", "$", "= ",
    "the answer is ", "\\boxed{", "**", "1-", "<think>", "<a1><b2>",
])  # fmt: skip
def test_no_text_takes_long_to_read(piece: str):
    """A pattern that goes over a text again and again would take minutes here, and this test not end."""
    text = piece * (200_000 // len(piece)) + "x"
    for kind in Kind:
        for like in ("7", "B", "2024-12-11", "word"):
            assert len(candidates(text, kind, like)) <= 4


PARSER = TagParser("answer")


@inline
def right(completion, answer, parser) -> float:
    return float(parser.parse_answer(completion) == answer)


def task(reference=None, rubric: Rubric | None = None) -> SingleTurnEnv:
    """A task of ten examples, whose reference is what the function makes of an example."""

    class Task(SingleTurnEnv):
        def reference(self, example):
            return reference(example) if reference else super().reference(example)

    rows = [{"question": f"q{i}", "answer": str(i)} for i in range(10)]
    return Task(rubric=rubric or Rubric([right]), parser=PARSER, eval_dataset=rows)


@pytest.mark.parametrize(
    ("env", "why"),
    [
        (task(lambda example: PARSER.wrap(example.answer)), ""),
        (task(lambda example: '```json\n{"a": 1}\n```'), "can't be"),
        (
            task(lambda example: f"<answer>{example.answer}</answer> <answer>0</answer>"),
            "doesn't tell right from wrong",
        ),
        (
            task(lambda example: PARSER.wrap(example.answer), Rubric([inline(lambda completion, answer: 1.0)])),
            "doesn't tell right from wrong",
        ),
        (task(), "declares no reference text"),
        (load_environment("calculator"), "several turns"),
    ],
)
def test_a_task_that_can_not_be_read_leniently_says_why(env, why):
    rows = [row(i, 0, f"The answer is {i}.", "unparsable", 0.0) | {"answer": str(i)} for i in range(10)]
    reading = read(env, [Evaluated(0, rows)], 0, 10.0)
    assert why in reading.why_not and bool(why) is bool(reading.why_not)
    assert [answer.correct for answer in reading.found.get("0", ())] == ([] if why else [True] * 10)


def test_what_is_not_read_in_time_is_left_out_by_chance_and_counted(tmp_path):
    """A clock that moves a second a look."""
    kinds = [BARE] * 200 + [RIGHT] * 20 + [LOST] * 80
    run = make_run(tmp_path / "run", {0: evaluation(kinds), 4: evaluation([RIGHT] * 300)})
    env = load_environment("char-count")

    def in_time(_, some):
        ticks = itertools.count()
        return read(env, some, 0, 15.0, clock=lambda: float(next(ticks)))

    card = facts_of(run, in_time)
    assert 20 < len(card.leniency.examples) < 200 and card.leniency.asked == 300
    assert max(card.leniency.examples) > 200, "in random order"
    assert any("of 300 examples, chosen at random, were read leniently" in line for line in card.caveats)
    assert facts_of(run, in_time).lenient == card.lenient
    ticks = itertools.count()
    hurried = read(env, card.evaluated, 0, 2.0, clock=lambda: float(next(ticks)))
    assert hurried.why_not == "grading takes too long for that"


def test_a_grader_that_hangs_is_left_alone_soon(monkeypatch):
    """Half of the texts hang: no more are graded after the first examples that are read together."""
    made = task(lambda example: PARSER.wrap(example.answer))
    grade_many = made.grade_many

    def hanging(pairs, seed):
        scores = zip(pairs, grade_many(pairs, seed), strict=True)
        return [
            replace(s, outcome=Outcome.GRADER_TIMEOUT, reward=math.nan) if "999" in text else s
            for (_, text), s in scores
        ]

    monkeypatch.setattr(made, "grade_many", hanging)
    rows = [row(i, 0, f"It is {i if i % 2 else 999}.", "unparsable", 0.0) | {"answer": str(i)} for i in range(10)]
    reading = read(made, [Evaluated(0, rows)], 0, 60.0)
    assert reading.why_not == "" and len(reading.examples) == AT_ONCE < reading.asked == 10
    assert reading.found["0"] and all(answer.example % 2 for answer in reading.found["0"])
