"""Which tasks of reasoning-gym score faithfully: what hone's lists of scored and refused tasks rest on.

    .venv/bin/python benchmarks/reasoning_gym_tasks.py --out benchmarks/results/reasoning_gym_tasks.json

Of each task the first rows are made and scored as the adapter does it: whether its own answer, read from `<answer>`
tags, gets full marks; whether a second process makes the same rows and gives the same scores; what a list of senseless
answers is worth, and how often scoring one fails. No answer is evaluated: tasks that would do so are left out.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

from recording import show

from hone.environments import AnswerParser
from hone.extensions.libraries.reasoning_gym import EVALUATES, REFUSED, SCORED
from hone.extensions.libraries.reasoning_gym_worker import start

SENSELESS = (
    "x",
    "No",
    "0",
    "42",
    "[]",
    "{}",
    "a,b",
    "1/2",
    "-1",
    "1e99",
    "nan",
    "inf",
    "a=1",
    "1 2 3\n4 5 6",
    "9" * 400,
)
ASKED_OF = 3
"""Rows that the senseless answers are given to."""
TASKS = sorted(SCORED | {name for name, reason in REFUSED.items() if not reason.startswith(EVALUATES)} - {"composite"})


def observed(task: str, rows: int) -> dict[str, Any]:
    """The rows of a task, and the scores (None: scoring failed) of their answers and of the senseless ones."""
    answer, parser = start(task, {"seed": 0}), AnswerParser(str)
    answer(["check"])
    entries = [answer(["entry", i]) for i in range(rows)]

    def score(index: int, text: str) -> float | None:
        try:
            return answer(["score", index, text])
        except Exception:
            return None

    read = {i: parser.parse(parser.wrap(right)) for i, (_, right) in enumerate(entries)}
    return {
        "entries": entries,
        "own": [score(i, text) for i, text in read.items() if text is not None],
        "senseless": [[score(i, text) for i in range(ASKED_OF)] for text in SENSELESS],
    }


def summary(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Of the rows, `answers` have an answer that can be written, and `right` one that gets full marks."""
    senseless = [value for values in first["senseless"] for value in values]
    return {
        "answers": len(first["own"]),
        "right": sum(map(full, first["own"])),
        "repeatable": repr(first) == repr(second),
        "senseless_right": [
            text
            for text, values in zip(SENSELESS, first["senseless"], strict=True)
            if all(map(full, values)) and any(text != right for _, right in first["entries"][:ASKED_OF])
        ],
        "senseless_failed": round(senseless.count(None) / len(senseless), 3),
    }


def full(value: float | None) -> bool:
    """Whether a score is full marks."""
    return value is not None and value >= 1


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--rows", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/reasoning_gym_tasks.json"))
    args = parser.parse_args(argv)
    os.environ["PYTHONHASHSEED"] = "0"  # as in the adapter's process
    spawn, passes = multiprocessing.get_context("spawn"), []
    for _ in range(2):
        with ProcessPoolExecutor(1, mp_context=spawn) as pool:
            passes.append(list(pool.map(observed, args.tasks, [args.rows] * len(args.tasks))))
    tasks = {task: summary(*seen) for task, *seen in zip(args.tasks, *passes, strict=True)}
    result = {"reasoning_gym": version("reasoning-gym"), "rows": args.rows, "tasks": tasks}
    show(result, args.out)


if __name__ == "__main__":
    main()
