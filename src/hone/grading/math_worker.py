"""The process in which math-verify works: one JSON line `[answer, gold]` in, one JSON line out, until the input ends.

The line out is `true` or `false`, or null if the answer cannot be read, or a text if something is wrong. Run as a file
by `hone.grading.math`, with the seconds of processor time that a question may take, after which the kernel ends the
process; it needs nothing of hone. Expressions are read by math-verify's LaTeX grammar alone: its reader of plain
expressions goes through Python's `eval` and is left out.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import sys
import time
import traceback
from typing import Any

MEMORY_BYTES = 4 * 2**30


def main() -> None:
    """Answers until the input ends. What libraries print goes nowhere."""
    seconds = int(sys.argv[1])
    answers, nowhere = os.fdopen(os.dup(1), "w", encoding="utf-8"), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    from math_verify import LatexExtractionConfig, parse, verify

    os.dup2(nowhere, 2)
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    reading = [LatexExtractionConfig(boxed_match_priority=0)]

    def expressions(text: str) -> list[Any]:
        return parse(f"\\boxed{{{text}}}", reading, fallback_mode="no_fallback", parsing_timeout=None)  # pyright: ignore[reportArgumentType]

    for line in sys.stdin:
        answer, gold = json.loads(line)
        resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + seconds, resource.RLIM_INFINITY))
        try:
            given = expressions(answer)
            said = verify(expressions(gold), given, timeout_seconds=None) if given else None
        except Exception:
            said = traceback.format_exc()
        print(json.dumps(said), file=answers, flush=True)


if __name__ == "__main__":
    main()
