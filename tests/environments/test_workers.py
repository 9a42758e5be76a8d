"""Environments in worker processes: the same scores as in this one, and each completion at its own risk."""

from __future__ import annotations

import datetime
import json
import math
import os
from pathlib import Path

import pytest
from graders import gone

from hone.config.shared import GradingConfig
from hone.environments import Environment, Parser, Rubric, SingleTurnEnv, load_environment
from hone.grading import GraderFailure
from hone.types import Example, Outcome, Rollout

TASK = '''
import asyncio, json, os, sys, time
from hone.environments import MultiTurnEnv, Parser, Rubric, SingleTurnEnv


class Whole(Parser):
    def parse(self, text):
        return text


def die_first(times):
    """Ends this process by a signal, as if it were sent by the system, so many times."""
    seen = len([name for name in os.listdir() if name.startswith("died-")])
    if seen < times:
        open(f"died-{seen}", "x").close()
        os.kill(os.getpid(), 9)


def forge():
    """Makes this process answer what is in the file, one after another."""
    frame = sys._getframe()
    while "_answers" not in frame.f_globals:
        frame = frame.f_back
    answers = iter(json.loads(open("forged.json").read()))
    frame.f_globals["_answers"] = lambda *_: next(answers)


def harmed(text):
    if text == "exit":
        os._exit(0)
    if text.startswith("die "):
        die_first(int(text[4:]))
    if text == "forge":
        forge()


def graded(completion, answer, info, state, rng):
    """A number of all that it is given."""
    harmed(text := completion[-1]["content"])
    if text == "spin":
        while True:
            pass
    if text == "sleep":
        time.sleep(600)
    if text == "raise":
        raise RuntimeError("no grade")
    if text == "nothing":
        return None
    state["seen"] = len(text)
    return (text == answer) + 0.1 * rng.random() + len(info) + state["is_truncated"] / 3


def where(state):
    return os.getpid() * 0.0 + state["seen"]


async def judged(completion):
    harmed(text := completion[-1]["content"])
    if text == "wait":
        await asyncio.sleep(600)
    if text == "block":
        time.sleep(1.5)
    if text.startswith("soon"):
        await asyncio.sleep(0.5)
    return 1.0


def place(completion):
    return float(os.getpid())


class Chat(MultiTurnEnv):
    def env_response(self, messages, state):
        harmed(text := messages[-1]["content"])
        if text == "raise":
            raise RuntimeError("no answer")
        if text == "odd":
            state["set"] = {1}
        if text in ("text", "number"):
            return "go on" if text == "text" else 5
        if text == "keys":
            state["board"] = [{1: "x"}]
        state["turns"] = state.get("turns", 0) + 1
        messages.append("what this function adds is its own")
        return [{"role": "user", "content": f"{text} {state['turns']}"}]


KINDS = {"plain": [graded, where], "async": [judged], "where": [place]}


def load_environment(kind: str = "plain", chat: bool = False, **others):
    made = Chat if chat else SingleTurnEnv
    return made(rubric=Rubric(KINDS[kind]), parser=Whole(), dataset=[{"question": "q", "answer": "a"}])
'''


@pytest.fixture(autouse=True)
def _task(here: Path) -> None:
    (here / "graded_task.py").write_text(TASK)


def load(workers: int | None, timeout: float = 10.0, **kwargs) -> Environment:
    env = load_environment("graded-task", **kwargs)
    env.use_workers(GradingConfig(workers=workers, timeout=timeout))
    return env


def pairs(env: Environment, texts: list[str]) -> list[tuple[Example, Rollout]]:
    example = env.example(question="q", answer="a", info={"when": datetime.date(2026, 1, 2), "pair": (1, 2)})
    return [
        (
            example,
            Rollout(
                f"0-0-{i}",
                [*example.prompt, {"role": "assistant", "content": text}],
                "length" if i % 3 else "stop",
            ),
        )
        for i, text in enumerate(texts)
    ]


def grades(env: Environment, texts: list[str]) -> list:
    return env.grade_many(pairs(env, texts), seed=7)


def shown(scores) -> list:
    return [(repr(score.reward), score.components, score.weights, score.outcome, score.detail) for score in scores]


TEXTS = ["a", "b", "raise", "", "nothing", "½ \ud800", "long " * 20_000] * 5


def test_the_scores_are_those_of_one_process_whatever_the_number_of_workers():
    scores = {workers: shown(grades(load(workers), TEXTS)) for workers in (0, 1, 3)}
    assert scores[0] == scores[1] == scores[3]
    assert len({reward for reward, *_ in scores[0]}) > 10
    assert [list(components) for _, components, *_ in scores[0][:3]] == [["graded", "where"], ["graded", "where"], []]


