"""How processes that hone starts end, with what they started; and commands that a supervisor ends with this process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import alive, children, descendants, wait_until_gone

from hone.processes import Process, end_all, supervised

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
"""Doesn't end when it is told to."""
FAMILY = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {DEAF!r}])
print("up", flush=True)
time.sleep(600)
"""
"""A command that leaves a deaf child behind when it is told to end."""
LEAVES_CHILD = f"""
import subprocess, sys
print(subprocess.Popen([sys.executable, "-c", {DEAF!r}]).pid, flush=True)
raise SystemExit(3)
"""
PARENT = f"""
import sys, time
from hone.processes import Process, supervised
process = Process(supervised([sys.executable, "-c", {FAMILY!r}], 0.5))
time.sleep(600)
"""


def start(program: str, **options: Any) -> Process:
    return Process([sys.executable, "-c", program], stdout=subprocess.PIPE, **options)


def line_of(process: Process) -> str:
    return process.stdout.readline().decode().strip()


def test_a_process_that_ends_leaves_nothing_of_its_group() -> None:
    process = start(LEAVES_CHILD)
    left = int(line_of(process))
    assert process.wait(300) == 3 == process.poll() and process.code == 3
    wait_until_gone({left})


def test_it_is_told_to_end_and_killed_with_its_group_if_it_does_not() -> None:
    heeds, deaf = start(FAMILY), start(f"print('up', flush=True); {DEAF}")
    assert line_of(heeds) == line_of(deaf) == "up"
    assert heeds.wait(0.01) is None
    below = descendants(heeds.pid)
    assert len(below) == 1
    end_all([heeds, deaf], 300, hurry=lambda: heeds.code is not None)
    assert (heeds.code, deaf.code) == (-signal.SIGTERM, -signal.SIGKILL)
    wait_until_gone(below)
    deaf.send(signal.SIGTERM)  # reaches nobody
    deaf.kill()


FOLLOWS = "import os; from hone.processes import end_with; parent = os.getppid(); print(os.getpid(), flush=True); "
STARTS = {
    "the kernel": f"print(Process([sys.executable, '-c', {DEAF!r}], dies_with_parent=signal.SIGKILL).pid, flush=True)",
    "a thread": f"Process([sys.executable, '-c', {FOLLOWS + 'end_with(parent)'!r}])",
}


@pytest.mark.parametrize("what", STARTS)
def test_the_kernel_ends_a_process_with_its_parent_and_a_thread_where_it_does_not(what: str) -> None:
    parent = start(f"import signal, sys, time; from hone.processes import Process; {STARTS[what]}; time.sleep(600)")
    pid = int(line_of(parent))
    os.kill(parent.pid, signal.SIGKILL)
    wait_until_gone({pid})
    parent.wait()


def supervise(program: str, parent: int | None = None) -> Process:
    argv = supervised([sys.executable, "-c", program], 0.5)
    argv[3] = str(parent or argv[3])
    return Process(argv, stdout=subprocess.PIPE)


def test_its_exit_code_is_the_commands() -> None:
    assert supervise("raise SystemExit(7)").wait(300) == 7
    assert supervise("import os; os.kill(os.getpid(), 9)").wait(300) == 128 + 9


def test_its_temporary_files_go_with_it() -> None:
    process = supervise("import tempfile; print(tempfile.mkstemp()[1], flush=True)")
    file = Path(line_of(process))
    assert process.wait(300) == 0
    assert file.parent.name.startswith("hone-") and not file.parent.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_when_told_to_it_ends_all(number: signal.Signals) -> None:
    process = supervise(FAMILY)
    assert line_of(process) == "up"
    pids = descendants(process.pid)
    assert len(pids) == 2
    process.send(number)
    process.wait(300)
    assert not alive(pids)


def test_a_command_that_ends_leaves_nothing() -> None:
    process = supervise(LEAVES_CHILD)
    left = int(line_of(process))
    assert process.wait(300) == 3
    assert not alive({left})


@pytest.fixture
def family(tmp_path: Path) -> Iterator[dict[str, int]]:
    """The processes of a parent that has started a supervisor, by their part; what the test leaves is killed."""
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, env=env)
    assert parent.stdout is not None and parent.stdout.readline() == "up\n"
    chain = [parent.pid]
    while below := children(chain[-1]):
        (pid,) = below
        chain.append(pid)
    yield dict(zip(("parent", "supervisor", "command", "deaf child"), chain, strict=True))
    for pid in alive(set(chain)):
        os.kill(pid, signal.SIGKILL)
    parent.communicate()


def test_after_a_sigkill_of_the_parent_nothing_is_left(family: dict[str, int]) -> None:
    os.kill(family["parent"], signal.SIGKILL)
    wait_until_gone({family["supervisor"], family["command"], family["deaf child"]})


def test_after_a_sigkill_of_the_supervisor_the_command_is_told_to_end(family: dict[str, int]) -> None:
    """And vLLM's first process ends the others then."""
    os.kill(family["supervisor"], signal.SIGKILL)
    wait_until_gone({family["command"]})


def test_a_parent_that_is_gone_before_it_starts_is_noticed() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert supervise("import time; time.sleep(3600)", parent=gone.pid).wait(300) == 128 + signal.SIGTERM
