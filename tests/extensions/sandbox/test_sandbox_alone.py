"""What is promised without bubblewrap: a refusal that helps, and the limits of a plain process.

The sandbox itself is tested in tests/extensions/sandbox.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hone.errors import UserError
from hone.extensions.sandbox import bubblewrap
from hone.grading import Limits, Sandbox

PATIENCE = {"cpu_seconds": 60, "clock_seconds": 300}
"""For code that is not to meet these limits, however busy the machine."""
FEW = Limits(cpu_seconds=1, clock_seconds=3, memory_mib=256, processes=6, output_bytes=1000, scratch_mib=4)


@pytest.fixture(scope="module")
def plain() -> Sandbox:
    return Sandbox(replace(FEW, **PATIENCE), isolation="none")


def test_without_bubblewrap_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r'no bwrap on the PATH.*apt-get install bubblewrap.*isolation = "none"'):
        Sandbox()


def test_where_bubblewrap_may_not_work_it_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a bwrap that says what the real one says where the kernel has no user namespaces for it."""
    shown = "bwrap: No permissions to create new namespace, likely because the kernel does not allow it"
    (tmp_path / "bwrap").write_text(f"#!/bin/sh\necho '{shown}' >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(UserError, match=r"can't be made here: .*No permissions to create new namespace") as caught:
        Sandbox()
    assert 'isolation = "none"' in str(caught.value)


@pytest.mark.parametrize("ids", [2**16, 2**32 - 1])
def test_no_two_sandboxes_share_a_user(ids: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap, "_uid_map", lambda: [0, 100000, ids])
    users = [bubblewrap.own_user(number) for number in range(64)]
    assert len(set(users)) == 64 and ids * 3 // 4 <= min(users) and max(users) < ids
    monkeypatch.setattr(bubblewrap, "_uid_map", lambda: [0, 1000, 1])
    assert bubblewrap.own_user(0) == bubblewrap.NOBODY


def test_it_never_runs_plainly_unless_told_and_says_so_once() -> None:
    script = (
        "from hone.grading import Sandbox\nfor _ in range(3): s = Sandbox(isolation='none')\n"
        "print(s.run('print(6 * 7)').output)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "42\n\n" and done.stderr.count('isolation "none"') == 1
    with pytest.raises(UserError, match='"bubblewrap" or "none", not "docker"'):
        Sandbox(isolation="docker")  # pyright: ignore


@pytest.mark.parametrize(
    ("code", "status", "text"),
    [
        ("print(input())", "ok", "hello\n"),
        ("1 / 0", "error", 'File "main.py", line 1, in <module>\n    1 / 0\n'),
        ("import os; print(sorted(os.environ), os.listdir('.'))", "ok", "'TMPDIR', 'USER'] ['main.py']\n"),
        ("while True: pass", "timeout", ""),
        ("x = []\nwhile True: x.append(bytearray(10**6))", "memory", "MemoryError"),
        (
            "import os, time\nfor _ in range(3):\n if not os.fork(): break\nb = bytearray(100 << 20); time.sleep(99)",
            "memory",
            "",
        ),
        ("while True: print('x' * 99)", "output", "xxx"),
        ("f = open('f', 'wb')\nwhile True: f.write(bytes(10**6))", "error", "OSError"),
        (
            "import os, time\nfor _ in range(40):\n if not os.fork(): time.sleep(600)\ntime.sleep(1)",
            "error processes",
            "",
        ),
    ],
)
def test_a_plain_process_has_limits(code: str, status: str, text: str, plain: Sandbox) -> None:
    began = time.monotonic()
    ran = (Sandbox(FEW, isolation="none") if status == "timeout" else plain).run(code, "hello\n")
    assert ran.status in status.split() and text in ran.output + ran.errors, ran
    assert len(ran.output) <= 1000 and time.monotonic() - began < 20


def test_a_daemon_of_a_plain_process_ends_with_it(plain: Sandbox) -> None:
    code = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        print(os.getpid(), flush=True); time.sleep(99)\n"
        "    os._exit(0)\n"
        "os.wait(); time.sleep(0.3)"
    )
    assert not runs(int(plain.run(code).output))


def runs(pid: int) -> bool:
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_limits_are_checked() -> None:
    with pytest.raises(UserError, match="limit processes is 0: give a positive number"):
        Limits(processes=0)
    with pytest.raises(UserError, match="limit cpu_seconds is inf: give a positive number"):
        Limits(cpu_seconds=float("inf"))
    with pytest.raises(UserError, match="memory_mib is 32: give at least 64"):
        Limits(memory_mib=32)
