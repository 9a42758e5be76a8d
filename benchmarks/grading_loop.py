"""The plain loop that `grading.py` compares with: it grades in its own process, one completion after another.

A line of JSON comes in, `[[answer, gold], …]`; the loop prints a line when it has made its examples, and after an empty
line it grades them and prints the rewards.
"""

from __future__ import annotations

import json
import logging
import sys

IS_HONE_WORKER = True
"""So that mathematics is compared right here, not in a process of its own."""


def main() -> None:
    from hone.environments import load_environment

    logging.disable(logging.CRITICAL)  # math-verify's warnings that it has no time limit
    env = load_environment("math-problems")
    for line in iter(sys.stdin.readline, ""):
        pairs = [(env.example(question="?", answer=gold), rf"\boxed{{{answer}}}") for answer, gold in json.loads(line)]
        print("ready", flush=True)
        sys.stdin.readline()
        print(json.dumps([env.grade(example, text).reward for example, text in pairs]), flush=True)


if __name__ == "__main__":
    main()
