"""Small tasks for the tests of the audit, and task files that worker processes can load."""

from __future__ import annotations

import itertools
import textwrap
import tomllib
from pathlib import Path

import pytest

from hone.cli import main
from hone.environments import Environment, SingleTurnEnv, TagParser, load_environment
from hone.extensions.audit.probes import Prober, Subject, subjects_of
from hone.types import Example

TAGS = TagParser("answer")
ZOO = tomllib.loads((Path(__file__).parent / "zoo.toml").read_text(encoding="utf-8"))
HEAD = """
import io, math, random, re, subprocess, sys
import numpy as np
from hone.environments import (
    MultiTurnEnv, NumberParser, Parser, Range, Rubric, SingleTurnEnv, TagParser, inline, read_number, same_number,
)
from hone.environments.parsers import visible_text

CAPITALS = {"France": "Paris", "Japan": "Tokyo", "Italy": "Rome", "Spain": "Madrid", "Egypt": "Cairo", "Cuba": "Havana"}
GUESSES = [
    {"question": f"I think of a number from 1 to {n}.", "answer": str(a)} for n, a in ((20, 7), (30, 22), (40, 31))
]
ROWS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in ((12, 3), (17, 4), (25, 6), (90, 17))]
PARSER = NumberParser()
PROMPT = "Give the number in <answer> tags."

def correctness(completion, answer):
    return float(PARSER.value(completion) == read_number(answer))

def reference(example):
    return f"<answer>{example.answer}</answer>"
"""
TAIL = """
class Task(SingleTurnEnv):
    def reference(self, example):
        return reference(example)

if "load_environment" not in globals():
    def load_environment():
        rubric = globals().get("RUBRIC") or Rubric([correctness])
        return Task(parser=PARSER, rubric=rubric, dataset=ROWS, system_prompt=PROMPT)
"""
SAYS = """
import time
from pathlib import Path

from hone.environments import AnswerParser, SingleTurnEnv, answer_rubric, inline

PARSER = AnswerParser(str.strip)


def correctness(completion, answer):
    began = time.process_time()
    while time.process_time() - began < SECONDS:
        pass
    return float(PARSER.parse_answer(completion) == answer)


class Says(SingleTurnEnv):
    answer_is_exact = True

    def reference(self, example):
        return PARSER.wrap(WRAPPED(example.answer))


def rows():
    with Path("reads.txt").open("a") as log:
        log.write("read\\n")
    return [{"question": f"Say {word}", "answer": word} for word in ("apple", "river")]


def load_environment(broken: bool = False):
    global WRAPPED
    WRAPPED = (lambda text: text[::-1]) if broken else str
    return Says(id="says", parser=PARSER, rubric=answer_rubric(correctness), dataset=rows)
"""
"""Task file of words to repeat; its references are reversed where it is broken."""
_numbers = itertools.count()


class Sums(SingleTurnEnv):
    """`a + b` with the answer in tags. Rows may bring their own prompt."""

    def reference(self, example: Example) -> str:
        return f"I add them.\n<answer>{example.answer}</answer>"


def right(completion, answer, parser):
    return float(parser.parse_answer(completion) == answer)


def form(completion, parser):
    return float(parser.parse_answer(completion) is not None)


def sums(rubric, count: int = 8, hint: str = "", answer=lambda a, b: a + b, **kwargs) -> Sums:
    """`count` sums, with `hint` behind each question."""
    rows = [
        {"question": f"What is {a} + {b}?{hint}", "answer": str(answer(a, b))}
        for a, b in ((10 + 7 * i, 100 - 3 * i) for i in range(count))
    ]
    return Sums(rubric=rubric, dataset=rows, parser=kwargs.pop("parser", TAGS), id="sums", **kwargs)


def prober(env: Environment, count: int = 8) -> Prober:
    return Prober(env, subjects_of(env, count, seed=0))


def subject(text: str, answer: str | None = None, gold: str = "", prompt: str = "?") -> Subject:
    """An example whose reference is this text; `answer` is what the task's parser finds in it."""
    return Subject(Example([{"role": "user", "content": prompt}], gold), text, text, answer)


def write_zoo_task(folder: Path, name: str) -> str:
    source = next(tasks[name] for tasks in ZOO.values() if name in tasks)["source"]
    parses = "PARSER" in source or "def correctness" not in source
    tail = TAIL if parses else TAIL.replace("parser=PARSER, ", "")
    (folder / f"{name}.py").write_text(f"{HEAD}\n{source}\n{tail}", encoding="utf-8")
    return name.replace("_", "-")


def task_file(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> Environment:
    """The environment of a task file with this source, which workers load too; HEAD's names and `right` are in it."""
    name = f"audited_{next(_numbers)}"
    rows = """
        PARSER = TAGS = TagParser("answer")
        ROWS = [{"question": f"What is {a} + {a}?", "answer": str(2 * a)} for a in range(10, 18)]
        PROMPT = None
        def right(completion, answer, parser):
            return float(parser.parse_answer(completion) == answer)
    """
    (folder / f"{name}.py").write_text("\n".join([HEAD, *map(textwrap.dedent, (rows, source)), TAIL]))
    monkeypatch.chdir(folder)
    return load_environment(name.replace("_", "-"))


def rl(model: Path, *flags: str, task: str = "says") -> int:
    """The exit code of one small step of RL."""
    base = ["rl", "--model.name", str(model), "--max-steps", "1", "--seq-len", "256", "--display", "plain"]
    base += ["--orchestrator.batch-size", "4", "--orchestrator.rollouts-per-example", "2", "--output-dir", "outputs"]
    return main([*base, "--orchestrator.sampling.max-tokens", "24", "--orchestrator.env.id", task, *flags])
