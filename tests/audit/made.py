"""Small tasks for the tests of the audit, and task files that worker processes can load."""

from __future__ import annotations

import itertools
import textwrap
from pathlib import Path

import pytest

from hone.audit.probes import Prober, subjects_of
from hone.environments import Environment, SingleTurnEnv, TagParser, load_environment
from hone.types import Example

TAGS = TagParser("answer")
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


def task_file(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> Environment:
    """The environment of a task file with this source in `folder`, which worker processes load too. In the source
    stand `ROWS`, `TAGS` and a class `Sums` with references.
    """
    name = f"audited_{next(_numbers)}"
    head = """
        from hone.environments import Range, Rubric, SingleTurnEnv, TagParser, inline
        TAGS = TagParser("answer")
        ROWS = [{"question": f"What is {a} + {a}?", "answer": str(2 * a)} for a in range(10, 18)]
        class Sums(SingleTurnEnv):
            def reference(self, example):
                return f"<answer>{example.answer}</answer>"
        def right(completion, answer, parser):
            return float(parser.parse_answer(completion) == answer)
    """
    tail = """
        def load_environment():
            return Sums(rubric=RUBRIC, dataset=ROWS, parser=TAGS)
    """
    (folder / f"{name}.py").write_text("\n".join(map(textwrap.dedent, (head, source, tail))))
    monkeypatch.chdir(folder)
    return load_environment(name.replace("_", "-"))
