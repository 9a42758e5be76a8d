"""A calibration: the run's real path for at most a minute, in a process of its own, and what follows for the whole run.

    calibrate(config) -> Calibration        DoesNotFit if memory runs out

The process (`hone.commands.calibrating`) loads task, model, engine and trainer by the code of `rl` and `sft`, takes
steps as the run takes them, and one in which every completion is as long as it may be. It writes a run, but into a
folder of its own beside the output directory, which goes when it ends. Imports nothing heavy.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hone.config.alarms import AlarmsConfig
from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.errors import UserError
from hone.planning.calibration_result import Calibration, composed
from hone.runs.files import TMP_PREFIX

SECONDS = 60.0
"""What a calibration may take."""
_PATIENCE = 4.0
"""A process that takes this many times as long is ended."""
_OUT_OF_MEMORY = 3
"""Exit code of the process, see `hone.commands.calibrating`."""


class DoesNotFit(Exception):
    """Memory ran out: at which stage, with which sizes, and which setting to lower, in one sentence."""


def calibrate(
    config: RLConfig | SFTConfig, seconds: float = SECONDS, tell: Callable[[str], None] = lambda words: None
) -> Calibration:
    """Measures the run of `config` for at most `seconds`; `tell` hears what is being done, in words.

    UserError for what the run itself would refuse, and for a run of several processes, or that samples from a server.
    DoesNotFit if memory runs out. Ctrl-C, SIGTERM and SIGHUP end the process, and leave nothing behind.
    """
    _refuse(config)
    began = time.monotonic()
    with _signals_raise(), _scratch(config.output_dir) as folder:
        alone = config.model_copy(
            update={
                "output_dir": folder / "run",
                "display": "none",
                "report": False,
                **dict.fromkeys(("resume", "budget", "wandb", "trackio")),
                "predict": [],
                "alarms": AlarmsConfig(action="off"),
                "detach": False,
            }
        )
        process = _Process(alone, seconds, tell)
        raw = process.run(seconds * _PATIENCE)
    return composed(config, raw, process.ending, time.monotonic() - began)


def _refuse(config: RLConfig | SFTConfig) -> None:
    if isinstance(config, RLConfig) and config.mode not in (None, "colocated"):
        raise UserError(
            f"--calibrate measures a run in one process, and this one is of mode {config.mode}: add --mode colocated "
            "to measure its steps in one, or leave out --calibrate"
        )
    if isinstance(config, RLConfig) and config.sampled_by is not None:
        raise UserError(
            f"--calibrate measures hone's own engine, and this run samples from {config.sampled_by}: leave that out "
            "for the measurement, or leave out --calibrate"
        )


@contextmanager
def _signals_raise() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP raise SystemExit, so that what was begun is tidied up. A SIGHUP that is ignored
    (`nohup`) stays so, and outside the main thread nothing is changed.
    """

    def end(signum: int, _: object) -> None:
        raise SystemExit(128 + signum)

    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for signum in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(signum) == signal.SIG_DFL:
                before[signum] = signal.signal(signum, end)
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


