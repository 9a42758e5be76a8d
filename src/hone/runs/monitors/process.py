"""A tracker whose client lives in a child process: nothing that it does, prints, imports or waits for is the run's."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from hone.config.shared import RunConfig, TrackioConfig, WandbConfig
from hone.runs.monitors import MonitorError

_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    "PYTHONUTF8": "1",
}
_UNLESS_SET = {
    "WANDB_DISABLE_WEAVE": "true",  # it advertises its tracing product wherever `openai` is installed
    "WANDB_ERROR_REPORTING": "false",  # to its makers
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
_NICENESS = 5


class TrackerProcess:
    """The monitor of a run that is kept by the client `name` ("wandb" or "trackio"), in a process of its own.

    Made without a process; `start` starts it. What it prints goes to `logs/<name>.log` of the run. When the run's
    process is gone, it sees that by the end of the socket, and ends.
    """

    def __init__(self, name: str, settings: WandbConfig | TrackioConfig, max_steps: int):
        self.name = name
        self._settings = settings
        self._last = max_steps - 1
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, folder: Path, info: dict[str, Any], config: RunConfig) -> str | None:
        ours, childs = socket.socketpair()
        with childs, open(folder / "logs" / f"{self.name}.log", "ab") as log:
            self._process = subprocess.Popen(
                # -P: the current directory stays off the path.
                [sys.executable, "-P", "-m", "hone.runs.monitors.child", self.name, str(childs.fileno())],
                stdin=subprocess.DEVNULL,  # nothing asks for a login
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[childs.fileno()],
                start_new_session=True,  # Ctrl-C is not for it
                env=_UNLESS_SET | dict(os.environ) | _ENVIRONMENT,
            )
        self._output, self._stream = log.name, ours.makefile("rwb")
        ours.close()
        os.setpriority(os.PRIO_PROCESS, self._process.pid, _NICENESS)  # the run goes first
        settings, whole = self._settings.model_dump(mode="json"), config.model_dump(mode="json")
        return self._ask("start", str(folder.absolute()), info, settings, whole, os.getpid())

    def log(self, step: int, metrics: dict[str, Any], timings: dict[str, Any]) -> None:
        self._ask("log", step, metrics, timings)

    def samples_of(self, step: int) -> int:
        """Of steps 0, every `samples_interval`, and the last one."""
        due = step % self._settings.samples_interval == 0 or step == self._last
        return self._settings.samples if due else 0

    def samples(self, step: int, rows: list[list[Any]]) -> None:
        self._ask("samples", step, rows)

    def alarm(self, step: int, name: str, text: str, action: str) -> None:
        self._ask("alarm", step, name, text, action)

    def finish(self, status: str) -> str | None:
        return self._ask("finish", status)

    def abandon(self) -> None:
        """Kill the process, if it hasn't ended by itself."""
        if self._process is None or self._process.poll() is not None:
            return
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(1)
        except (ProcessLookupError, PermissionError, subprocess.TimeoutExpired):
            pass

    def _ask(self, method: str, *args: Any) -> str | None:
        """Have the process call `method`, and wait for its answer. MonitorError with what went wrong there."""
        assert self._process is not None
        try:
            self._stream.write(json.dumps([method, args]).encode() + b"\n")
            self._stream.flush()
            line = self._stream.readline()
        except OSError:
            line = b""
        if not line:
            raise MonitorError(f"its process ended with code {self._process.wait()}: see {self._output}")
        answer = json.loads(line)
        if "failed" in answer:
            raise MonitorError(answer["failed"])
        return answer["note"]
