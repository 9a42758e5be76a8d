"""Which tasks of reasoning-gym score faithfully: what hone's lists of scored and refused tasks rest on.

    .venv/bin/python benchmarks/reasoning_gym_tasks.py --out benchmarks/results/reasoning_gym_tasks.json

Of each task the first rows are made and scored in the adapter's own process: whether its own answer, read from
`<answer>` tags, gets full marks; whether a second process makes the same rows and gives the same scores; what a list of
senseless answers is worth, and how often scoring one fails; the seconds for a row. No answer is evaluated: tasks
that would do so are left out.
"""

from __future__ import annotations

import argparse
import json
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

from hone.environments.adapters import reasoning_gym
from hone.environments.adapters.reasoning_gym_tasks import EVALUATES, REFUSED, SCORED
from hone.environments.answers import AnswerParser
from hone.grading.process import NoVerdict, Worker

SENSELESS = ("x", "No", "0", "42", "[]", "{}", "a,b", "1/2", "-1", "1e99", "nan", "inf", "a=1", "1 2 3\n4 5 6", "9" * 400)
SCRIPT = Path(reasoning_gym.__file__).with_name("reasoning_gym_worker.py")
PARSER = AnswerParser(str)


def measured(task: str, rows: int) -> dict[str, Any]:
    """What is found about a task. Of the rows, `answers` have an answer that can be written, `right` one worth full marks."""
    first, second = (Worker(SCRIPT, [task, {"seed": 0}], task) for _ in range(2))
    try:
        first.ask(["check"], 60, 120.0)
        started = perf_counter()
        entries = [first.ask(["entry", i], 60, 120.0) for i in range(rows)]
        seconds = (perf_counter() - started) / rows
        written = {i: PARSER.parse(PARSER.wrap(answer)) for i, (_, answer) in enumerate(entries)}
        written = {i: answer for i, answer in written.items() if answer is not None}
        asked = [(i, answer) for i, answer in written.items()] + [(i, text) for i in range(3) for text in SENSELESS]
        scores = [score(first, *question) for question in asked]
        same = [second.ask(["entry", i], 60, 120.0) for i in range(rows)] == entries
        senseless = scores[len(written) :]
        return {
            "answers": len(written),
            "right": sum(map(full, scores[: len(written)])),
            "repeatable": same and [score(second, *question) for question in asked] == scores,
            "senseless_right": [text for n, text in enumerate(SENSELESS) if all(map(full, senseless[n :: len(SENSELESS)]))],
            "senseless_failed": sum(value is None for value in senseless) / len(senseless),
            "seconds_per_row": round(seconds, 4),
        }
    except NoVerdict as nothing:
        return {"failed": nothing.failure.detail.splitlines()[-1]}
    finally:
        first.close()
        second.close()


def score(worker: Worker, index: int, answer: str) -> float | None:
    try:
        return worker.ask(["score", index, answer], 5, 60.0)
    except NoVerdict:
        return None


def full(value: float | None) -> bool:
    """Whether a score is full marks."""
    return value is not None and value >= 1


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = sorted(SCORED | {task for task, reason in REFUSED.items() if not reason.startswith(EVALUATES)})
    parser.add_argument("--tasks", help="these alone; what the file says of others stays", nargs="+", choices=names, default=names)
    parser.add_argument("--rows", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/reasoning_gym_tasks.json"))
    args = parser.parse_args(argv)
    kept = json.loads(args.out.read_text())["tasks"] if args.out.exists() else {}
    tasks = dict(sorted((kept | {task: measured(task, args.rows) for task in args.tasks}).items()))
    result = {"reasoning_gym": version("reasoning-gym"), "rows": args.rows, "tasks": tasks}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
