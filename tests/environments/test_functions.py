"""The task of reward functions and rows: parameter names, TRL's form, what is kept of functions."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import datasets
import numpy as np
import pandas
import pytest

from hone import trust
from hone.config.parse import parse
from hone.config.rl import RLConfig
from hone.environments import load_environment
from hone.environments.functions import given_task
from hone.environments.kept_source import kept_source
from hone.errors import UserError

ROOT = Path(__file__).parents[2]
ROWS = [{"prompt": f"{i} + 1", "answer": str(i + 1), "level": i} for i in range(20)]


def task(funcs, rows=ROWS, **more):
    return given_task(Path("out"), {}, rows, None, funcs, **more).load()


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


@pytest.mark.parametrize("value", [0.5, [0.5, 0.5], [], "0.5", None, np.ones(2)])
def test_a_function_of_completions_must_return_a_list_of_one(value):
    def theirs(completions):
        return value

    env = task([theirs])
    score = env.grade(env.split("train")[0], "6")
    assert str(score.outcome) == "grader_error" and "must return a list with a number (or None)" in score.detail


def test_tables_and_numbers_of_numpy():
    def graded(completions, level):
        return np.array([float(level[0] == 5)])

    table = pandas.DataFrame({"prompt": ["a", "b"], "level": [5, 5]})
    assert components(task([graded], table)) == {"graded": 1.0}
    assert components(task([graded], datasets.Dataset.from_pandas(table))) == {"graded": 1.0}
    assert components(task([graded], [{"prompt": c, "level": np.int64(5)} for c in "ab"])) == {"graded": 1.0}


def test_weights_and_correctness():
    def first(completion):
        return 0.5

    def second(completion, answer):
        return float(completion[-1]["content"] == answer)

    env = task([first, second], reward_weights=[0.1, 2], correct=second)
    example = env.split("train")[0]
    assert env.rubric.correctness == "second"
    assert env.grade(example, example.answer).reward == pytest.approx(0.05 + 2)
    assert [str(env.grade(example, text).outcome) for text in (example.answer, "no")] == ["correct", "wrong"]
    assert task([first, second]).rubric.correctness == "first"


def test_a_tenth_of_the_prompts_is_held_out_and_rows_are_those_of_their_file(here):
    def any_text(completion):
        return 1.0

    given = given_task(Path("out"), {}, ROWS * 2, None, [any_text])
    env = given.load()
    train, held_out = ({e.prompt[0]["content"] for e in env.split(name)} for name in ("train", "eval"))
    assert len(held_out) == 2 and not train & held_out and len(train | held_out) == 20
    (here / "rewards.py").write_text("def any_text(completion):\n    return 1.0\n")
    (here / "data.jsonl").write_text(given.files["data.jsonl"])
    again = load_environment("functions", rewards="rewards:any_text", data="data.jsonl")
    for name in ("train", "eval"):
        assert [e.id for e in again.split(name)] == [e.id for e in env.split(name)]


def test_functions_of_a_file_run_in_workers_and_may_import_what_lies_beside_it(here):
    (here / "sub").mkdir()
    (here / "sub" / "graders.py").write_text(
        "import os\nimport helping\n\ndef graded(completion):\n    return float(helping.parent == os.getpid())\n"
    )
    (here / "sub" / "helping.py").write_text(f"parent = {os.getpid()}\n")
    (here / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    env = load_environment("functions", rewards=["sub/graders.py:graded"], data="rows.jsonl")
    assert components(env) == {"graded": 0.0}
    (here / "sub" / "helping.py").write_text("parent = 0\n")
    again = load_environment("functions", rewards="sub/graders.py:graded", data="rows.jsonl")
    assert again.digests([]) != env.digests([])


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
    with pytest.raises(UserError, match="leave out one"):
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


SCALE = {"b": 2, "a": math.inf}
NAMES = {"y", "x"}


class Parser:
    known = NAMES

    def find(self, text):
        return [SCALE.get(name, 1) for name in self.known if name in text]


def deep(completion, answer: str = "") -> float:
    return sum([len(Parser().find(text)) + math.pi for text in [completion]])


def test_what_a_function_uses_is_written_down_before_it():
    text, why = kept_source([deep])
    assert why == ""
    names: dict = {}
    exec(text, names)
    assert names["deep"]("x") == deep("x") and names["SCALE"] == SCALE and names["NAMES"] == NAMES
    assert "NAMES = set(['x', 'y'])" in text  # the same in every process
    assert "from __future__ import annotations" in text and text.index("class Parser") < text.index("def deep")


def test_the_text_is_the_same_in_every_process(here):
    (here / "script.py").write_text(
        "seen, counted, table, words = [], {'b': 1}, {'x', 'y', 'z'}, ('p',)\n"
        "def f(completion):\n"
        "    seen.append(1)\n    counted['a'] = 2\n    table.add('w')\n"
        "    return float(len(words))\n"
        "from hone.environments.kept_source import kept_source\nprint(kept_source([f]))"
    )
    texts = {
        subprocess.run(
            [sys.executable, "script.py"], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in "12"
    }
    assert len(texts) == 1 and b"table = set([" in texts.pop()


LENGTH = 3
STREAM = open(__file__)  # noqa: SIM115
UNUSED = STREAM


def reads(completion):
    return float(len(STREAM.name) + LENGTH)


def shadows(completion):
    UNUSED = 1.0
    return UNUSED


def test_what_can_not_be_written_down_is_told_and_what_is_not_used_does_not_matter():
    text, why = kept_source([reads])
    problem = "STREAM is a TextIOWrapper, which has no source: make it inside a function"
    with pytest.raises(ImportError, match="only the program that began the run can go on with it: STREAM is a"):
        exec(text, {})
    assert why == problem and f"# {problem}\n" in text and "LENGTH = 3\n" in text and "def reads" in text
    assert kept_source([shadows])[1] == ""
    names: dict = {}
    exec("def typed(completion):\n    return 1.0", {"__name__": __name__}, names)
    assert kept_source([names["typed"]])[1] == "there is no source of typed"  # as of one that is typed into a console
