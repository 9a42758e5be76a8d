"""Nothing of a supervised command outlives the process that wanted it, however that or the supervisor ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import alive, children, descendants, wait_until_gone

from hone.inference.vllm import supervisor

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
PARENT = f"""
import os, subprocess, sys, time
argv = [sys.executable, {supervisor.__file__!r}, str(os.getpid()), "0.5", sys.executable, "-c", {FAMILY!r}]
subprocess.Popen(argv, start_new_session=True)
time.sleep(600)
"""


def supervised(command: str, parent: int | None = None) -> subprocess.Popen[str]:
    argv = [sys.executable, supervisor.__file__, str(parent or os.getpid()), "0.5", sys.executable, "-c", command]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True)


def test_its_exit_code_is_the_commands() -> None:
    assert supervised("raise SystemExit(7)").wait(300) == 7
    assert supervised("import os; os.kill(os.getpid(), 9)").wait(300) == 128 + 9


def test_its_temporary_files_go_with_it() -> None:
    with supervised("import tempfile; print(tempfile.mkstemp()[1], flush=True)") as process:
        assert process.stdout is not None
        file = Path(process.stdout.readline().strip())
        assert process.wait(300) == 0
    assert file.parent.name.startswith("hone-vllm-") and not file.parent.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_when_told_to_it_ends_all(number: signal.Signals) -> None:
    with supervised(FAMILY) as process:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        pids = descendants(process.pid)
        assert len(pids) == 2
        process.send_signal(number)
        process.wait(300)
        assert not alive(pids)


def test_a_command_that_ends_leaves_nothing() -> None:
    command = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {DEAF!r}]).pid, flush=True)"
    with supervised(command) as process:
        assert process.stdout is not None
        left = int(process.stdout.readline())
        assert process.wait(300) == 0
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
    with supervised("import time; time.sleep(3600)", parent=gone.pid) as process:
        process.wait(300)
