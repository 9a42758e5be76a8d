"""`--detach` and the `hone runs` commands on real runs, each in a process of its own on a terminal of its own."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from present import NO_AUDIT
from processes import children, until, wait_until_gone
from run_folders import snapshot

from hone.cli import main
from hone.runs import Run
from hone.runs.outputs import holder
from hone.runs.summary import summarize

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc")

HONE = str(Path(sys.executable).parent / "hone")
DEADLINE = 300
"""Seconds after which something counts as hung."""
STEPS = 100_000
"""Of a run that is still at work when it is stopped, however late that is."""
FOREVER = """
import time
from hone.environments import Rubric, SingleTurnEnv


def slow(completion) -> float:
    time.sleep({seconds})
    return float(len(completion[-1]["content"]) % 3)


def load_environment():
    return SingleTurnEnv(rubric=Rubric([slow]), dataset=[{{"question": f"q{{i}}"}} for i in range(8)])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory with a task that takes its time."""
    (tmp_path / "environments").mkdir()
    (tmp_path / "environments" / "slow.py").write_text(FOREVER.format(seconds=0.02))
    return tmp_path


def flags(model: Path, *more: str, steps: int = STEPS) -> list[str]:
    return [
        *("rl", "--detach", "--model.name", str(model), "--max-steps", str(steps), "--seq-len", "64"),
        *("--orchestrator.batch-size", "4", "--orchestrator.rollouts-per-example", "2", "--output-dir", "out"),
        *("--orchestrator.sampling.max-tokens", "4", "--orchestrator.env.id", "slow", *NO_AUDIT, *more),
    ]


class Terminal:
    """A shell's child on a pseudo-terminal: what it prints, its exit code, and the end of the terminal."""

    def __init__(self, argv: list[str], cwd: Path):
        self.leader, follower = pty.openpty()
        # setsid with a controlling terminal, as a terminal window makes it: closing it hangs up its processes. And with
        # Ctrl-C at work, which a test run in the background of a shell has been told to ignore.
        self.process = subprocess.Popen(
            [sys.executable, "-c", "import os, sys, fcntl, termios, signal; os.setsid(); "
             "fcntl.ioctl(0, termios.TIOCSCTTY, 0); signal.signal(signal.SIGINT, signal.SIG_DFL); "
             "os.execvp(sys.argv[1], sys.argv[1:])", *argv],
            stdin=follower, stdout=follower, stderr=follower, cwd=cwd, env=os.environ | {"TERM": "xterm-256color"},
        )  # fmt: skip
        os.close(follower)
        self.text = ""

    def read_until(self, wanted: str | None) -> str:
        """Reads until the text was printed, or (None) until the process has ended."""
        until = time.monotonic() + DEADLINE
        while wanted is None or wanted not in self.text:
            assert time.monotonic() < until, f"{wanted!r} did not come; it printed:\n{self.text}"
            if select.select([self.leader], [], [], 0.1)[0]:
                try:
                    self.text += os.read(self.leader, 65536).decode(errors="replace")
                except OSError:
                    break  # the other end is closed
            elif self.process.poll() is not None:
                break
        assert wanted is None or wanted in self.text, self.text
        return self.text

    def close(self) -> None:
        if self.leader >= 0:
            os.close(self.leader)
            self.leader = -1
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@contextmanager
def terminal(argv: list[str], cwd: Path) -> Iterator[Terminal]:
    one = Terminal(argv, cwd)
    try:
        yield one
    finally:
        one.close()


@contextmanager
def no_survivor(run: Path) -> Iterator[None]:
    """Whatever happens inside, no process goes on writing the run afterwards."""
    try:
        yield
    finally:
        if pid := holder(run):
            os.kill(pid, signal.SIGKILL)


def hone(cwd: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HONE, *argv], capture_output=True, text=True, cwd=cwd, timeout=DEADLINE)


def test_a_detached_run_outlives_its_terminal_and_is_watched_and_stopped_from_elsewhere(
    folder: Path, tiny_model_dir: Path
) -> None:
    run = folder / "out"
    with no_survivor(run):
        with terminal([HONE, *flags(tiny_model_dir)], folder) as first:
            shown = first.read_until("Save and end it: hone runs stop out")
            assert first.process.wait(DEADLINE) == 0
            assert (
                "RL: " in shown and "Its output: out/logs/rl.out" in shown and "Watch it: hone runs attach out" in shown
            )
            pid = holder(run)
            assert f"Process {pid} goes on in the background" in shown and pid != first.process.pid
        assert pid is not None
        os.kill(pid, signal.SIGHUP)  # what some systems send to all that is left of a session
        steps = summarize(run).progress.done
        until(lambda: summarize(run).progress.done > steps + 2, "the run stands still")
        assert holder(run) == pid and Run(run).info["command"] == [HONE, *flags(tiny_model_dir)]
        assert os.getsid(pid) == pid and os.readlink(f"/proc/{pid}/fd/0") == "/dev/null"

        with terminal([HONE, "runs", "attach", "out"], folder) as watching:
            watching.read_until("reward")
            os.write(watching.leader, b"\x03")  # Ctrl-C
            watching.read_until("out goes on")
            assert watching.process.wait(DEADLINE) == 0 and holder(run) == pid

        watching = subprocess.Popen([HONE, "runs", "attach", "out"], cwd=folder, stdout=subprocess.PIPE, text=True)
        try:
            assert watching.stdout is not None and f"in process {pid}" in watching.stdout.readline()
            stopped = hone(folder, "runs", "stop", "out")
            ended = summarize(run).progress.done
            assert f"out: stopped by a signal after {ended} of {STEPS} steps, and saved\n" in stopped.stdout
            assert f"To go on from step {ended}:\n  hone rl @ out/config.toml --resume --detach\n" in stopped.stdout
            rest, _ = watching.communicate(timeout=DEADLINE)
            assert watching.returncode == 0 and f"stopped by a signal after {ended} of {STEPS} steps" in rest
        finally:
            watching.kill()
        log = (run / "logs" / "rl.out").read_text()
        assert log.startswith("RL: ") and "SIGTERM" in log and f"Stopped after {ended} of {STEPS} steps" in log

        before = snapshot(run)
        with contextlib.chdir(folder):
            for line in ("list . --all", "show out", "ledger out", "attach out"):
                assert main(["runs", *line.split()]) == 0
        assert snapshot(run) == before, "looking at a run wrote into it"


def test_what_preflight_refuses_is_the_commands_own_error(folder: Path, tiny_model_dir: Path) -> None:
    refused = hone(folder, *flags(tiny_model_dir, "--seq-len", "9000"))
    assert refused.returncode == 2 and not (folder / "out").exists()
    assert refused.stdout == "" and refused.stderr.count("\n") == 1, refused.stdout + refused.stderr
    assert refused.stderr.startswith("error: seq_len = 9000 exceeds the model's context"), refused.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_run_began_ends_it(folder: Path, tiny_model_dir: Path, number: int) -> None:
    (folder / "environments" / "slow.py").write_text("import time\ntime.sleep(600)\n")
    with terminal([HONE, *flags(tiny_model_dir)], folder) as one:
        until(lambda: children(one.process.pid), "no process was started")
        started = children(one.process.pid)
        os.kill(one.process.pid, number)
        assert "Stopped before the run began." in one.read_until(None)
        assert one.process.wait(DEADLINE) == 128 + number
    wait_until_gone(started)
    assert not (folder / "out").exists()
