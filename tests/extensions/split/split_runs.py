"""Real runs in several processes, started from the command line, watched and killed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from processes import until

from hone.processes import free_port

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 900
"""What counts as hung."""
HELD_AT = 6
"""Steps after which a run waits while it is held: it can't come to its end before a test has done to it what it means
to, however late that is."""
HOLD = '''
def wait_while_held():
    """For graders: until FOLDER/held is removed, once so many steps of FOLDER/out are recorded as it says."""
    import time
    from pathlib import Path

    held, metrics = Path(FOLDER, "held"), Path(FOLDER, "out", "metrics.jsonl")
    while metrics.exists():
        try:
            if metrics.read_text().count("\\n") < int(held.read_text()):
                return
        except FileNotFoundError:
            return
        time.sleep(0.02)
'''

STEPS, PROMPTS = 8, 3
TASK = '''
"""reverse-text, with a grader that can be held, and breaks while a file says so."""

from pathlib import Path

import reverse_text
from hone.environments import Rubric


def similarity(completion, answer, parser):
    wait_while_held()
    if Path(FOLDER, "broken").exists():
        raise ValueError("the grader is broken")
    return reverse_text.similarity(completion, answer, parser)


def load_environment():
    env = reverse_text.load_environment()
    env.rubric = Rubric([similarity])
    return env
'''


def free_ports(count: int) -> int:
    """The first of so many free ports in a row."""
    while True:
        first = free_port()
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError, OverflowError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first


def alive(*marks: object) -> dict[int, str]:
    """Living processes whose command line or environment names one of the marks: command lines by id."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                variables = (entry / "environ").read_bytes().decode(errors="replace")
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if state != "Z" and any(str(mark) in command + variables for mark in marks):
                found[int(entry.name)] = command
    return found


class Command:
    """`hone ARGV` at work, in a process of its own; `mark` is in the environment of it and of all that it starts."""

    def __init__(self, argv: list[str], cwd: Path, **env: str) -> None:
        self.mark = f"{cwd}-{time.monotonic_ns()}"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hone.cli", *argv],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"TEST_MARK": self.mark} | env,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def says(self, text: str) -> None:
        until(lambda: text in self.output or self.process.poll() is not None)
        if self.process.poll() is not None:
            self._reader.join(60)
        assert text in self.output, self.output

    def signal(self, signum: int) -> None:
        self.process.send_signal(signum)

    def ended(self) -> int:
        """Its exit code; nothing that it started is left."""
        code = self.process.wait(SECONDS)
        self._reader.join(60)
        until(lambda: not alive(self.mark))
        return code

    def kill(self) -> None:
        for pid in alive(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


class Run(Command):
    """`rl` in several processes, into `out`."""

    def __init__(self, argv: list[str], out: Path, **env: str) -> None:
        super().__init__(["rl", *argv, "--output-dir", out.name], out.parent, **env)
        self.out = out

    def pids(self, role: str) -> list[int]:
        """The processes of a role, in the order of their ranks."""
        self.says("To save and end all")
        return sorted(pid for pid, command in alive(self.mark).items() if f" hone.cli {role} @ " in command)

    def hold(self, at: int = HELD_AT) -> None:
        """Makes a run whose graders `wait_while_held` wait at this step, until `let_go` or another one."""
        new = self.out.parent / "held.new"
        new.write_text(str(at))
        new.rename(self.out.parent / "held")

    def let_go(self) -> None:
        (self.out.parent / "held").unlink()

    def steps(self) -> int:
        metrics = self.out / "metrics.jsonl"
        return metrics.read_text().count("\n") if metrics.exists() else 0

    def at_step(self, step: int) -> None:
        until(lambda: self.steps() >= step or self.process.poll() is not None)
        assert self.process.poll() is None, self.output


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def hone(cwd: Path, *argv: str) -> str:
    command = [sys.executable, "-m", "hone.cli", *argv]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True).stdout


def draws(out: Path) -> dict[str, int]:
    """How many draws ended in which state, as `hone runs ledger` counts them."""
    (line,) = re.findall(
        r"^draws +(\d+) in \d+ steps?: (.+)$", hone(out.parent, "runs", "ledger", out.name), re.MULTILINE
    )
    states = {state: int(count) for count, state in re.findall(r"(\d+) ([a-z]+)", line[1])}
    assert sum(states.values()) == int(line[0])
    return states


def write_task(folder: Path) -> None:
    (folder / "held_task.py").write_text(f"FOLDER = {str(folder)!r}\n{HOLD}\n{TASK}")


def small_run(warm: Path) -> list[str]:
    return [
        *("--model.name", str(warm), "--max-steps", str(STEPS), "--seed", "3", "--precision", "fp32", "--no-audit"),
        *("--seq-len", "96", "--ckpt.interval", "2", "--trainer.optim.lr", "1e-3", "--display", "plain"),
        *("--orchestrator.batch-size", str(4 * PROMPTS), "--orchestrator.rollouts-per-example", "4"),
        *("--orchestrator.sampling.max-tokens", "16", "--orchestrator.env.id", "held-task"),
    ]


def consumed_once(out: Path, *more: str) -> None:
    """The run is done, and each of its draws came to one end, in one step."""
    assert [record["step"] for record in records(out / "metrics.jsonl")][:STEPS] == list(range(STEPS))
    states = draws(out)
    assert sum(states.values()) == STEPS * PROMPTS and set(states) <= {"trained", "filtered", *more}, states
    assert not (out / ".transport").exists() and (out / "weights" / f"step_{STEPS}" / "model.safetensors").exists()
