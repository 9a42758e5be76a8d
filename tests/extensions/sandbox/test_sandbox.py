"""What code finds in the sandbox, what is said of it, and where a sandbox can and cannot be made."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from hone.errors import UserError
from hone.extensions.sandbox import sandbox as module
from hone.grading import Sandbox

pytestmark = pytest.mark.sandbox


def test_output_input_and_exit_code(sandbox: Sandbox) -> None:
    ran = sandbox.run("import sys\nname = input()\nprint('hello', name)\nprint('bad', file=sys.stderr)", "wörld\nmore")
    assert (ran.output, ran.errors, ran.status, ran.exit_code) == ("hello wörld\n", "bad\n", "ok", 0)
    assert 0 < ran.seconds < 10
    ends = {
        "import sys; sys.exit(3)": 3,
        "exit()": 0,
        "import os; os._exit(7)": 7,
        "import os; os.kill(os.getpid(), 9)": -9,
    }
    assert {code: sandbox.run(code).exit_code for code in ends} == ends
    assert sandbox.run("import sys; sys.exit('no')").errors == "no\n"
    assert sandbox.run("import ctypes; ctypes.string_at(0)").errors == "\nended by SIGSEGV\n"
    assert sandbox.run("print(repr(open(0).read()))").output == "''\n", "the input of hone is not the code's"


def test_a_traceback_shows_the_code_and_no_path_of_the_machine(sandbox: Sandbox) -> None:
    ran = sandbox.run("def half(x):\n    return 1 / x\n\nhalf(0)")
    assert (ran.status, ran.exit_code) == ("error", 1)
    lines = [line for line in ran.errors.splitlines() if set(line) - set(" ~^")]  # Python 3.11 and 3.13 differ in these
    assert lines == [
        "Traceback (most recent call last):",
        '  File "/scratch/main.py", line 4, in <module>',
        "    half(0)",
        '  File "/scratch/main.py", line 2, in half',
        "    return 1 / x",
        "ZeroDivisionError: division by zero",
    ]
    ran = sandbox.run("import json; json.loads('{')")
    assert '"/python/lib/python' in ran.errors and sys.base_prefix not in ran.errors
    assert "line 1\n    1 +\n" in sandbox.run("1 +").errors


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("print('\udc80')", "surrogates not allowed"),
        ("print('\0')", "null bytes"),
        ("# é\n" + "x" * 10**6 + " = 2\nprint('long')", "long\n"),
        ("print('\\ud800 \\0')", "\ufffd\ufffd\ufffd \0"),
    ],
)  # fmt: skip
def test_strange_text(code: str, shown: str, sandbox: Sandbox) -> None:
    ran = sandbox.run(code)
    assert shown in ran.output + ran.errors, ran


def test_nothing_stays_from_one_call_to_the_next(sandbox: Sandbox) -> None:
    assert sandbox.run("open('a', 'w').write('x'); open('/tmp/b', 'w').write('y')").status == "ok"
    assert (
        sandbox.run("import os; print(os.listdir('/scratch'), os.listdir('/tmp'))").output
        == "['main.py'] ['main.py']\n"
    )


def test_the_same_code_says_the_same(sandbox: Sandbox) -> None:
    code = "print({'a', 'b', 'c'}, object(), (x for x in 'ab'), hash('a'))\nimport json; print(json.JSONDecoder())"
    assert len({sandbox.run(code).output for _ in range(3)}) == 1


def test_all_that_the_code_finds(sandbox: Sandbox) -> None:
    ran = sandbox.run(
        "import os, socket, sys\nprint(sorted(os.listdir('/')), sorted(os.listdir('/dev')), os.listdir('/python'))\n"
        "print(os.getcwd(), os.environ['HOME'], socket.gethostname(), os.getpid(), 'site' in sys.modules)\n"
        "print([os.listdir(p) for p in (os.path.dirname(os.__file__) + '/site-packages',) if os.path.exists(p)])\n"
        "print([name for name in os.environ if 'HONE' in name or 'TOKEN' in name])"
    )
    top, about, packages, names = ran.output.splitlines()
    assert top.startswith("['dev', 'lib', 'lib64', 'python', 'scratch', 'tmp'] ['full', 'null', 'random', 'shm', ")
    assert about == "/scratch /scratch sandbox 2 False"
    assert packages in ("[]", "[[]]") and names == "[]"


def test_packages_are_shown_on_demand(sandbox: Sandbox) -> None:
    code = "import sympy; x = sympy.Symbol('x'); print(sympy.integrate(x**2, x)); import mpmath\n"
    ran = Sandbox(sandbox.limits, packages=("sympy",)).run(code + "import numpy")
    assert ran.output == "x**3/3\n" and "No module named 'numpy'" in ran.errors, ran
    ran = Sandbox(replace(sandbox.limits, memory_mib=1024), packages=("numpy",)).run(
        "import numpy; print(numpy.linalg.det(numpy.eye(3)))"
    )
    assert ran.output == "1.0\n", ran
    assert "No module named 'sympy'" in sandbox.run("import sympy").errors
    with pytest.raises(UserError, match='package "nowhere": it is not installed here'):
        Sandbox(packages=("nowhere",))


def test_a_report_of_its_own_is_not_believed(sandbox: Sandbox) -> None:
    forged = "for fd in range(64):\n    try: os.write(fd, b'{\"exit-code\": 0}\\n')\n    except OSError: pass\n"
    ran = sandbox.run("import os, sys\n" + forged + "sys.exit(3)")
    assert (ran.status, ran.exit_code) == ("error", 3)


def test_many_at_once(sandbox: Sandbox) -> None:
    codes = [f"import time; time.sleep(0.05); print({i}); open('x', 'x')" for i in range(40)]
    with ThreadPoolExecutor(8) as pool:
        rans = list(pool.map(sandbox.run, codes))
    assert [(ran.output, ran.status) for ran in rans] == [(f"{i}\n", "ok") for i in range(40)]


def test_no_file_stays_open(sandbox: Sandbox) -> None:
    sandbox.run("1")
    gc.collect()  # what tests before this one have left open
    before = sorted(os.listdir("/proc/self/fd"))
    for code in ("print(1)", "1 / 0", "print('x' * 10**7)"):
        sandbox.run(code)
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_the_first_process_of_a_container_is_left_no_dead_ones() -> None:
    """It becomes the parent of what loses its own, as any process that asks for that."""
    script = (
        "import ctypes, os\nfrom hone.grading import Sandbox\nctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n"
        "s = Sandbox()\nfor code in ('1', 'print(\"x\" * 10**6)') * 5: s.run(code)\n"
        "print(open(f'/proc/self/task/{os.getpid()}/children').read().split())"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert shown.stdout == "[]\n", shown


def of_the_sandbox() -> set[int]:
    """Processes that were started for a sandbox, by what they were called with."""
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if b"What runs in the sandbox" in Path("/proc", pid, "cmdline").read_bytes():
                found.add(int(pid))
        except OSError:
            continue
    return found


def test_nothing_outlives_a_killed_hone(tmp_path: Path) -> None:
    """Killed at several moments, also while the sandbox is being made."""
    script = (
        "from hone.grading import Limits, Sandbox\n"
        "s = Sandbox(Limits(clock_seconds=600))\n"
        "print('go', flush=True)\n"
        "while True: s.run('import time; time.sleep(600)')"
    )
    before = of_the_sandbox()
    for delay in (0.0, 0.005, 0.01, 0.02, 0.03, 0.3):
        hone = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
        assert hone.stdout is not None and hone.stdout.readline() == b"go\n"
        time.sleep(delay)
        hone.kill()
        hone.wait()
        hone.stdout.close()
        deadline, quiet = time.monotonic() + 120, 0
        while quiet < 5 and time.monotonic() < deadline:  # one that hone had just begun to start may come yet
            time.sleep(0.05)
            quiet = 0 if of_the_sandbox() - before else quiet + 1
        assert quiet == 5


@pytest.mark.parametrize("way", module.bubblewrap.ways(), ids=str)
def test_each_way_that_leads_here_keeps_the_same(way: module.bubblewrap.Way, sandbox: Sandbox) -> None:
    """A machine may allow some ways only; where one can be gone here, the code has no right and no user but one."""
    other = Sandbox(sandbox.limits)
    other._place = replace(other._place, way=way)
    try:
        ran = other.run(
            "import ctypes, os\nhead, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()\n"
            "libc = ctypes.CDLL(None)\nlibc.capget(head, data)\n"
            "users = os.getresuid() + os.getresgid()\n"
            "print(list(data), 0 in users, libc.prctl(39, 0, 0, 0, 0), libc.unshare(0x10000000))"
        )
    except OSError as error:
        assert "the sandbox did not start: bwrap: " in str(error)
        return
    assert ran.output == "[0, 0, 0, 0, 0, 0] False 1 -1\n", ran
