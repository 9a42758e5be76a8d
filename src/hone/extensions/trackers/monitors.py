"""Monitors send what a run records to a service: Weights & Biases or Trackio.

A service's client lives in a separate process (`trackers.py`), which reads the run's files. So a client that raises,
hangs, prints or reads the network doesn't affect the run.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hone.errors import UserError
from hone.processes import Process, wait_all
from hone.runs.observer import Observer
from hone.runs.view import PROCESS_LOGS

if TYPE_CHECKING:
    from hone.runs.writer import RunWriter

INSTALL = {"wandb": "pip install wandb", "trackio": "pip install 'trackio>=0.43'"}
"""The command that installs the package of a monitor."""
FINISH_SECONDS = 30.0
"""Seconds that a run waits at its end for all monitors together."""
_DEFAULT_ENVIRONMENT = {
    "WANDB_DISABLE_WEAVE": "true",  # it advertises its tracing product wherever `openai` is installed
    "WANDB_ERROR_REPORTING": "false",  # to its makers
    "HF_HUB_DISABLE_TELEMETRY": "1",
}


def observer(config: Any, by_program: bool) -> Observer | None:
    return None if config.wandb is None and config.trackio is None else Monitors(config)


class Monitors(Observer):
    """All monitors that a run's config asks for. Only `at_end` waits for them."""

    def __init__(self, config: Any) -> None:
        self._config = config
        self._names = [name for name in INSTALL if getattr(config, name) is not None]
        self._processes: dict[str, Process] = {}

    def check_config(self, config: Any, env: Any = None) -> None:
        for name in self._names:
            # Without an origin it is a folder of that name: wandb leaves one.
            if getattr(importlib.util.find_spec(name), "origin", None) is None:
                raise UserError(f"--{name} needs the package {name}, which is not installed: {INSTALL[name]}")

    def before_start(self, run: RunWriter) -> None:
        self.run = run
        # Each monitor's place for the run. For a resume a flag comes first, then run.json, then the environment.
        facts, info = {}, run.info
        if (wandb := self._config.wandb) is not None:
            before = info.get("wandb") or {}
            project = wandb.project or before.get("project") or os.environ.get("WANDB_PROJECT") or "hone"
            entity = wandb.entity or before.get("entity") or os.environ.get("WANDB_ENTITY")
            facts["wandb"] = {"project": project, "entity": entity}
            # A sweep (`wandb agent`) has made the W&B run already, and names it there.
            facts["wandb_id"] = info.get("wandb_id") or os.environ.get("WANDB_RUN_ID") or info["id"]
        if (trackio := self._config.trackio) is not None:
            name = trackio.name or (info.get("trackio") or {}).get("name") or info["id"]
            facts["trackio"] = {"project": trackio.project, "name": name}
        run.note(**facts)
        for name in self._names:
            with open(run.folder / PROCESS_LOGS / f"{name}.log", "ab") as log:
                process = Process(
                    # -P: the current directory stays off the path.
                    [sys.executable, "-P", "-m", f"{__package__}.trackers", name, str(run.folder), str(run.start_step)],
                    bufsize=0,
                    stdin=subprocess.DEVNULL,  # nothing asks for a login
                    stdout=subprocess.PIPE,  # lines for the user
                    stderr=log,
                    env=_DEFAULT_ENVIRONMENT | dict(os.environ) | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                )
            os.setpriority(os.PRIO_PROCESS, process.pid, 5)  # the run goes first
            os.set_blocking(process.stdout.fileno(), False)
            self._processes[name] = process

    def after_step(self, step: int, metrics: Mapping[str, Any], timings: Mapping[str, Any]) -> None:
        self._report()

    def at_end(self, status: str) -> None:
        """Wait until the monitors have sent everything, at most `FINISH_SECONDS`."""
        late = f"not done {FINISH_SECONDS:.0f} s after the end of the run"
        try:
            wait_all(list(self._processes.values()), FINISH_SECONDS)
        except KeyboardInterrupt:
            late = "interrupted before it was done"
        self._report()
        for name, process in list(self._processes.items()):
            process.kill()
            process.wait(1)
            self._fail(name, late)

    def _report(self) -> None:
        """Show what the processes print, and failures: the last line of a failed process is the cause."""
        for name, process in list(self._processes.items()):
            code = process.poll()
            lines = (process.stdout.read() or b"").decode(errors="replace").splitlines()
            if code:
                cause = lines.pop() if lines else "its process ended"
                self._fail(name, f"{cause}; see {self.run.folder / PROCESS_LOGS / name}.log")
            elif code == 0:
                del self._processes[name]
            for line in lines:
                self.run.display.message(line)

    def _fail(self, name: str, cause: str) -> None:
        del self._processes[name]
        with suppress(OSError):  # a full disk stops the run at its next file
            self.run.event("monitor_failed", None, monitor=name, cause=cause)
        self.run.display.message(f"{name} failed ({cause}); the run goes on without it.")
