"""Monitors: services that follow a run besides its own files. Weights & Biases and Trackio, through one code.

A service's client lives in a child process (`trackers.py`), which a thread of its own talks to. So a client that
raises, hangs, prints, or reads the network costs the run neither a byte nor a second.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hone.config.shared import RunConfig, TrackioConfig, WandbConfig
from hone.errors import UserError
from hone.runs.observer import Observer

if TYPE_CHECKING:
    from hone.runs.alarms import Alarm
    from hone.runs.writer import RunWriter

PROJECT = "hone"
"""The W&B project where neither flag nor environment names one."""
INSTALL = {"wandb": "pip install wandb", "trackio": "pip install 'trackio>=0.43'"}
"""The command that installs the package of a monitor."""
WAITING = 10_000
"""Messages that may wait for a monitor: of each step one or two, of some KB."""
SILENT_SECONDS = 120.0
"""A monitor that takes this long for one message hangs. Above the minute that W&B's start may take."""
FINISH_SECONDS = 30.0
"""How long the end of a run waits for its monitors, all together."""
COLUMNS = ("step", "prompt", "completion", "reward", "components", "outcome", "advantage")
"""Of the tables of samples."""
TEXT = 4000
"""Longest text in a cell, in characters."""
_NICENESS = 5
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


class MonitorError(Exception):
    """What went wrong with a monitor: the text says all."""


class Monitors(Observer):
    """All monitors that a run's config asks for. Everything here is called by the run's own thread, and returns at once
    but for `at_end`. A monitor that failed is reported to the user, once.
    """

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._trackers: list[TrackerProcess] = []
        self._all: list[Background] = []

    @property
    def idle(self) -> bool:
        """True if they are done with all that they were told."""
        return all(one.idle for one in self._all)

    def check(self, training: Any) -> None:
        if training is not None:
            self._config = training.config  # with the task that a program gave
        self._trackers = make_monitors(self._config)

    def before_start(self, run: RunWriter) -> None:
        self.run = run
        run.note(**tracked(self._config, run.info))
        for text in warnings(self._config):
            run.display.message(text)
        self._all = [Background(tracker) for tracker in self._trackers]
        self._tell("start", run.folder, dict(run.info), self._config)

    def after_step(self, step: int, metrics: Mapping[str, Any], timings: Mapping[str, Any]) -> None:
        active = {f"alarm/{name}": 1.0 for name in self.run.alarms.active}
        self._tell("log", step, {**metrics, **active}, timings)

    def rollouts(self, step: int, rows: list[dict[str, Any]]) -> None:
        for one in self._all:
            # Chosen here, so that what waits for a slow monitor is a few rows, not the step's tokens.
            if count := one.monitor.samples_of(step):
                one.tell("samples", step, chosen(rows, count))

    def alarm(self, alarm: Alarm) -> None:
        text = f"{alarm.finding.evidence}. What helps: {alarm.finding.advice}."
        self._tell("alarm", alarm.step, alarm.name, text, alarm.action)

    def at_end(self, status: str) -> None:
        """Wait until they have sent what they have, `FINISH_SECONDS` at most."""
        self._tell("finish", status)
        until = time.monotonic() + FINISH_SECONDS
        try:
            for one in self._all:
                one.wait(until)
        except KeyboardInterrupt:
            for one in self._all:
                one.fail("interrupted before it was done")
        self._report()
        self._all = []

    def _tell(self, method: str, *args: Any) -> None:
        for one in self._all:
            one.tell(method, *args)
        self._report()

    def _report(self) -> None:
        for one in list(self._all):
            while not one.notes.empty():
                self.run.display.message(one.notes.get())
            if one.failure is not None:
                self._all.remove(one)
                name, cause = one.monitor.name, one.failure
                with suppress(OSError):  # a full disk stops the run where it has something of its own to write
                    self.run.event("monitor_failed", None, monitor=name, cause=cause)
                self.run.display.message(f"{name} failed ({cause}); the run goes on without it.")


