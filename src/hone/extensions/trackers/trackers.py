"""The process that a monitor's client lives in: python -P -m hone.extensions.trackers.trackers NAME RUN FIRST_STEP

It sends the contents of the run's files, from FIRST_STEP on, to the service, until the run has ended or its process is
gone. Lines on stdout are for the user; if this process fails, the last line says why. The client prints to stderr.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from hone.extensions.trackers.monitors import FINISH_SECONDS
from hone.redaction import redact
from hone.runs.alarms import in_words
from hone.runs.reader import Run
from hone.runs.view import RunTail, rollouts_file

POLL = 0.5
"""Seconds between checks of the files."""
COLUMNS = ("step", "prompt", "completion", "reward", "components", "outcome", "advantage")
TEXT = 4000
"""Longest text in a cell, in characters."""


class Tracker:
    """A client with W&B's functions: `Table`, and `init`, which makes a run with `log`, `alert` and `finish`."""

    name = ""

    def __init__(self, run: Run):
        self.client: Any = importlib.import_module(self.name)
        self.config, self.info, self.folder = run.config, run.info, run.path
        self.settings = self.config.get(self.name, {})
        self.run: Any = None

    def log(self, step: int, values: dict[str, Any]) -> None:
        self.run.log(values, step=step)

    def finish(self, status: str) -> None:
        self.run.finish()


class Wandb(Tracker):
    """Weights & Biases. Its files are in `wandb/` in the run directory.

    The x axis is hone's step: the client's step only grows, but a resume repeats steps.
    """

    name = "wandb"

    def start(self) -> str | None:
        sys.argv = self.info["command"] or sys.argv  # which W&B shows
        mode = self.settings.get("mode") or os.environ.get("WANDB_MODE") or "online"
        self.run = self.client.init(
            **self.info["wandb"],
            name=self.settings.get("name"),
            group=self.settings.get("group"),
            tags=self.settings.get("tags"),
            mode=mode,
            dir=str(self.folder),
            id=self.info["wandb_id"],
            resume="allow" if mode == "online" else None,
            job_type=self.info["kind"],
            config=self.config,
            # pid: the load that its charts show is the run's.
            settings=self.client.Settings(console="off", silent=True, x_stats_pid=self.info["pid"]),
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

    name = "trackio"

    def start(self) -> str | None:
        self.run = self.client.init(
            **self.info["trackio"],
            group=self.settings.get("group"),
            config=self.config,
            resume="allow" if self.info["resumes"] else "never",
            embed=False,
        )
        return f"Trackio: trackio show --project {self.info['trackio']['project']}"


def send(tracker: Tracker, run: Run, first_step: int) -> None:
    """Send what the run writes from `first_step` on, until the run, or the process that writes it, has ended."""
    tail, settings = RunTail(run.path), tracker.settings
    while True:
        status = run.info["status"]
        status = "failed" if status in ("running", "paused") and os.getppid() != run.info["pid"] else status
        for metrics, timings in tail.steps():
            if (step := metrics["step"]) < first_step:
                continue
            is_last = step == tracker.config["max_steps"] - 1
            if (step % settings["samples_interval"] == 0 or is_last) and (run.path / rollouts_file(step)).exists():
                rows = chosen(run.rollouts(step).to_pylist(), settings["samples"])
                tracker.log(step, {"samples": tracker.client.Table(columns=list(COLUMNS), data=rows)})
            values = {**timings, **metrics}.items()
            tracker.log(step, {name: value for name, value in values if value is not None and name != "step"})
        for event in tail.events.new():
            if event["kind"] == "alarm" and event["step"] >= first_step:
                title, level = f"{event['name']} at step {event['step']}"[:63], tracker.client.AlertLevel.WARN
                tracker.run.alert(title=title, text=in_words(event), level=level)
        if status not in ("running", "paused"):
            threading.Timer(FINISH_SECONDS, os._exit, [1]).start()  # if nobody else ends it
            tracker.finish(status)
            return
        time.sleep(POLL)


def chosen(rows: Sequence[dict[str, Any]], count: int) -> list[list[Any]]:
    """Return `count` of a step's rows as `COLUMNS`, spread from the best reward to the worst; no reward is last."""
    ordered = sorted(rows, key=lambda row: -float("inf") if row["reward"] is None else row["reward"], reverse=True)
    count = min(count, len(rows))
    places = [round(place * (len(rows) - 1) / max(1, count - 1)) for place in range(count)]
    return [
        [
            row["step"],
            cut(_conversation(row["prompt"])),
            cut(_conversation(row["completion"]) if row.get("completion") else row["text"]),
            None if row["reward"] is None else round(float(row["reward"]), 6),
            ", ".join(f"{name} {value:.6g}" for name, value in dict(row["components"]).items()),
            row["outcome"],
            round(float(row["advantage"]), 6),
        ]
        for row in (ordered[place] for place in places)
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
    if len(text) <= TEXT:
        return text
    half = TEXT // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def main(name: str, folder: str, first_step: int) -> None:
    user, code = os.dup(1), 1
    os.dup2(2, 1)
    try:
        run = Run(folder)
        tracker = {"wandb": Wandb, "trackio": Trackio}[name](run)
        note = tracker.start()
        with suppress(BrokenPipeError):  # the run was killed
            os.write(user, f"{note}\n".encode() if note else b"")
        send(tracker, run, first_step)
        code = 0
    except BaseException as error:
        print(redact(traceback.format_exc()), file=sys.stderr)
        os.write(user, redact(traceback.format_exception_only(error)[-1]).strip().splitlines()[0].encode())
    finally:
        sys.stdout.flush()
        os._exit(code)  # what clients do at the exit of an interpreter may wait for ever


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
