"""A tracker's client, driven: what Weights & Biases and Trackio have in common, and where they differ.

Used in the child process only (`child.py`). Any method may raise.
"""

from __future__ import annotations

import importlib
import os
import shlex
import warnings
from pathlib import Path
from typing import Any

from hone.runs.alarms import DONE
from hone.runs.monitors.samples import COLUMNS

INIT_SECONDS = 60
"""How long W&B's client may take to reach its server at the start."""
UPLOAD_SECONDS = 25
"""How long it may take to send what is left at the end; less than the run waits for it."""

_LOST = "failed to save record"
"""What W&B's service writes into its log, and nowhere else, when it can't store something."""
RUN = "hone_run"
"""Where the config that a tracker shows has the run's id."""


class Tracker:
    """A client with W&B's functions: `init`, which makes a run with `log`, `alert` and `finish`; and `Table`.

    `settings` are those of the config's section; `info` is run.json; `pid` the process of the run.
    """

    module: str

    def __init__(self, folder: Path, info: dict[str, Any], settings: dict[str, Any], pid: int):
        self.folder, self.info, self.settings, self.pid = folder, info, settings, pid
        self.client: Any = None
        self.run: Any = None

    def start(self, config: dict[str, Any]) -> str | None:
        """Begin the tracker's run, or go on with it; `config` is shown beside it. Returns where it is seen."""
        self.client = importlib.import_module(self.module)
        self.run = self._init(config | {RUN: self.info["id"]})
        return self._place()

    def log(self, step: int, metrics: dict[str, Any], timings: dict[str, Any]) -> None:
        """The values of a step, but for those that are null."""
        values = {name: value for name, value in (timings | metrics).items() if value is not None and name != "step"}
        self._log(step, values)

    def samples(self, step: int, rows: list[list[Any]]) -> None:
        """A table of completions; rows of `hone.runs.monitors.samples.COLUMNS`."""
        self._log(step, {"samples": self.client.Table(columns=list(COLUMNS), data=rows)})

    def alarm(self, step: int, name: str, text: str, action: str) -> None:
        """An alert, which the service lists and can mail."""
        self._alert(step, f"{name} at step {step}", f"{text}{DONE.get(action, '')}")

    def finish(self, status: str) -> str | None:
        """Send what is left and end the tracker's run."""
        raise NotImplementedError

    def _init(self, config: dict[str, Any]) -> Any:
        raise NotImplementedError

    def _place(self) -> str | None:
        raise NotImplementedError

    def _log(self, step: int, values: dict[str, Any]) -> None:
        raise NotImplementedError

    def _alert(self, step: int, title: str, text: str) -> None:
        raise NotImplementedError


class Wandb(Tracker):
    """Weights & Biases. Its files lie in `wandb/` inside the run directory.

    The axis is hone's own step counter, not that of the client, which only grows: steps that a resume takes again are
    drawn where they belong.
    """

    module = "wandb"

    def _init(self, config: dict[str, Any]) -> Any:
        mode = self.settings["mode"] or os.environ.get("WANDB_MODE") or "online"
        place = self.info["wandb"]
        run = self.client.init(
            project=place["project"],
            entity=place["entity"],
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
        run.define_metric("step")
        run.define_metric("*", step_metric="step")
        return run

    def _place(self) -> str | None:
        if self.run.offline:
            return f"W&B, offline; to send it: wandb sync {os.path.relpath(Path(self.run.dir).parent)}"
        return f"W&B: {self.run.url}" if self.run.url else None

    def _log(self, step: int, values: dict[str, Any]) -> None:
        self.run.log({"step": step} | values)

    def _alert(self, step: int, title: str, text: str) -> None:
        self.run.alert(title=title[:63], text=text, level=self.client.AlertLevel.WARN)

    def finish(self, status: str) -> None:
        log = Path(self.run.settings.log_internal)
        self.run.finish(exit_code=0 if status in ("done", "stopped", "budget") else 1)
        if log.is_file() and (lost := [line for line in log.read_text().splitlines() if _LOST in line]):
            raise RuntimeError(
                f"{len(lost)} records or more are lost: {lost[0].partition(_LOST)[2].rpartition(': ')[2]}"
            )


class Trackio(Tracker):
    """Trackio, on this machine: a project is one SQLite file, in TRACKIO_DIR (`~/.cache/huggingface/trackio`).

    It never raises: what goes wrong it says as a Python warning, which is made an error here.
    """

    module = "trackio"

    def start(self, config: dict[str, Any]) -> str | None:
        if not (os.environ.get("TRACKIO_SPACE_ID") or os.environ.get("TRACKIO_SERVER_URL")):
            os.environ["HF_HUB_OFFLINE"] = "1"  # else it asks the hub who is logged in
        self._warning: str | None = None
        warnings.simplefilter("always")
        warnings.showwarning = self._warned
        return super().start(config)

    def _warned(self, message: Warning | str, category: type[Warning], filename: str, *_: Any) -> None:
        print(f"{category.__name__}: {message}", flush=True)
        if Path(filename).parent == Path(self.client.__file__).parent and category is UserWarning:
            self._warning = self._warning or str(message)

    def _check(self) -> None:
        if self._warning is not None:
            raise RuntimeError(self._warning)

    def _init(self, config: dict[str, Any]) -> Any:
        project, name = self.info["trackio"]["project"], self.info["trackio"]["name"]
        try:
            runs = {run.name: run.config or {} for run in self.client.Api().runs(project)}
        except ValueError:  # no such project yet
            runs = {}
        # Trackio finds a run by its name only: what is resumed is found by its config, and no two get one name.
        own = [other for other, theirs in runs.items() if theirs.get(RUN) == self.info["id"]]
        if not own and name in runs:
            name = f"{name}-{self.info['id']}"
        run = self.client.init(
            project=project,
            name=own[-1] if own else name,
            group=self.settings["group"],
            config=config,
            resume="must" if own else "never",
            embed=False,
        )
        self._check()
        return run

    def _place(self) -> str:
        # Trackio keeps letters, digits, - and _ of a project's name, and lists it by what is left.
        kept = "".join(one for one in self.info["trackio"]["project"] if one.isalnum() or one in "-_")
        return f"Trackio: trackio show --project {shlex.quote(kept or 'default')}"

    def _log(self, step: int, values: dict[str, Any]) -> None:
        self.run.log(values, step=step)
        self._check()

    def _alert(self, step: int, title: str, text: str) -> None:
        self.run.alert(title=title, text=text, level=self.client.AlertLevel.WARN, step=step)

    def finish(self, status: str) -> None:
        self.run.finish()
        self._check()


TRACKERS = {tracker.module: tracker for tracker in (Wandb, Trackio)}
