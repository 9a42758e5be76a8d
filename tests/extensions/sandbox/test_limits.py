"""Code that takes all it can get: it is ended in time, the verdict says for what, and nothing of it is left."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hone.extensions.sandbox import sandbox
from hone.grading import Limits, Sandbox

pytestmark = pytest.mark.sandbox
PATIENCE = {"cpu_seconds": 60, "clock_seconds": 300}
"""For code that is not to meet these limits, however busy the machine."""
SMALL = Limits(cpu_seconds=2, clock_seconds=4, memory_mib=256, processes=8, output_bytes=10_000, scratch_mib=16)
DEAF = (
    "import signal\n"
    "for s in range(1, 65):\n"
    "    try: signal.signal(s, signal.SIG_IGN)\n"
    "    except (OSError, ValueError): pass\n"
    "while True: pass"
)
FORK_BOMB = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
CHILDREN = "import os\nfor _ in range(5):\n    if os.fork() == 0: break\n"

# By the verdicts that may be: name, code, and perhaps a text of the output or of the errors.
GREEDY: dict[str, dict[str, str | tuple[str, str]]] = {
    "timeout": {
        "sleep": "import time; time.sleep(100)",
        "loop": "while True: pass",
        "regular expression": "import re; re.match('(a+)+$', 'a' * 50 + 'b')",
        "loops of children": CHILDREN + "while True: pass",
        "loops of children that nobody waits for": (
            """
import os, signal, time
try: signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # else the kernel forgets what they took
except PermissionError: print('refused', flush=True)
while True:
    if os.fork() == 0: os._exit(0)
    os.wait()
""",
            "refused",
        ),
        "deaf to signals": DEAF,
        "closes its output": "import os, time; os.close(1); os.close(2); time.sleep(99)",
        "fork bomb": FORK_BOMB,
    },
    "ok": {
        "a daemon that holds the output": """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: time.sleep(99)
    os._exit(0)
""",
        "children without parents": (
            """
import os
for _ in range(200):
    if os.fork() == 0:
        try: os.fork()  # on a busy machine the first process has not yet taken leave of all
        finally: os._exit(0)
    os.wait()
print('done')
""",
            "done",
        ),
    },
    "ok error": {
        "signals to the first process": """
import os, signal, time
for s in (2, 9, 15, 19): os.kill(1, s)
time.sleep(0.2); print('still')
""",
    },
    "memory": {
        "memory": ("x = []\nwhile True: x.append(bytearray(10**6))", "MemoryError"),
        "memory at once": ("bytearray(10**9)", "MemoryError"),
        "memory of many": CHILDREN + "import time; b = bytearray(120 << 20); time.sleep(99)",
    },
    "error": {
        "memory that is shared": (
            """
import mmap, time
m = [mmap.mmap(-1, 50 << 20) for _ in range(9)]
""",
            "Cannot allocate memory",
        ),
        "recursion": ("def f(): f()\nf()", "RecursionError"),
        "a thousand processes": (
            """
import os, time
for _ in range(1000):
    if os.fork() == 0: time.sleep(99)
""",
            "BlockingIOError",
        ),
        "disk in many files": (
            """
i = 0
while True:
    i += 1
    open(f'{i}', 'wb').write(bytes(1 << 20))
""",
            "No space left",
        ),
        "a file with holes": ("f = open('f', 'wb'); f.truncate(1 << 40)", "File too large"),
        "open files": ("import os\nwhile True: os.dup(0)", "Too many open files"),
    },
    "error memory timeout": {
        "recursion in C": "import sys; sys.setrecursionlimit(10**9)\nf = lambda: [*map(f, [1])]\nf()",
    },
    "output": {
        "output": ("while True: print('x' * 99)", "xxx"),
        "output of a child": ("import os\nif os.fork() == 0:\n    while True: print('x' * 99)\nos.wait()", "xxx"),
    },
    "memory timeout": {
        "files without content": """
import os
i = 0
while True:
    i += 1
    os.close(os.open(str(i), os.O_CREAT))
""",
    },
}


@pytest.fixture(scope="module")
def small() -> Sandbox:
    return Sandbox(SMALL)


@pytest.fixture(scope="module")
def patient() -> Sandbox:
    """As small, but for its time."""
    return Sandbox(replace(SMALL, **PATIENCE))


def left_over() -> set[str]:
    with open(f"/proc/self/task/{threading.get_native_id()}/children") as file:
        return set(file.read().split())


@pytest.mark.parametrize(("statuses", "name"), [(statuses, name) for statuses in GREEDY for name in GREEDY[statuses]])
def test_greedy_code_is_ended(statuses: str, name: str, small: Sandbox, patient: Sandbox) -> None:
    case = GREEDY[statuses][name]
    code, text = (case, "") if isinstance(case, str) else case
    before, began = left_over(), time.monotonic()
    ran = (small if "timeout" in statuses else patient).run(code)
    assert ran.status in statuses.split(), ran
    assert text in ran.output + ran.errors
    assert len(ran.output) <= 10_000 and len(ran.errors) <= 10_000 + 100
    assert ran.seconds < 20 and time.monotonic() - began < 40, "the clock's limit is 4 s; what it waits for, 99"
    assert left_over() <= before


def test_memory_that_a_fork_shares_counts_once(patient: Sandbox) -> None:
    wait = "else:\n    for _ in range(5): os.wait()\n"  # the parent's end would be that of all
    ran = patient.run("b = bytearray(150 << 20)\n" + CHILDREN + wait + "import time; time.sleep(0.5)\nprint(1)")
    assert ran.status == "ok" and ran.output.count("1") == 6, ran


def test_it_is_the_first_to_go_where_the_machine_runs_out_of_memory(small: Sandbox) -> None:
    with sandbox.Started(small._place, sandbox.PROBE, b"", b"") as started:
        assert started.tree is not None
        assert Path(f"/proc/{started.tree.root}/oom_score_adj").read_text() == "1000\n"
