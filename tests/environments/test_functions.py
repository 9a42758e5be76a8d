"""The task of reward functions and rows: parameter names, TRL's form, what is kept of functions."""

from __future__ import annotations

import functools
import inspect
import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import datasets
import numpy as np
import pandas
import pytest
from rollouts_made import rollout_of

from hone import trust
from hone.client import Endpoint
from hone.config.parse import parse
from hone.config.rl import RLConfig
from hone.config.shared import GradingConfig
from hone.environments import load_environment
from hone.environments.functions import given_task, place_of
from hone.environments.kept_source import standalone_source
from hone.errors import UserError
from hone.evaluation.remote import evaluate_url
from hone.types import Outcome, Rollout

ROOT = Path(__file__).parents[2]
ROWS = [{"prompt": f"{i} + 1", "answer": str(i + 1), "level": i} for i in range(20)]


def task(funcs, rows=ROWS, **more):
    return given_task(Path("out"), {}, rows, None, funcs, **more).load()


def printed(source: str, **variables: str) -> str:
    """What a program of this source prints."""
    Path("program.py").write_text(source)
    words, env = [sys.executable, "program.py"], os.environ | variables
    return subprocess.run(words, capture_output=True, text=True, check=True, env=env).stdout


def components(env, text="6", row=0):
    return env.grade(env.split("train")[row], text).components


def test_functions_get_what_they_name():
    seen = {}

    def ours(completion, answer, info, level, bonus=2):
        seen["ours"] = completion, answer, info, level, bonus
        return 1.0

    async def theirs(prompts, completions, level, answer):
        seen["theirs"] = prompts, completions, level, answer
        return [0.5]

    def everything(completions, **columns):
        seen["everything"] = completions, columns
        return (None,)

    env = task([ours, theirs, everything])
    example = env.split("train")[3]
    row = next(row for row in ROWS if row["prompt"] == example.prompt[0]["content"])
    assert components(env, "6", 3) == {"ours": 1.0, "theirs": 0.5}
    text = [{"role": "assistant", "content": "6"}]
    assert seen["ours"][:2] == (text, row["answer"]) and seen["ours"][3:] == (row["level"], 2)
    assert seen["ours"][2]["level"] == row["level"]
    assert seen["theirs"] == ([row["prompt"]], ["6"], [row["level"]], [row["answer"]])
    columns = {"prompts": [row["prompt"]], "level": [row["level"]], "answer": [row["answer"]]}
    assert seen["everything"] == (["6"], columns)


def test_functions_get_messages_where_prompts_are_messages_answers_as_they_are_and_every_column():
    """Also `question`, `info`, one that is null, and those that a row's own info has."""
    seen = []

    def theirs(completions, prompts, answer):
        seen.append((completions, prompts, answer))
        return [1]

    env = task([theirs], [{"prompt": [{"role": "user", "content": f"{i}?"}], "answer": i} for i in range(3)])
    assert components(env, "6") == {"theirs": 1.0}
    prompt, answer = env.split("train")[0].prompt, int(env.split("train")[0].answer)
    assert seen == [([[{"role": "assistant", "content": "6"}]], [prompt], [answer])]

    def ours(completion, question, answer, solution):
        return float((question, answer, solution) == ("2?", 2, None))

    def batched(completions, question, info, solution):
        return [float((question, info[0]["more"], solution) == (["2?"], 5, [None]))]

    rows = [{"question": "2?", "answer": 2, "solution": None, "info": {"more": 5}, "id": i} for i in range(2)]
    env = task([ours, batched], rows)
    assert env.grade(env.example(**rows[0]), "6").components == {"ours": 1.0, "batched": 1.0}


