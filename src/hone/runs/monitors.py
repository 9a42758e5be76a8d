"""Monitors: services that follow a run besides its own files, Weights & Biases and Trackio.

A service's client lives in a child process (`trackers.py`), which a thread talks to. So a client that raises, hangs,
prints, or reads the network costs the run neither a byte nor a second.
"""

from __future__ import annotations

import importlib.util
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hone.config.shared import RunConfig
from hone.errors import UserError
from hone.runs.observer import Observer

if TYPE_CHECKING:
    from hone.runs.alarms import Alarm
    from hone.runs.writer import RunWriter

INSTALL = {"wandb": "pip install wandb", "trackio": "pip install 'trackio>=0.43'"}
"""The command that installs the package of a monitor."""
WAITING = 10_000
"""Messages that may wait for a monitor: of each step one or two, of some KB."""
SILENT_SECONDS = 120.0
"""A monitor that takes this long for one message hangs. Above the 90 s that W&B's start may take."""
FINISH_SECONDS = 30.0
"""Seconds that the end of a run waits for all its monitors together."""
COLUMNS = ("step", "prompt", "completion", "reward", "components", "outcome", "advantage")
"""Of the tables of samples."""
TEXT = 4000
"""Longest text in a cell, in characters."""
_NICENESS = 5
_DEFAULT_ENVIRONMENT = {
    "WANDB_DISABLE_WEAVE": "true",  # it advertises its tracing product wherever `openai` is installed
    "WANDB_ERROR_REPORTING": "false",  # to its makers
    "HF_HUB_DISABLE_TELEMETRY": "1",
}


