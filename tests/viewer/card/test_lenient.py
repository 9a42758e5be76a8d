"""Strict against lenient on every built-in task: right answers in other forms count, wrong ones never do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from hone.audit.answers import Kind, answer_of, wrong_answers
from hone.audit.probes import subject_of
from hone.audit.restyling import RESTYLINGS
from hone.environments import Environment, load_environment
from hone.types import Example, Score
from hone.viewer.card.candidates import candidates
from hone.viewer.card.evaluations import Evaluated
from hone.viewer.card.lenient import read

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


def row(example: Example, index: int, rollout: int, text: str, score: Score) -> dict:
    """A line of an evaluation's samples."""
    return {
        "example": index,
        "rollout": rollout,
        "example_id": example.id,
        "prompt": example.prompt,
        "completion": [{"role": "assistant", "content": text}],
        "answer": example.answer,
        "info": example.info,
        "reward": score.reward,
        "components": score.components,
        "outcome": str(score.outcome),
        "detail": score.detail,
        "stop_reason": "stop",
    }


def read_texts(env: Environment, texts: dict[str, list[str]]):
    """Of each form whether its texts are right leniently, and what they are worth: the completions of example i are the
    i-th text of each form.
    """
    forms = list(texts)
    examples = env.split("eval")
    asked = [(i, forms.index(form), text) for form in forms for i, text in enumerate(texts[form])]
    scores = env.grade_many([(examples[i], text) for i, _, text in asked])
    rows = [row(examples[i], i, rollout, text, score) for (i, rollout, text), score in zip(asked, scores, strict=True)]
    one = Evaluated(0, rows)
    reading = read(env, [one], seed=0, seconds=60)
    assert reading.why_not == "" and len(reading.examples) == len(texts[forms[0]])
    found, right = reading.found["0"], {}
    for one_row in rows:
        place = (one_row["example"], one_row["rollout"])
        hit = one_row["outcome"] == "correct" or (place in found and found[place].correct)
        worth = max(one_row["reward"], found[place].reward if place in found else 0.0)
        right.setdefault(forms[one_row["rollout"]], []).append((hit, worth))
    return right


def subjects(env: Environment, count: int = COUNT):
    split = env.split("eval")
    return [subject_of(env, split[i]) for i in range(min(count, len(split)))]


def test_right_answers_in_any_form_are_right_leniently(env):
    known = subjects(env)
    found = read_texts(env, {form: [text.format(answer_of(s)) for s in known] for form, text in FORMS.items()})
    for form, results in found.items():
        assert all(right for right, _ in results), (form, results)
        assert all(worth >= 1.0 - 1e-9 for _, worth in results), (form, results)


def test_wrong_answers_are_wrong_in_any_form(env):
    known = subjects(env)
    wrong = [wrong_answers(subject, known, 1)[0] for subject in known]
    found = read_texts(env, {form: [text.format(answer) for answer in wrong] for form, text in FORMS.items()})
    assert not any(right for results in found.values() for right, _ in results), found


def test_a_list_of_guesses_is_worth_no_more_than_its_last(env):
    """The right answer stands among others, and at no place of its own: it does not count."""
    known, texts = subjects(env), []
    for subject in known:
        first, last = wrong_answers(subject, known, 2)
        guesses = (first, answer_of(subject), last)
        texts.append("\n".join(f"<answer>{x}</answer> \\boxed{{{x}}} The answer is {x}" for x in guesses))
    found = read_texts(env, {"guesses": texts})
    assert not any(right for right, _ in found["guesses"]), found


def test_references_in_the_styles_of_the_audit_are_found(env):
    """Nearly every style: some write the answer so that no one reads it as such (`4 units`)."""
    subject = subjects(env, 1)[0]
    styled = {style.name: style.apply(subject, env) for style in RESTYLINGS if not style.growth}
    texts = {name: [text] for name, text in styled.items() if text is not None}
    found = read_texts(env, texts)
    missed = {name: texts[name] for name, results in found.items() if not results[0][0]}
    assert len(texts) > 20 and len(missed) <= 0.1 * len(texts), missed


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
        ("The answer is the word **stop**.", Kind.WORD, "pots", {"statement": "stop"}),
        ("the answer is stop or pots", Kind.WORD, "pots", {"end": "pots"}),
        ("The answer is (B)", Kind.WORD, "C", {"statement": "(B)"}),
        ("I say B, as it is a dog", Kind.WORD, "C", {"end": "B"}),
        ("<answer>A</answer>, or the answer is B. Or C", Kind.WORD, "D", {"tag": "A"}),
        ("The answer is yes. Or no", Kind.WORD, "no", {"statement": "yes"}),
        ("<b><i>4</i> and <i>5</i></b>", Kind.NUMBER, "7", {"end": "5"}),
        ("<reversed_text>olleh", Kind.EXACT, "x", {"tag": "olleh"}),
        ("", Kind.NUMBER, "7", {}),
        ("x" * 5000, Kind.TEXT, "x", {}),
    ],
)  # fmt: skip
def test_where_an_answer_is_looked_for(text, kind, like, found):
    assert candidates(text, kind, like) == found


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize(
    "text",
    [
        "(" * 200_000,
        "1" * 200_000,
        "1+" * 100_000,
        "1 - (" * 40_000,
        " " * 200_000 + "x",
        "".join(f"<a{i}>" for i in range(25_000)),
        "<a>" * 60_000,
        "\\(" * 100_000,
        "$" * 200_000,
        "= " * 100_000,
        "the answer is " * 15_000,
        "\\boxed{" * 25_000,
        "**" * 100_000,
        "1-" * 100_000,
        "<think>" * 30_000,
    ],
    ids=lambda text: repr(text[:8]),
)
def test_no_text_takes_long_to_read(text: str, kind: Kind):
    """A pattern that goes over a text again and again would take minutes here, and this test not end."""
    for like in ("7", "B", "2024-12-11", "word"):
        assert len(candidates(text, kind, like)) <= 4


def test_a_slow_grader_is_asked_no_more_than_there_is_time_for():
    """Each text takes 0.2 s: of 60 examples as many are read as 10 seconds allow, with those of the trial."""
    made = load_environment("char-count")
    now, graded = [0.0], []
    grade_many = made.grade_many

    def slowly(pairs, seed=0):
        now[0] += 0.2 * len(pairs)
        graded.extend(pairs)
        return grade_many(pairs, seed)

    examples = made.split("eval")
    rows = [row(examples[i], i, 0, f"The answer is {i}", made.grade(examples[i], "")) for i in range(60)]
    made.grade_many = slowly
    reading = read(made, [Evaluated(0, rows)], seed=0, seconds=10.0, clock=lambda: now[0])
    assert reading.why_not == "" and len(reading.examples) == len(graded) - 32 < 60
    assert 8.0 < now[0] <= 10.0
    now[0], many = 0.0, len(graded)
    reading = read(made, [Evaluated(0, rows)], seed=0, seconds=2.0, clock=lambda: now[0])
    assert reading.why_not == "grading takes 0.2 s for each text, too long for that" and len(graded) == many + 4
    made.close_workers()
