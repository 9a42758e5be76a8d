"""What runs in the process of `hone.grading.process`; it needs nothing of hone.

    python -P process_main.py SCRIPT ARGUMENTS

`start(*ARGUMENTS)` of the file SCRIPT returns the function that answers. One JSON line `[seconds, question]` comes in,
one line `[answer, error]` goes out, until the input ends; `error` is a traceback or null. `seconds` is the processor
time that the question may take (up to one more, for the kernel counts whole ones), after which the kernel ends the
process. What libraries print goes nowhere, what reads the standard input finds it empty, and a process that they fork
answers nothing.
"""

from __future__ import annotations

import json
import logging
import math
import os
import resource
import runpy
import sys
import time
import traceback

MEMORY_BYTES = 4 * 2**30


def main() -> None:
    """Answers until the input ends."""
    script, arguments = sys.argv[1], json.loads(sys.argv[2])
    questions, answers = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.register_at_fork(after_in_child=answers.close)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    answer = runpy.run_path(script)["start"](*arguments)
    os.dup2(nowhere, 2)
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    for line in questions:
        seconds, question = json.loads(line)
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(time.process_time()) + seconds, resource.RLIM_INFINITY))
        try:
            said = json.dumps([answer(question), None])
        except Exception:
            said = json.dumps([None, traceback.format_exc()])
        print(said, file=answers, flush=True)


if __name__ == "__main__":
    main()