GROUPED = """
import os, time


def shortest(completions, answer):
    "The length of a text beside the longest of its group; also what goes wrong with a whole group."
    if "exit" in completions:
        os._exit(0)
    if "spin" in completions:
        while True:
            pass
    if "raise" in completions:
        raise RuntimeError("no grade")
    if "slow" in completions:  # longer than one completion may take
        began = time.process_time()
        while time.process_time() - began < 0.8:
            pass
    if "few" in completions:
        return [0.5] * (len(completions) - 1)
    return ["text" if text == "bad" else len(text) / max(map(len, completions)) for text in completions]


def single(completion):
    if completion[-1]["content"] == "alone":
        raise RuntimeError("not this one")
    return 0.25
"""


def grouped(groups: list[list[str]], workers: int, early: bool = False) -> list:
    """Grade the texts group by group; `early`: each as if it had just been sampled, the last first."""
    Path("grouped.py").write_text(GROUPED)
    rows = [{"prompt": f"{i}?", "answer": "a"} for i in range(len(groups) + 1)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    env = load_environment("functions", rewards=["grouped.py:shortest", "grouped.py:single"], data="rows.jsonl")
    env.use_workers(GradingConfig(workers=workers, timeout=0.5))
    train = env.split("train")
    made = [
        (train[i], Rollout(f"0-{i}-{k}", [*train[i].prompt, {"role": "assistant", "content": text}], "stop"))
        for i, texts in enumerate(groups)
        for k, text in enumerate(texts)
    ]
    if not early:
        return env.grade_many(made, 7, [reply.sample_id.rpartition("-")[0] for _, reply in made])
    with env.early_grading(7, len(groups[0])) as grading:
        assert grading is not None
        for index, pair in reversed(list(enumerate(made))):
            grading.add(index, *pair)
        scores = grading.scores()
    return [scores[reply.sample_id] for _, reply in made]


def test_a_group_is_graded_in_one_call_in_its_own_order_whatever_ends_first():
    groups = [["a", "bbbb"], ["cc", "c"], ["bad", "cccc"], ["alone", "b"], ["few", "b"], ["raise", "b"]]
    scores = {(w, early): grouped(groups, w, early) for w, early in ((0, False), (2, False), (2, True))}
    assert shown(scores[0, False]) == shown(scores[2, False]) == shown(scores[2, True])
    values = [score.components.get("shortest") for score in scores[2, True]]
    assert values == [0.25, 1.0, 1.0, 0.5, None, 1.0, 1.0, 0.2, None, None, None, None]
    failed = [i for i, score in enumerate(scores[2, True]) if score.outcome.is_failure]
    assert failed == [4, 6, 8, 9, 10, 11]  # a value that is none, and what fails for one text, cost one alone
    few, raised = scores[2, True][8].detail, scores[2, True][10].detail
    assert "shortest returned a list of 1 for 2 completions: return a list with a number (or None) for each" in few
    assert raised.endswith("RuntimeError: no grade (shortest got the group of 2 completions in one call)")


def test_what_hangs_or_ends_costs_its_group_which_has_the_time_of_all_its_completions():
    groups = [["spin", "b"], ["b", "exit"], ["slow", "b"]]
    scores = grouped(groups, 2)
    assert [score.outcome for score in scores[:4]] == ["grader_timeout"] * 2 + ["grader_error"] * 2
    assert [score.components for score in scores[:4]] == [{"single": 0.25}] * 4
    assert [score.reward for score in scores[4:]] == [1.25, 0.5]
    group = "(shortest got the group of 2 completions in one call)"
    limits = "(grading.timeout allows 0.5 s of the processor, 3 s by the clock for each completion)"
    assert scores[0].detail == f"grading took 1 seconds of processor time {limits} {group}"
    assert scores[2].detail == f"the process that was grading ended with 0 {group}"
    assert shown(grouped(groups, 2, early=True)) == shown(scores)


def test_what_goes_wrong_costs_its_own_completion():
    env = load(2, timeout=0.5)
    texts = ["a", "exit", "b", "spin", "a", "raise", "sleep", "b"] * 2
    clean = grades(load(0), [text if text in ("a", "b", "raise") else "a" for text in texts])
    for text, score, right in zip(texts, grades(env, texts), clean, strict=True):
        if text in ("a", "b", "raise"):
            assert shown([score]) == shown([right])
    scores = grades(env, ["exit", "spin", "sleep"])
    assert [score.outcome for score in scores] == ["grader_error", "grader_timeout", "grader_timeout"]
    assert [score.detail for score in scores] == [
        "the process that was grading ended with 0",
        "grading took 0.5 seconds of processor time (grading.timeout allows 0.5 s of the processor, 3 s by the clock)",
        "grading took 3 seconds (grading.timeout allows 0.5 s of the processor, 3 s by the clock)",
    ]
    assert all(score.reward != score.reward and score.components == {} for score in scores)
    env.use_workers(GradingConfig(timeout=1.0), deterministic=False)  # the clock decides
    detail = "grading took 1 seconds (grading.timeout allows 1 s)"
    assert [score.detail for score in grades(env, ["spin", "sleep"])] == [detail] * 2


@pytest.mark.parametrize("workers", [0, 2])
def test_async_functions_wait_together_and_each_has_its_own_deadline(workers):
    scores = grades(load(workers, timeout=1.0, kind="async"), ["soon"] * 40 + ["wait", "soon"] * 10)
    assert [score.outcome for score in scores[:40]] == ["correct"] * 40
    assert [score.outcome for score in scores[40:]] == ["grader_timeout", "correct"] * 10
    assert scores[40].detail == "judged took 1 seconds"


def test_an_async_function_that_does_not_wait_harms_no_other():
    scores = grades(load(1, timeout=1.0, kind="async"), ["soon", "block", "soon", "soon"])
    assert [score.outcome for score in scores] == ["correct"] * 4


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_what_was_graded_by_a_process_that_was_killed_is_graded_again_and_only_the_guilty_fails(kind):
    right = shown(grades(load(0, kind=kind), ["a", "b", "die 0", "a"]))
    scores = grades(load(1, kind=kind), ["a", "b", "die 1", "a"])
    assert len(list(Path().glob("died-*"))) == 1 and not any(score.killed for score in scores)
    assert [one[:4] for one in shown(scores)] == [one[:4] for one in right]
    scores = grades(load(1, kind=kind), ["a", "b", "die 99", "a"])
    assert [(score.outcome.is_failure, score.killed) for score in scores] == [(i == 2, i == 2) for i in range(4)]


FAIR = {"components": {"graded": 1.0, "where": 0.0}, "answer": "'a'", "failure": None, "seconds": 0.0}
NO_COMPONENTS = ({"graded": "1"}, {"graded": True}, {"graded": math.inf}, {"graded": math.nan}, {"more": 1.0}, [1.0])
NO_FAILURES = (["correct", "", False], ["grader_error"], "no", [[], "", False])
FORGED = [[FAIR | {"components": components}] for components in NO_COMPONENTS]
FORGED += [[FAIR | {"failure": failure}] for failure in NO_FAILURES]
FORGED += [[FAIR | {"answer": 5}], [FAIR | {"seconds": "0"}], [{}], [], [FAIR, FAIR], [None], "no", 5, None]


def test_a_process_that_says_what_it_likes_gives_no_reward_but_a_sum_of_finite_components():
    more = FAIR | {"reward": 1e6, "outcome": "unparsable", "weights": {"graded": 1e6}}
    Path("forged.json").write_text(json.dumps([*FORGED, [more]]))
    _, *scores, last = grades(load(1), ["forge", *["b"] * len(FORGED), "b"])
    assert [score.outcome for score in scores] == [Outcome.GRADER_ERROR] * len(FORGED)
    assert (last.reward, last.outcome, last.weights) == (1.0, "correct", {"graded": 1.0, "where": 1.0})


def test_what_no_worker_can_load_runs_here():
    own = float(os.getpid())

    def place(env: Environment) -> float:
        return env.grade(env.example(question="q"), "x").reward

    other_parser, other_rubric = load(None, kind="where"), load(None, kind="where")
    other_parser.parser = Parser()
    other_rubric.rubric = Rubric([lambda completion: float(os.getpid())])
    assert place(load(None, kind="where")) != own
    for env in (load(0, kind="where"), load(None, kind="where", given=(1, 2)), other_parser, other_rubric):
        assert place(env) == own
    assert place(SingleTurnEnv(rubric=other_rubric.rubric)) == own


def test_conversations_are_answered_in_workers_too():
    def asked(*texts: str) -> list:
        return [([{"role": "assistant", "content": text}], {"turns": n}) for n, text in enumerate(texts)]

    turns = asked("a", "raise", "text", "odd", "keys", "die 1", "exit")
    there = load(1, chat=True).respond_many(turns)  # type: ignore[attr-defined]
    here = load(0, chat=True).respond_many(turns[:3])  # type: ignore[attr-defined]
    assert there[0] == here[0] == ([{"role": "user", "content": "a 1"}], {"turns": 1})
    for i, why in ((1, "RuntimeError: no answer"), (2, "'go on'; it must return a list of messages")):
        assert there[i].detail == here[i].detail and why in there[i].detail
    assert all("env_response or initial_state left what is no JSON" in there[i].detail for i in (3, 4))
    assert there[5][0][0]["content"] == "die 1 6", "a process that was killed: asked again"
    ended = "the process that was answering the model ended with 0"
    assert there[6] == GraderFailure(Outcome.GRADER_ERROR, ended, lost=True)
    assert turns[0] == ([{"role": "assistant", "content": "a"}], {"turns": 0})


def test_workers_are_started_ahead_and_end_with_the_environment():
    env = load(2)
    env.start_workers(100)
    assert env._workers is not None
    started = env._workers.pool.pids
    grades(env, ["a"])
    assert len(started) == 2 and env._workers.pool.pids == started
    env.close_workers()
    assert all(map(gone, started))
    fresh = load_environment("reverse-text")
    fresh.start_workers(100)
    assert fresh._workers is None, "nothing of it runs in workers"