@pytest.mark.parametrize(
    "value, got",
    [
        *((0.5, "0.5"), ([0.5] * 3, "a list of 3"), ([], "a list of 0"), ("0.5", "'0.5'")),
        *((None, "None"), (np.ones(1), "a list of 1")),
    ],
)
def test_a_function_of_completions_must_return_a_list_of_as_many(value, got):
    def theirs(completions):
        return value

    def ours(completion):
        return 1.0

    env = task([theirs, ours])
    first, second = env.split("train")[0], env.split("train")[1]
    scores = env.grade_many([(first, "6"), (first, "7"), (second, "8")], 0, ["a", "a", "b"])
    detail = (
        f"theirs returned {got} for 2 completions: return a list with a number (or None) for each "
        "(theirs got the group of 2 completions in one call)"
    )
    assert [score.detail for score in scores[:2]] == [detail] * 2
    assert [str(score.outcome) for score in scores[:2]] == ["grader_error"] * 2
    assert [score.components for score in scores[:2]] == [{"ours": 1.0}] * 2
    assert scores[2].outcome.is_failure == (got != "a list of 1")


def test_a_group_is_given_in_one_call_with_its_columns_repeated():
    """Without rollouts that failed; the others of the group have their values, also where one has none."""
    calls = []

    def shortest(completions, prompts, answer, level, **columns):
        calls.append((completions, prompts, answer, level, columns))
        lengths = [len(text) for text in completions]
        low, high = min(lengths), max(lengths)
        return [None if n == 4 else math.nan if n == 3 else (high - n) / (high - low or 1) for n in lengths]

    async def rank(completions):
        return [sorted(completions, reverse=True).index(text) for text in completions]

    env = task([shortest, rank])
    one, two = env.split("train")[0], env.split("train")[1]

    def reply(example, text, **more):
        return Rollout(text, [*example.prompt, {"role": "assistant", "content": text}], "stop", **more)

    texts = ["b", "a", "1234567", "123", "1234", "12345"]
    made = [(one, reply(one, texts[0])), (two, reply(two, texts[1])), *((one, reply(one, t)) for t in texts[2:])]
    made.append((one, reply(one, "lost", failure=(Outcome.GRADER_ERROR, "the environment broke off"))))
    scores = env.grade_many(made, 0, [example.id for example, _ in made])
    (mine, prompts, answer, level, columns), other = calls
    assert mine == ["b", "1234567", "123", "1234", "12345"] and other[0] == ["a"] and columns == {}
    assert (prompts, answer) == ([one.prompt[0]["content"]] * 5, [one.answer] * 5)
    assert level == [one.info["level"]] * 5
    expected = [{"shortest": 1.0, "rank": 0}, {"shortest": 0.0, "rank": 0}, {"shortest": 0.0, "rank": 1}]
    expected += [{"rank": 4}, {"rank": 3}, {"shortest": 2 / 6, "rank": 2}, {}]
    assert [score.components for score in scores] == expected
    assert scores[3].detail == "shortest returned nan, which is not a finite number"
    assert [i for i, score in enumerate(scores) if score.outcome.is_failure] == [3, 6]


def test_sampled_tokens_are_offered_and_texts_without_them_are_refused():
    def by_ids(completion_ids, **columns):
        return [float(len(ids)) for ids in completion_ids]

    def perhaps(completions, completion_ids=None):
        return [float(completion_ids is None)] * len(completions)

    env = task([by_ids, perhaps])
    example = env.split("train")[0]
    messages = [*example.prompt, {"role": "assistant", "content": "6"}]
    mask, zeros = np.array([False, True, True]), np.zeros(3, np.float32)
    sampled = rollout_of(np.array([7, 8, 9]), mask, zeros, np.array([-1, 0, 0], np.int32), messages, "stop", "0")
    recorded = Rollout("1", messages, "stop", completion_ids=[8, 9, 10])
    scores = env.grade_many([(example, sampled), (example, recorded)], 0, [0, 0])
    assert [score.components for score in scores] == [{"by_ids": 2.0, "perhaps": 0.0}, {"by_ids": 3.0, "perhaps": 0.0}]
    words = "by_ids takes completion_ids, the tokens of a sampled completion, but here are only texts"
    with pytest.raises(UserError, match=words):
        env.grade(example, "6")
    few = {"num_examples": 1, "rollouts_per_example": 1, "body": {}, "seed": 0}
    with pytest.raises(UserError, match=words):  # before it asks
        evaluate_url(Endpoint("http://127.0.0.1:9"), "model", env, **few)
    assert components(task([perhaps])) == {"perhaps": 1.0}


