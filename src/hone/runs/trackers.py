"""The process that a tracker's client lives in: python -P -m hone.runs.trackers NAME FD

Reads JSON lines `[method, [arguments]]` from the socket FD, and answers each with a line: `{"note": text or null}`, or
`{"failed": cause}`, which ends it. The first is `start`. When the socket ends without `finish`, the run was killed.
"""

from __future__ import annotations

import importlib
import json
import os
import shlex
import socket
import sys
import threading
import traceback
import warnings
from pathlib import Path
from typing import Any

from hone.runs.alarms import DONE
from hone.runs.monitors import COLUMNS, FINISH_SECONDS, cause_of

INIT_SECONDS = 60
"""How long W&B's client may take to reach its server at the start."""
UPLOAD_SECONDS = 25
"""How long it may take to send what is left at the end; less than the run waits for it."""
RUN = "hone_run"
"""Where the config that a tracker shows has the run's id."""
_LOST = "failed to save record"
"""What W&B's service writes into its log, and nowhere else, when it can't store something."""


class Tracker:
    """A client with W&B's functions: `init`, which makes a run with `log`, `alert` and `finish`; and `Table`.

    `settings` are those of the config's section; `info` is run.json; `pid` the process of the run. Any method may
    raise.
    """

    module: str

    def __init__(self, folder: Path, info: dict[str, Any], settings: dict[str, Any], pid: int):
        self.folder, self.info, self.settings, self.pid = folder, info, settings, pid
        self.client: Any = importlib.import_module(self.module)
        self.run: Any = None

    def log(self, step: int, metrics: dict[str, Any], timings: dict[str, Any]) -> None:
        """Send the values of a step, but for those that are null."""
        self.send(step, {n: value for n, value in (timings | metrics).items() if value is not None and n != "step"})

    def samples(self, step: int, rows: list[list[Any]]) -> None:
        """Send a table of completions; rows of `hone.runs.monitors.COLUMNS`."""
        self.send(step, {"samples": self.client.Table(columns=list(COLUMNS), data=rows)})

    def send(self, step: int, values: dict[str, Any]) -> None:
        raise NotImplementedError


class Wandb(Tracker):
    """Weights & Biases. Its files lie in `wandb/` inside the run directory.

    The axis is hone's own step counter, not that of the client, which only grows: steps that a resume takes again are
    drawn where they belong.
    """

    module = "wandb"

    def start(self, config: dict[str, Any]) -> str | None:
        """Begin the tracker's run, or go on with it; `config` is shown beside it. Returns where it is seen."""
        mode = self.settings["mode"] or os.environ.get("WANDB_MODE") or "online"
        self.run = self.client.init(
            **self.info["wandb"],
            name=self.settings["name"],
            group=self.settings["group"],
            tags=self.settings["tags"] or None,
            mode=mode,
            dir=self.folder,
            id=self.info["wandb_id"],
            resume="allow" if mode == "online" else None,
            job_type=self.info["kind"],
            config=config,
            settings=self.client.Settings(
                console="off",
                silent=True,
                init_timeout=INIT_SECONDS,
                finish_timeout=UPLOAD_SECONDS,
                finish_timeout_raises=True,
                program=self.info["command"][0] if self.info["command"] else None,
                x_stats_pid=self.pid,  # the load that its charts show is the run's
            ),
        )
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")
        if self.run.offline:
            return f"W&B, offline; to send it: wandb sync {os.path.relpath(Path(self.run.dir).parent)}"
        return f"W&B: {self.run.url}" if self.run.url else None

    def send(self, step: int, values: dict[str, Any]) -> None:
        self.run.log({"step": step} | values)

    def alarm(self, step: int, name: str, text: str, action: str) -> None:
        """Send an alert, which the service lists and can mail."""
        title, text = f"{name} at step {step}", f"{text}{DONE.get(action, '')}"
        self.run.alert(title=title[:63], text=text, level=self.client.AlertLevel.WARN)

    def finish(self, status: str) -> None:
        """Send what is left and end the tracker's run."""
        log = Path(self.run.settings.log_internal)
        self.run.finish(exit_code=0 if status in ("done", "stopped", "budget") else 1)
        if log.is_file() and (lost := [line for line in log.read_text().splitlines() if _LOST in line]):
            cause = lost[0].partition(_LOST)[2].rpartition(": ")[2]
            raise RuntimeError(f"{len(lost)} records or more are lost: {cause}")