class Monitors(Observer):
    """All monitors that a run's config asks for. Nothing here waits for them, except `at_end`."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self.clients: list[Client] = []

    def check(self, training: Any) -> None:
        if training is not None:
            self._config = training.config  # with the task that a program gave
        for name in _asked_for(self._config):
            spec = importlib.util.find_spec(name)
            if spec is None or spec.origin is None:  # without an origin it is a folder of that name: wandb leaves one
                raise UserError(f"--{name} needs the package {name}, which is not installed: {INSTALL[name]}")

    def before_start(self, run: RunWriter) -> None:
        self.run = run
        run.note(**identity(self._config, run.info))
        config = self._config.model_dump(mode="json")
        for name in _asked_for(self._config):
            client = Client(name, run.folder / "logs" / f"{name}.log")
            client.send("start", str(run.folder.absolute()), dict(run.info), config[name], config, os.getpid())
            self.clients.append(client)

    def after_step(self, step: int, metrics: Mapping[str, Any], timings: Mapping[str, Any]) -> None:
        active = {f"alarm/{name}": 1.0 for name in self.run.alarms.active}
        values = {**timings, **metrics, **active}.items()
        self._send("log", step, {name: value for name, value in values if value is not None and name != "step"})

    def rollouts(self, step: int, rows: list[dict[str, Any]]) -> None:
        for client in self.clients:
            settings = getattr(self._config, client.name)
            if step % settings.samples_interval == 0 or step == self._config.max_steps - 1:
                client.send("samples", step, chosen(rows, settings.samples))

    def alarm(self, alarm: Alarm) -> None:
        self._send("alarm", alarm.step, alarm.name, alarm.text)

    def at_end(self, status: str) -> None:
        """Wait until they have sent what they have, `FINISH_SECONDS` at most."""
        self._send("finish", status)
        until = time.monotonic() + FINISH_SECONDS
        try:
            for client in self.clients:
                client.wait(until)
        except KeyboardInterrupt:
            for client in self.clients:
                client.fail("interrupted before it was done")
        self._report()
        self.clients = []

    def _send(self, method: str, *args: Any) -> None:
        for client in self.clients:
            client.send(method, *args)
        self._report()

    def _report(self) -> None:
        """Show what clients answered, and which of them failed, once."""
        for client in list(self.clients):
            while not client.notes.empty():
                self.run.display.message(client.notes.get())
            if client.failure is not None:
                self.clients.remove(client)
                with suppress(OSError):  # a full disk stops the run where it has something of its own to write
                    self.run.event("monitor_failed", None, monitor=client.name, cause=client.failure)
                self.run.display.message(f"{client.name} failed ({client.failure}); the run goes on without it.")


class Client:
    """A monitor's client (`wandb` or `trackio`) in a process of its own, and the daemon thread that talks to it.

    What the process prints goes to `log`. After a failure (`failure` is its cause) it gets no more messages. The end of
    its socket tells the process that the run is gone.
    """

    def __init__(self, name: str, log: Path):
        self.name = name
        self.failure: str | None = None
        self.notes: queue.SimpleQueue[str] = queue.SimpleQueue()
        """Answers for the user."""
        self.queue: queue.Queue[tuple[str, tuple[Any, ...]]] = queue.Queue(WAITING)
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._busy_since: float | None = None
        self._thread = threading.Thread(target=self._work, name=f"monitor {name}", daemon=True)
        self._thread.start()

    def send(self, method: str, *args: Any) -> None:
        """Have the process call `method` with `args` (JSON), after what it was sent before."""
        since = self._busy_since
        if since is not None and time.monotonic() - since > SILENT_SECONDS:
            self.fail(f"no answer for {SILENT_SECONDS:.0f} s")
        if self.failure is not None:
            return
        try:
            self.queue.put_nowait((method, args))
        except queue.Full:
            self.fail(f"{WAITING} messages behind")

    def wait(self, until: float) -> None:
        """Wait for the end of `finish`, at most until the monotonic clock shows `until`."""
        self._thread.join(max(0.0, until - time.monotonic()))
        self.fail(f"not done {FINISH_SECONDS:.0f} s after the end of the run")

    def fail(self, cause: str) -> None:
        """Leave it behind, and kill its process; one that is done did not fail."""
        if self._thread.is_alive():
            self.failure = self.failure or cause
        if self._process is not None and self._process.poll() is None:
            with suppress(ProcessLookupError, PermissionError, subprocess.TimeoutExpired):
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait(1)

    def _work(self) -> None:
        try:
            stream = self._start()
            method = ""
            while method != "finish" and self.failure is None:
                method, args = self.queue.get()
                self._busy_since = time.monotonic()
                stream.write(json.dumps([method, args]).encode() + b"\n")
                stream.flush()
                answer = json.loads(stream.readline() or '{"failed": "its process ended"}')
                self._busy_since = None
                self.queue.task_done()
                if "failed" in answer:
                    self.fail(f"{answer['failed']}; see {self._log}")
                elif answer["note"]:
                    self.notes.put(answer["note"])
        except Exception as error:
            self.fail(f"{error}; see {self._log}")
        if self.failure is not None:
            self.fail(self.failure)  # kills what `_start` began after it was left behind

    def _start(self) -> Any:
        """Start the process; returns the stream to it."""
        ours, childs = socket.socketpair()
        with ours, childs, open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                # -P: the current directory stays off the path.
                [sys.executable, "-P", "-m", "hone.runs.trackers", self.name, str(childs.fileno())],
                stdin=subprocess.DEVNULL,  # nothing asks for a login
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[childs.fileno()],
                start_new_session=True,  # Ctrl-C is not for it
                env=_DEFAULT_ENVIRONMENT | dict(os.environ) | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
            os.setpriority(os.PRIO_PROCESS, self._process.pid, _NICENESS)  # the run goes first
            return ours.makefile("rwb")


def _asked_for(config: RunConfig) -> list[str]:
    """Return the names of the monitors that the config asks for."""
    return [name for name in INSTALL if getattr(config, name) is not None]


def identity(config: RunConfig, info: dict[str, Any]) -> dict[str, Any]:
    """Return the facts for run.json (`info`) that say where each monitor has the run.

    A resumed run goes on where it was: what run.json has comes before the environment, but not before a flag.
    """
    facts: dict[str, Any] = {}
    if config.wandb is not None:
        before = info.get("wandb") or {}
        project = config.wandb.project or before.get("project") or os.environ.get("WANDB_PROJECT") or "hone"
        entity = config.wandb.entity or before.get("entity") or os.environ.get("WANDB_ENTITY")
        facts["wandb"] = {"project": project, "entity": entity}
        # A sweep (`wandb agent`) has made the W&B run already, and names it there.
        facts["wandb_id"] = info.get("wandb_id") or os.environ.get("WANDB_RUN_ID") or info["id"]
    if config.trackio is not None:
        name = config.trackio.name or (info.get("trackio") or {}).get("name") or info["id"]
        facts["trackio"] = {"project": config.trackio.project, "name": name}
    return facts


def chosen(rows: Sequence[dict[str, Any]], count: int) -> list[list[Any]]:
    """Return `count` of a step's rollout rows (`hone.runs.rollouts.schema`), spread evenly from the best reward to the
    worst, as rows of `COLUMNS`. Those without a reward come last.
    """
    ordered = sorted(rows, key=lambda row: -float("inf") if row["reward"] is None else row["reward"], reverse=True)
    count = min(count, len(rows))
    places = [round(place * (len(rows) - 1) / max(1, count - 1)) for place in range(count)]
    return [_cells(ordered[place]) for place in places]


def _cells(row: dict[str, Any]) -> list[Any]:
    return [
        row["step"],
        cut(_conversation(row["prompt"])),
        cut(_conversation(row["completion"]) if row.get("completion") else row["text"]),
        None if row["reward"] is None else round(float(row["reward"]), 6),
        ", ".join(f"{name} {value:.6g}" for name, value in dict(row["components"]).items()),
        row["outcome"],
        round(float(row["advantage"]), 6),
    ]


def _conversation(messages: str) -> str:
    """Return messages (JSON) as text: `role: content`, with an empty line between two."""
    parts = []
    for message in json.loads(messages):
        calls = message.get("tool_calls")
        text = "\n".join(part for part in (message.get("content") or "", json.dumps(calls) if calls else "") if part)
        parts.append(f"{message['role']}: {text}")
    return "\n\n".join(parts)


def cut(text: str) -> str:
    """Return the text; of a long one beginning and end, with a mark of how much is left out."""
    if len(text) <= TEXT:
        return text
    half = TEXT // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