def test_what_only_a_trainer_of_trl_has_is_refused_unless_it_may_be_missing():
    def by_state(completions, trainer_state):
        return [1.0] * len(completions)

    def by_one(completion, completion_ids):
        return 1.0

    def fine(completions, trainer_state=None, **columns):
        return [float(trainer_state is None and "trainer_state" not in columns)] * len(completions)

    assert components(task([fine])) == {"fine": 1.0}
    words = "by_state has a parameter 'trainer_state', .* it offers completions, prompts, completion_ids, info and the"
    with pytest.raises(UserError, match=words):
        task([by_state])
    with pytest.raises(UserError, match=r"by_one has a parameter 'completion_ids', .* it offers completion, answer"):
        task([by_one])


FACTOR = 3.0


def scaled(completion, scale, of=1.0):
    return len(completion[-1]["content"]) * scale * of


@dataclass(frozen=True)
class Judge:
    bonus: float
    table: dict

    async def __call__(self, completion):
        return self.bonus * FACTOR

    def ranked(self, completions):
        return [self.table[text] for text in completions]


def test_partials_objects_and_bound_methods_are_rewards_and_kept(here, monkeypatch):
    judge = Judge(2.0, {"66": 0.5})
    funcs = [functools.partial(scaled, scale=2.0), judge, judge.ranked, functools.partial(judge.ranked)]
    env = task(funcs[:3])
    assert components(env, "66") == {"scaled": 4.0, "Judge": 6.0, "ranked": 0.5}
    assert place_of(funcs[0]) is place_of(judge) is None
    monkeypatch.setattr(sys.modules[__name__], "a_judge", judge, raising=False)
    assert place_of(judge) == f"{__name__}:a_judge"
    monkeypatch.delattr(sys.modules[__name__], "a_judge")
    text = printed(
        "import functools, json\nfrom dataclasses import dataclass\nfrom pathlib import Path\n"
        "from hone.environments.functions import given_task\n"
        f"FACTOR = 3.0\n{inspect.getsource(scaled)}\n{inspect.getsource(Judge)}\n"
        "judge = Judge(2.0, {'66': 0.5})\n"
        "funcs = [functools.partial(scaled, scale=2.0), judge, Judge(1.0, {'66': 5}).ranked]\n"
        "given = given_task(Path('out'), {}, [{'prompt': 'a'}, {'prompt': 'b'}], None, funcs)\n"
        "Path('out').mkdir()\n"
        "for name, text in given.files.items():\n    (Path('out') / name).write_text(text)\n"
        "print(json.dumps([given.args, given.graded_here, given.import_problem]))\n"
    )
    args, graded_here, import_problem = json.loads(text)
    assert (graded_here, import_problem) == (["scaled", "Judge", "ranked"], "")
    assert args["rewards"] == [f"out/rewards.py:reward_{name}" for name in graded_here]
    env = load_environment("functions", **args)
    env.use_workers(GradingConfig(workers=1))
    assert components(env, "66") == {"scaled": 4.0, "Judge": 6.0, "ranked": 5.0}
    assert env.has_workers and "judge = Judge.__new__(Judge)" not in (here / "out/rewards.py").read_text()
    env.close_workers()


def test_tables_and_numbers_of_numpy():
    def graded(completions, level):
        return np.array([float(level[0] == 5)])

    table = pandas.DataFrame({"prompt": ["a", "b"], "level": [5, 5]})
    assert components(task([graded], table)) == {"graded": 1.0}
    assert components(task([graded], datasets.Dataset.from_pandas(table))) == {"graded": 1.0}
    assert components(task([graded], [{"prompt": c, "level": np.int64(5)} for c in "ab"])) == {"graded": 1.0}


