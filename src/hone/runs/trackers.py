"""The process that a monitor's client lives in: python -P -m hone.runs.trackers NAME FD

Reads JSON lines `[method, [arguments]]` from the socket FD, and answers each with a line: `{"note": text or null}`, or
`{"failed": cause}`, which ends it. The first is `start`. When the socket ends without `finish`, the run was killed.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
import threading
import traceback
from typing import Any

from hone.runs.monitors import COLUMNS, FINISH_SECONDS


class Tracker:
    """A client with W&B's functions: `init`, which makes a run with `log`, `alert` and `finish`; and `Table`.

    Any method may raise; what it returns is shown to the user. `start` begins the tracker's run or goes on with it:
    `info` is run.json, `settings` the config's section of this tracker, `config` is shown there, `pid` is the run's.
    """

    def __init__(self, name: str):
        self.client: Any = importlib.import_module(name)
        self.run: Any = None

    def log(self, step: int, values: dict[str, Any]) -> None:
        """Send the values of a step."""
        self.run.log(values, step=step)

    def samples(self, step: int, rows: list[list[Any]]) -> None:
        """Send a table of completions; rows of `hone.runs.monitors.COLUMNS`."""
        self.log(step, {"samples": self.client.Table(columns=list(COLUMNS), data=rows)})

    def alarm(self, step: int, name: str, text: str) -> None:
        """Send an alert, which the service lists and can mail."""
        self.run.alert(title=f"{name} at step {step}"[:63], text=text, level=self.client.AlertLevel.WARN)

    def finish(self, status: str) -> None:
        """Send what is left and end the tracker's run."""
        self.run.finish()


class Wandb(Tracker):
    """Weights & Biases. Its files lie in `wandb/` inside the run directory.

    The axis is hone's own step counter, not the client's, which only grows: steps that a resume takes again are drawn
    where they belong.
    """

    def start(
        self, folder: str, info: dict[str, Any], settings: dict[str, Any], config: dict[str, Any], pid: int
    ) -> str | None:
        sys.argv = info["command"] or sys.argv  # which W&B shows
        mode = settings["mode"] or os.environ.get("WANDB_MODE") or "online"
        self.run = self.client.init(
            **info["wandb"],
            name=settings["name"],
            group=settings["group"],
            tags=settings["tags"] or None,
            mode=mode,
            dir=folder,
            id=info["wandb_id"],
            resume="allow" if mode == "online" else None,
            job_type=info["kind"],
            config=config,
            # pid: the load that its charts show is the run's.
            settings=self.client.Settings(console="off", silent=True, x_stats_pid=pid),
        )
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")
        if self.run.offline:
            return f"W&B, offline; to send it: wandb sync {os.path.relpath(os.path.dirname(self.run.dir))}"
        return f"W&B: {self.run.url}" if self.run.url else None

    def log(self, step: int, values: dict[str, Any]) -> None:
        self.run.log(values | {"step": step})

    def finish(self, status: str) -> None:
        self.run.finish(exit_code=0 if status in ("done", "stopped", "budget") else 1)


class Trackio(Tracker):
    """Trackio, on this machine: a project is one SQLite file, in TRACKIO_DIR (`~/.cache/huggingface/trackio`)."""

    def start(
        self, folder: str, info: dict[str, Any], settings: dict[str, Any], config: dict[str, Any], pid: int
    ) -> str | None:
        resume = "allow" if info["resumes"] else "never"
        self.run = self.client.init(
            **info["trackio"], group=settings["group"], config=config, resume=resume, embed=False
        )
        return f"Trackio: trackio show --project {info['trackio']['project']}"


def main(name: str, fd: int) -> None:
    """Serve one run."""
    os.set_inheritable(fd, False)  # else what the client starts keeps the line open when this process has died
    stream = socket.socket(fileno=fd).makefile("rwb")
    tracker: Any = None
    try:
        for line in stream:
            method, args = json.loads(line)
            try:
                tracker = tracker or {"wandb": Wandb, "trackio": Trackio}[name](name)
                answer = {"note": getattr(tracker, method)(*args)}
            except BaseException as error:
                traceback.print_exc()
                answer = {"failed": "".join(traceback.format_exception_only(error)).strip().splitlines()[0]}
            stream.write(json.dumps(answer).encode() + b"\n")
            stream.flush()
            if method == "finish" or "failed" in answer:
                return
        if tracker is not None:  # the run was killed
            threading.Timer(FINISH_SECONDS, os._exit, [1]).start()
            tracker.finish("failed")
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(0)  # what clients do at the exit of an interpreter may wait for ever


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