class Trackio(Tracker):
    """Trackio, on this machine: a project is one SQLite file, in TRACKIO_DIR (`~/.cache/huggingface/trackio`).

    It never raises: what goes wrong it says as a Python warning, which is made an error here.
    """

    module = "trackio"

    def start(self, config: dict[str, Any]) -> str:
        """Begin the tracker's run, or go on with it. Trackio finds a run by its name only: one that is resumed is
        found by its config, and no two get one name.
        """
        self._warning: str | None = None
        warnings.simplefilter("always")
        warnings.showwarning = self._warned
        project, name = self.info["trackio"]["project"], self.info["trackio"]["name"]
        try:
            runs = {run.name: run.config or {} for run in self.client.Api().runs(project)}
        except ValueError:  # no such project yet
            runs = {}
        own = [other for other, theirs in runs.items() if theirs.get(RUN) == self.info["id"]]
        if not own and name in runs:
            name = f"{name}-{self.info['id']}"
        self.run = self.client.init(
            project=project,
            name=own[-1] if own else name,
            group=self.settings["group"],
            config=config,
            resume="must" if own else "never",
            embed=False,
        )
        self._check()
        kept = "".join(one for one in project if one.isalnum() or one in "-_")  # of the name Trackio keeps only these
        return f"Trackio: trackio show --project {shlex.quote(kept or 'default')}"

    def _warned(self, message: Warning | str, category: type[Warning], filename: str, *_: Any) -> None:
        print(f"{category.__name__}: {message}", flush=True)
        if Path(filename).parent == Path(self.client.__file__).parent and category is UserWarning:
            self._warning = self._warning or str(message)

    def _check(self) -> None:
        if self._warning is not None:
            raise RuntimeError(self._warning)

    def send(self, step: int, values: dict[str, Any]) -> None:
        self.run.log(values, step=step)
        self._check()

    def alarm(self, step: int, name: str, text: str, action: str) -> None:
        """Send an alert, which its page lists."""
        title, text = f"{name} at step {step}", f"{text}{DONE.get(action, '')}"
        self.run.alert(title=title, text=text, level=self.client.AlertLevel.WARN, step=step)
        self._check()

    def finish(self, status: str) -> None:
        """End the tracker's run."""
        self.run.finish()
        self._check()


def main(name: str, fd: int) -> None:
    """Serve one run."""
    os.set_inheritable(fd, False)  # else what the client starts keeps the line open when this process has died
    stream = socket.socket(fileno=fd).makefile("rwb")
    tracker: Any = None
    method = ""
    for line in stream:
        method, args = json.loads(line)
        try:
            if method == "start":
                folder, info, settings, config, pid = args
                sys.argv = info["command"] or sys.argv  # which W&B shows
                if name == "trackio" and not (os.environ.keys() & {"TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"}):
                    os.environ["HF_HUB_OFFLINE"] = "1"  # else it asks the hub who is logged in
                tracker = {"wandb": Wandb, "trackio": Trackio}[name](Path(folder), info, settings, pid)
                args = [config | {RUN: info["id"]}]
            answer = {"note": getattr(tracker, method)(*args)}
        except BaseException as error:
            traceback.print_exc()
            answer = {"failed": cause_of(error)}
        try:
            stream.write(json.dumps(answer).encode() + b"\n")
            stream.flush()
        except OSError:
            break  # the run is gone
        if "failed" in answer:
            _end(1)
        if method == "finish":
            _end(0)
    if tracker is not None:
        threading.Timer(FINISH_SECONDS, _end, [1]).start()
        try:
            tracker.finish("failed")
        except BaseException:
            traceback.print_exc()
    _end(1)


def _end(code: int) -> None:
    """End now: what clients do at the exit of an interpreter may wait for ever."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