def test_the_flags_stand_for_the_task(here):
    def env(*words):
        found = parse(RLConfig, list(words), "rl").orchestrator.env
        return found.id, found.args

    data = ["--reward", "a:b", "c:d", "--data", "p.jsonl"]
    args = {"rewards": ["a:b", "c:d"], "data": "p.jsonl"}
    tiny = ["@", str(ROOT / "examples/reverse_text/tiny.toml")]
    assert env(*data) == env(*tiny, *data) == ("functions", args)
    weights = ["--orchestrator.env.args.weights", "[1, 0.5]"]
    assert env(*tiny, *data, *weights) == ("functions", args | {"weights": [1, 0.5]})
    with pytest.raises(UserError, match="the task is set twice: leave out"):
        env(*data, "--orchestrator.env.id", "gsm8k")
    Path("task.toml").write_text('reward = "a:b"\ndata = "p.jsonl"\n')
    assert env("@", "task.toml") == ("functions", {"rewards": ["a:b"], "data": "p.jsonl"})
    assert env("@", "task.toml", "--orchestrator.env.id", "gsm8k") == ("gsm8k", {})  # a flag goes before a file
    for given, why in (
        ({"data": "p.jsonl"}, "nothing is rewarded: add"),
        ({"rewards": "a:b"}, "say which with --data"),
    ):
        with pytest.raises(UserError, match=why):
            load_environment("functions", **given)


@pytest.mark.parametrize("env_id", ["functions", "one-shot", "one_shot"])
@pytest.mark.parametrize("named", [{"rewards": ["os:system"]}, {"agent": "os:system"}, {"agent_command": "true"}])
def test_what_a_run_names_is_not_called_unless_it_is_trusted(env_id, named):
    args = named | {"data": "p.jsonl"}
    args = args if env_id == "functions" else {"task": "functions", "args": args}
    with trust.opened_run(Path("run"), {}, False), pytest.raises(UserError, match="pass --trust-local-task"):
        load_environment(env_id, **args)


def test_the_text_is_the_same_in_every_process(here):
    source = (
        "seen, counted, table, words = [], {'b': 1}, {'x', 'y', 'z'}, ('p',)\n"
        "def f(completion):\n"
        "    seen.append(1)\n    counted['a'] = 2\n    table.add('w')\n"
        "    return float(len(words))\n"
        "from hone.environments.kept_source import standalone_source\nprint(standalone_source([f]))"
    )
    texts = {printed(source, PYTHONHASHSEED=seed) for seed in "12"}
    assert len(texts) == 1 and "table = set([" in texts.pop()


def test_an_answer_is_read_by_name_or_among_all_columns():
    def by_name(completions, answer):
        return [float(text == right) for text, right in zip(completions, answer, strict=True)]

    def among_all(completions, **columns):
        return [float(text == right) for text, right in zip(completions, columns["answer"], strict=True)]

    def of_none(completions, **columns):
        return [float("<answer>" in text) for text in completions]

    assert [task([func]).reads_answer for func in (by_name, among_all, of_none)] == [True, True, False]


LENGTH = 3
STREAM = open(__file__)  # noqa: SIM115
UNUSED = STREAM


def reads(completion):
    return float(len(STREAM.name) + LENGTH)


def shadows(completion):
    UNUSED = 1.0
    return UNUSED


def test_what_can_not_be_written_down_is_told_and_what_is_not_used_does_not_matter():
    text, why = standalone_source([reads])
    problem = "STREAM is a TextIOWrapper, which has no source: make it inside a function, or put the "
    problem += "reward function into a module"
    with pytest.raises(ImportError, match="only the program that began the run can go on with it: STREAM is a"):
        exec(text, {})
    assert why == problem and f"# {problem}\n" in text and "LENGTH = 3\n" in text and "def reads" in text
    assert standalone_source([shadows])[1] == ""
    names: dict = {}
    exec("def typed(completion):\n    return 1.0", {"__name__": __name__}, names)
    assert standalone_source([names["typed"]])[1] == "there is no source of typed"  # as of one typed into a console
