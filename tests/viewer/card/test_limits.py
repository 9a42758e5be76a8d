"""What can't be read leniently says why; what takes too long is left out and counted."""

from __future__ import annotations

import itertools
import json

import pytest
from samples_made import BARE, LOST, RIGHT, evaluation, make_run

from hone.config.shared import GradingConfig
from hone.environments import Rubric, SingleTurnEnv, TagParser, inline, load_environment
from hone.viewer.card.evaluations import Evaluated
from hone.viewer.card.facts import facts_of
from hone.viewer.card.lenient import HUNG, read, read_recorded

PARSER = TagParser("answer")
HANGING = """
import time
from hone.environments import Rubric, SingleTurnEnv, TagParser

PARSER = TagParser("answer")


def load_environment():
    rows = [{"question": f"q{i}", "answer": str(i)} for i in range(400)]
    return Hanging(rubric=Rubric([right]), parser=PARSER, dataset=rows, eval_dataset=rows)


class Hanging(SingleTurnEnv):
    def reference(self, example):
        return PARSER.wrap(example.answer)


def right(completion, answer, parser) -> float:
    given = parser.parse_answer(completion)
    while given == "999":
        pass
    return float(given == answer)
"""


@inline
def right(completion, answer, parser) -> float:
    return float(parser.parse_answer(completion) == answer)


def task(reference, rubric: Rubric | None = None) -> SingleTurnEnv:
    """A task of ten examples, whose reference is what the function makes of an example."""

    class Task(SingleTurnEnv):
        def reference(self, example):
            return reference(example)

    rows = [{"question": f"q{i}", "answer": str(i)} for i in range(10)]
    return Task(rubric=rubric or Rubric([right]), parser=PARSER, eval_dataset=rows)


def evaluated(env, text: str = "The answer is {}.") -> Evaluated:
    """Each example of the task with its answer in the task's own words, which are not the right form."""
    rows = []
    for i, example in enumerate(env.split("eval")):
        one = evaluation([(text.format(example.answer), "unparsable", 0.0)])[0]
        rows.append(one | {"example": i, "prompt": example.prompt, "answer": example.answer, "example_id": example.id})
    return Evaluated(0, rows)


def test_a_plain_task_is_read():
    env = task(lambda example: PARSER.wrap(example.answer))
    reading = read(env, [evaluated(env)], 0, 10.0)
    assert len(reading.examples) == 10 and all(one.correct for one in reading.found["0"].values())
    assert len(reading.found["0"]) == 10


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        (lambda example: "```json\n{\"a\": 1}\n```", "can't be"),
        (lambda example: f"<answer>{example.answer}</answer> <answer>0</answer>", "can't be told apart"),
    ],
)  # fmt: skip
def test_a_reference_that_is_no_form_for_answers_is_refused(reference, why):
    env = task(reference)
    assert why in read(env, [evaluated(env)], 0, 10.0).why_not


def test_a_task_that_takes_any_answer_is_refused():
    env = task(lambda example: PARSER.wrap(example.answer), Rubric([inline(lambda completion, answer: 1.0)]))
    assert "calls wrong answers" in read(env, [evaluated(env)], 0, 10.0).why_not


def test_a_task_without_a_reference_and_one_of_several_turns_are_refused():
    env = load_environment("calculator")
    assert "several turns" in read(env, [evaluated(env)], 0, 10.0).why_not
    plain = SingleTurnEnv(rubric=Rubric([right]), parser=PARSER, eval_dataset=[{"question": "q", "answer": "1"}])
    assert "declares no reference" in read(plain, [evaluated(plain)], 0, 10.0).why_not


def test_what_is_not_read_in_time_is_left_out_by_chance_and_counted(tmp_path):
    """A clock that moves a second a look: the first batch of about 32 texts ends when the time is over."""
    kinds = [BARE] * 200 + [RIGHT] * 20 + [LOST] * 80
    run = make_run(tmp_path / "run", {0: evaluation(kinds), 4: evaluation([RIGHT] * 300)})
    env = load_environment("char-count")

    def in_time(_, some):
        ticks = itertools.count()
        return read(env, some, 0, 150.0, clock=lambda: float(next(ticks)))

    card = facts_of(run, in_time)
    assert 20 < len(card.leniency.examples) < 200 and card.leniency.asked == 300
    assert max(card.leniency.examples) > 200, "in random order"
    assert card.gains["strict"].count == len(card.leniency.examples)
    assert any("of 300 examples, chosen at random, were read leniently" in line for line in card.caveats)
    assert f"(of {card.gains['strict'].count} examples)" in card.verdict[2]
    again = facts_of(run, in_time)
    assert again.gains == card.gains


def test_a_grader_that_hangs_is_left_alone_soon(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hanging_task.py").write_text(HANGING)
    env = load_environment("hanging-task")
    env.use_workers(GradingConfig(workers=1))
    try:
        reading = read(env, [evaluated(env, "The answer is 999.")], 0, 60.0)
    finally:
        env.close_workers()
    assert reading.why_not == "" and HUNG <= len(reading.examples) < 100 and reading.asked == 400


def test_a_task_that_is_not_there_is_said(tmp_path):
    run = make_run(tmp_path / "run", {0: evaluation([BARE] * 5)})
    (run / "config.toml").write_text((run / "config.toml").read_text().replace("char-count", "no-such-task"))
    card = facts_of(run, lambda one, some: read_recorded(one, some, GradingConfig(), 10.0))
    assert card.leniency.why_not.startswith("the task can't be had (") and not card.gains


def test_a_task_file_here_that_is_not_the_runs_is_not_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = make_run(tmp_path / "run", {0: evaluation([BARE] * 5)})
    (run / "config.toml").write_text((run / "config.toml").read_text().replace("char-count", "trap-task"))
    info = json.loads((run / "run.json").read_text()) | {"sources": {"environment": "0" * 64}}
    (run / "run.json").write_text(json.dumps(info))
    (tmp_path / "trap_task.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')")
    card = facts_of(run, lambda one, some: read_recorded(one, some, GradingConfig(), 10.0))
    assert "--trust-local-task" in card.leniency.why_not
    assert not (tmp_path / "executed").exists()