class Background:
    """One monitor, in a daemon thread. Once it failed (`failure` says how) it gets nothing more."""

    def __init__(self, monitor: TrackerProcess):
        self.monitor = monitor
        self.failure: str | None = None
        self.notes: queue.SimpleQueue[str] = queue.SimpleQueue()
        """What it has to say to the user."""
        self._queue: queue.Queue[tuple[str, tuple[Any, ...]]] = queue.Queue(WAITING)
        self._busy_since: float | None = None
        self._thread = threading.Thread(target=self._work, name=f"monitor {monitor.name}", daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        """True if it is done with all that it was told."""
        return self._queue.unfinished_tasks == 0 or self.failure is not None

    def tell(self, method: str, *args: Any) -> None:
        """Have `method` called, after what it was told before."""
        since = self._busy_since
        if since is not None and time.monotonic() - since > SILENT_SECONDS:
            self.fail(f"no answer for {SILENT_SECONDS:.0f} s")
        if self.failure is not None:
            return
        try:
            self._queue.put_nowait((method, args))
        except queue.Full:
            self.fail(f"{WAITING} messages behind")

    def wait(self, until: float) -> None:
        """Wait for the end of `finish`, at most until the monotonic clock says `until`."""
        self._thread.join(max(0.0, until - time.monotonic()))
        self.fail(f"not done {FINISH_SECONDS:.0f} s after the end of the run")

    def fail(self, cause: str) -> None:
        """Leave it behind; one that is done did not fail."""
        if self._thread.is_alive():
            self.failure = self.failure or cause
        self.monitor.abandon()

    def _work(self) -> None:
        method = ""
        while method != "finish" and self.failure is None:
            method, args = self._queue.get()
            self._busy_since = time.monotonic()
            try:
                note = getattr(self.monitor, method)(*args)
            except BaseException as error:
                self.fail(str(error) if isinstance(error, MonitorError) else cause_of(error))
                return
            self._busy_since = None
            self._queue.task_done()
            if note:
                self.notes.put(note)
        self.monitor.abandon()  # what it started, if it was left behind meanwhile


class TrackerProcess:
    """The monitor of a run that is kept by the client `name` ("wandb" or "trackio"), in a process of its own.

    Any method may raise, or never return, but `abandon`. What `start` and `finish` return is shown to the user. What
    the process prints goes to `logs/<name>.log` of the run; the end of its socket tells it that the run is gone.
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
                [sys.executable, "-P", "-m", "hone.runs.trackers", self.name, str(childs.fileno())],
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
        """Return how many completions of the step it takes: of steps 0, every `samples_interval`, and the last one."""
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
        with suppress(ProcessLookupError, PermissionError, subprocess.TimeoutExpired):
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(1)

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


def cause_of(error: BaseException) -> str:
    """Return the kind of an error, and the first line of its message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def make_monitors(config: RunConfig) -> list[TrackerProcess]:
    """Return the monitors that the config asks for, not started yet. UserError if a package is missing."""
    monitors = []
    for name, settings in (("wandb", config.wandb), ("trackio", config.trackio)):
        if settings is None:
            continue
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # without an origin it is a folder of that name: wandb leaves one
            raise UserError(f"--{name} needs the package {name}, which is not installed: {INSTALL[name]}")
        monitors.append(TrackerProcess(name, settings, config.max_steps))
    return monitors


def warnings(config: RunConfig) -> Iterator[str]:
    """Yield what W&B will most likely lack, before the first step, while it can still be mended in no time."""
    if config.wandb is None:
        return
    mode = config.wandb.mode or os.environ.get("WANDB_MODE") or "online"
    if mode == "disabled" and config.wandb.mode is None:
        yield (
            "W&B is off, by WANDB_MODE=disabled in the environment: it gets nothing of this run (--wandb.mode comes "
            "before that)."
        )
    elif mode == "online" and not _may_log_in():
        yield (
            "W&B finds no login here, it seems (neither WANDB_API_KEY nor what `wandb login` writes): it would get "
            "nothing of this run. --wandb.mode offline needs none, and `wandb sync` sends it later."
        )


def _may_log_in() -> bool:
    """Return True if something is there that W&B's client may log in with. What is in it is the client's to read."""
    if any(os.environ.get(name) for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")):
        return True
    named = os.environ.get("NETRC")
    places = [Path(named).expanduser()] if named else [Path.home() / name for name in (".netrc", "_netrc")]
    return any(place.is_file() for place in places)


def tracked(config: RunConfig, info: dict[str, Any]) -> dict[str, Any]:
    """Return what run.json (`info`) says of the trackers that are on: where the run is found there.

    A resumed run goes on where it was: what run.json has comes before the environment, but not before a flag.
    """
    facts: dict[str, Any] = {}
    if config.wandb is not None:
        before = info.get("wandb") or {}
        project = config.wandb.project or before.get("project") or os.environ.get("WANDB_PROJECT") or PROJECT
        entity = config.wandb.entity or before.get("entity") or os.environ.get("WANDB_ENTITY")
        facts["wandb"] = {"project": project, "entity": entity}
        # A sweep (`wandb agent`) has made the W&B run already, and names it there.
        facts["wandb_id"] = info.get("wandb_id") or os.environ.get("WANDB_RUN_ID") or info["id"]
    if config.trackio is not None:
        name = config.trackio.name or (info.get("trackio") or {}).get("name") or info["id"]
        facts["trackio"] = {"project": config.trackio.project, "name": name}
    return facts


def chosen(rows: Sequence[dict[str, Any]], count: int) -> list[list[Any]]:
    """Return at most `count` of a step's rollout rows (`hone.runs.rollouts.schema`) as rows of `COLUMNS`, in order.

    The best, the worst and the median by reward, then one of each outcome (the rarest first), then spread evenly over
    the rewards. No two of one group while there are others as good to take. The same rows give the same choice.
    """
    graded = [index for index in range(len(rows)) if rows[index]["reward"] is not None]
    by_reward = sorted(graded, key=lambda index: -rows[index]["reward"])  # stable: the first of equals
    failed = [index for index in range(len(rows)) if rows[index]["reward"] is None]
    outcomes: dict[str, list[int]] = {}
    for index in [*by_reward, *failed]:
        outcomes.setdefault(rows[index]["outcome"], []).append(index)
    spread = [len(by_reward) // 2, *range(0, len(by_reward), max(1, len(by_reward) // max(1, count)))]
    median, *others = [by_reward[place:] + by_reward[:place] for place in spread]
    picked: list[int] = []
    for candidates in [by_reward, by_reward[::-1], median, *sorted(outcomes.values(), key=len), *others, failed]:
        left = [index for index in candidates if index not in picked]
        if left and len(picked) < count:
            worth = lambda index: (rows[index]["reward"], rows[index]["outcome"])  # noqa: E731
            groups = {rows[index]["group"] for index in picked}
            equals = (index for index in left if worth(index) == worth(left[0]) and rows[index]["group"] not in groups)
            picked.append(next(equals, left[0]))
    return [_cells(rows[index]) for index in sorted(picked)]


def _cells(row: dict[str, Any]) -> list[Any]:
    components = row["components"]
    values = dict(components.items() if isinstance(components, dict) else components)
    cells = {
        "step": row["step"],
        "prompt": cut(_conversation(row["prompt"])),
        "completion": cut(_conversation(row["completion"]) if row.get("completion") else row["text"]),
        "reward": None if row["reward"] is None else round(float(row["reward"]), 6),
        "components": ", ".join(f"{name} {value:.6g}" for name, value in values.items()),
        "outcome": row["outcome"],
        "advantage": round(float(row["advantage"]), 6),
    }
    return [cells[name] for name in COLUMNS]


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