@contextmanager
def _scratch(output_dir: Path) -> Iterator[Path]:
    """A folder on the disk that the run will write to, but beside its output directory."""
    place = output_dir.absolute().parent
    while not place.is_dir():
        place = place.parent
    try:
        folder = Path(tempfile.mkdtemp(prefix=f"{TMP_PREFIX}plan-", dir=place))
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix=f"{TMP_PREFIX}plan-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Process:
    """The process that measures, and what it said so far."""

    def __init__(self, config: RLConfig | SFTConfig, seconds: float, tell: Callable[[str], None]) -> None:
        self.config, self.seconds, self.tell = config, seconds, tell
        self.stage: dict[str, Any] = {"stage": "start", "sizes": {}}
        self.result: dict[str, Any] | None = None
        self.ending = 0.0
        """Seconds from the end of the loop to the end of the process."""
        self._no_memory = ""
        self._loop_ended = 0.0

    def run(self, limit: float) -> dict[str, Any]:
        """Starts it, and waits for its end; returns its result."""
        reading, writing = os.pipe()
        words = [sys.executable, "-m", "hone.commands.calibrating", str(writing), str(self.seconds), str(os.getpid())]
        path = os.pathsep.join(
            [str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        with tempfile.TemporaryFile() as errors:
            child = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=[writing],
                start_new_session=True,  # Ctrl-C comes to this process, which ends that one
                env=os.environ | {"PYTHONPATH": path},
            )
            os.close(writing)
            try:
                assert child.stdin is not None
                with contextlib.suppress(BrokenPipeError):  # it has ended already, and is judged by how
                    child.stdin.write(pickle.dumps(self.config))
                    child.stdin.close()
                until = time.monotonic() + limit
                self._listen(reading, until)
                code = child.wait(timeout=max(1.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                code = None
            finally:
                child.kill()
                child.wait()
                os.close(reading)
            self.ending = time.monotonic() - (self._loop_ended or time.monotonic())
            errors.seek(0)
            return self._judge(code, errors.read().decode(errors="replace"))

    def _listen(self, pipe: int, until: float) -> None:
        """Takes its lines until the result is there, or it closes the pipe, or the time is over (TimeoutExpired)."""
        begun = b""
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while (left := until - time.monotonic()) > 0:
                if not selector.select(left):
                    continue
                if not (data := os.read(pipe, 2**16)):
                    return
                *lines, begun = (begun + data).split(b"\n")
                for line in lines:
                    self._take(json.loads(line))
                if self.result is not None:  # the last line: a process that the task has begun may hold the pipe
                    return
        raise subprocess.TimeoutExpired("calibration", self.seconds)

    def _take(self, said: Mapping[str, Any]) -> None:
        if "stage" in said:
            self.stage = dict(said)
            self.tell(_stage_words(said))
        elif "step" in said:
            self.tell(f"step {said['step'] + 1}: {said['seconds']:.2f} s")
        elif "out_of_memory" in said:
            self._no_memory = said["out_of_memory"]
        elif "ended" in said:
            self._loop_ended = time.monotonic()
        else:
            self.result = said["result"]

    def _judge(self, code: int | None, errors: str) -> dict[str, Any]:
        if code == 0 and self.result is not None:
            return self.result
        at = _stage_words(self.stage)
        lower = remedy(self.config, self.stage)
        if code == _OUT_OF_MEMORY or self._no_memory:
            raise DoesNotFit(f"out of memory while {at} ({self._no_memory}): {lower}")
        if code == -signal.SIGKILL:
            raise DoesNotFit(f"killed (SIGKILL) while {at}, as the system does when memory runs out: {lower}")
        if code is None:
            name, begins = self.config.model.name, self.stage["stage"] in ("start", "load")
            fetch = f"; if that was to fetch the model, do it first: hf download {name}" if begins else ""
            raise UserError(f"the calibration did not end in {self.seconds * _PATIENCE:g} s: it was {at}{fetch}")
        said = [line for line in errors.splitlines() if line.strip()]
        if code == 2 and said and said[-1].startswith("error: "):
            raise UserError(said[-1].removeprefix("error: "))
        raise RuntimeError(f"the calibration ended with {code} while {at}:\n" + "\n".join(said[-30:]))


_DOING = {
    "start": "starting",
    "load": "loading the task, the model and what samples and trains it",
    "publish": "comparing sampler and trainer",
    "sample": "sampling",
    "grade": "grading",
    "train": "training",
    "record": "writing rollouts",
    "evaluate": "evaluating",
    "validate": "validating",
    "data": "making a batch",
    "checkpoint": "saving",
}


def _stage_words(said: Mapping[str, Any]) -> str:
    """`training (micro_batch 4,096, sequence 64; all completions as long as they may be)`"""
    sizes = ", ".join(f"{name.replace('_', ' ')} {size:,}" for name, size in said["sizes"].items())
    worst = "as long as it may be" if said.get("part") == "at most" else ""
    inside = "; ".join(filter(None, [sizes, worst]))
    doing = _DOING.get(said["stage"]) or str(said["stage"])
    return doing + (f" ({inside})" if inside else "")


def remedy(config: RLConfig | SFTConfig, stage: Mapping[str, Any]) -> str:
    """What to lower when memory runs out at this stage."""
    smaller = "take a smaller model" if config.precision == "bf16" else "set --precision bf16, or take a smaller model"
    name, sizes = stage["stage"], stage["sizes"]
    if name == "train":
        section, flag, length = (
            (config.trainer, "--trainer.micro-batch-tokens", "--seq-len")
            if isinstance(config, RLConfig)
            else (config.data, "--data.micro-batch-tokens", "--data.seq-len")
        )
        batch, sequence = sizes.get("micro_batch"), sizes.get("sequence")
        if batch and sequence and batch <= sequence:
            return f"lower {length}, for one sequence of {sequence:,} tokens is a micro-batch; or {smaller}"
        now = section.micro_batch_tokens or batch
        return f"lower {flag}" + (f" (now {now:,})" if now else "") + f"; if that is not enough, {smaller}"
    if isinstance(config, RLConfig) and name in ("sample", "evaluate", "publish"):
        kv = config.inference.kv_gib or 4.0
        return f"lower --inference.kv-gib (now {kv:g}), --orchestrator.batch-size or --seq-len"
    if name == "grade":
        return "lower --orchestrator.grading.workers"
    if name == "checkpoint" and config.ckpt is not None and config.ckpt.background:
        return "set --ckpt.background false: then no copy of model and optimiser is made"
    return smaller
