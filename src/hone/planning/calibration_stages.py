"""What a calibration's process tells while it works: the stage it is at, and how much memory each took at most."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from hone.runs.display import Display
from hone.runs.saving import Ending, Saver

if TYPE_CHECKING:
    from hone.trainer.step import Trainer

SAMPLED, WORST = "sampled", "at most"
"""The two parts of a calibration: steps as the run takes them, and one with all completions as long as they may be."""
LEAST_STEPS = 3
"""Steps as the run takes them, if they fit."""
SURE, MOST_SECONDS = 0.02, 20.0
"""Enough steps were taken once the standard error of their mean is below this share of it, or after these seconds."""
LARGEST_SAVE = 4 * 2**30
"""Bytes that a calibration saves at most; of more the time follows from the speed of the disk."""
_RESET = "5"
"""Written to /proc/self/clear_refs it makes the peak of the resident memory what is resident now; see proc(5)."""


class Stages:
    """Tells the parent process, a JSON line each, what begins; notes the most memory of each stage.

    `peaks` are bytes by part and stage: of the process, and on a GPU of the allocator there (`gpu_peaks`). Where the
    system can't reset the peak (anything but Linux), a stage's is that of all so far.
    """

    def __init__(self, pipe: int, seconds: float) -> None:
        self._pipe = pipe
        self.deadline = time.monotonic() + seconds
        self.part = SAMPLED
        self.peaks: dict[str, dict[str, int]] = {SAMPLED: {}, WORST: {}}
        self.gpu_peaks: dict[str, dict[str, int]] = {SAMPLED: {}, WORST: {}}
        self._stage = ""

    @property
    def left(self) -> float:
        """Seconds until the calibration should be over."""
        return self.deadline - time.monotonic()

    def tell(self, **fields: Any) -> None:
        """Writes a line."""
        os.write(self._pipe, (json.dumps(fields) + "\n").encode())

    def enter(self, name: str, **sizes: Any) -> None:
        """The stage `name` begins, with tensors of these `sizes`; the one before ends."""
        self.leave()
        self._stage = name
        self.tell(stage=name, part=self.part, sizes=sizes)

    def leave(self) -> None:
        """Notes what the stage took; nothing is measured until the next one begins."""
        if self._stage:
            peaks, gpu = self.peaks[self.part], self.gpu_peaks[self.part]
            peaks[self._stage] = max(peaks.get(self._stage, 0), peak_bytes())
            if (reserved := _gpu_peak()) is not None:
                gpu[self._stage] = max(gpu.get(self._stage, 0), reserved)
        self._stage = ""
        _reset_peak()

    def timed(self, name: str, action: Callable[[], Any], **sizes: Any) -> tuple[Any, float]:
        """Runs a stage; returns what it gave, and its seconds."""
        self.enter(name, **sizes)
        began = time.perf_counter()
        found = action()
        _finish_gpu()
        seconds = time.perf_counter() - began
        self.leave()
        return found, seconds


def peak_bytes() -> int:
    """Most resident memory of this process since the last reset, in bytes."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _reset_peak() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text(_RESET)
    if (torch := _torch_with_gpu()) is not None:
        torch.cuda.reset_peak_memory_stats()


def _gpu_peak() -> int | None:
    torch = _torch_with_gpu()
    return None if torch is None else int(torch.cuda.max_memory_reserved())


def _finish_gpu() -> None:
    if (torch := _torch_with_gpu()) is not None:
        torch.cuda.synchronize()


def _torch_with_gpu() -> Any:
    torch = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_initialized() else None


class StageDisplay(Display):
    """Takes each phase of a run for a stage, and tells each step that is done."""

    def __init__(self, stages: Stages) -> None:
        self.stages = stages

    def phase(self, name: str) -> None:
        self.stages.enter(name)

    def step(self, step: int, metrics: dict[str, Any], timings: dict[str, Any]) -> None:
        if "loss" in metrics or "lr" in metrics:
            self.stages.tell(step=step, seconds=timings["time/step"])


class TrialSaver(Saver):
    """Ends the loop once `enough()`; with `writes` it saves at the end as the run would, and where that saves on its
    way, once after the first step.
    """

    def __init__(self, saver: Saver, enough: Callable[[], bool], writes: bool) -> None:
        super().__init__(saver.run, saver.stop, saver.ckpt, saver.export, saver.snapshot)
        self.enough, self.writes = enough, writes
        self._on_the_way = self.run.start_step + 1 if self.ckpt and self.ckpt.interval else None

    @property
    def stopping(self) -> bool:
        return bool(self.stop) or self.enough()

    def ending(self, version: int, max_steps: int) -> Ending:
        return "done"

    def save(self, step: int, last: bool = False) -> None:
        if self.writes:
            super().save(step, last)

    def _is_due(self, step: int, last: bool) -> bool:
        return last or step == self._on_the_way

    def _with_checkpoint(self, step: int) -> bool:
        return self.ckpt is not None


def write_rate(folder: Path, size: int = 2**27) -> float:
    """Bytes a second that a file in `folder` is written with, to the disk."""
    path = folder / "rate"
    began = time.perf_counter()
    with open(path, "wb") as file:
        file.write(os.urandom(2**20) * (size // 2**20))
        file.flush()
        os.fsync(file.fileno())
    seconds = time.perf_counter() - began
    path.unlink()
    return size / seconds


def step_timings(folder: Path) -> list[dict[str, float]]:
    """Seconds by phase of each line that a run in `folder` has written, in order: `step`, `sample`, `train`, …"""
    lines = [json.loads(line) for line in (folder / "timings.jsonl").read_text().splitlines()]
    return [
        {name.removeprefix("time/"): value for name, value in line.items() if name.startswith("time/")}
        for line in lines
    ]


def enough_steps(folder: Path, max_steps: int, until: float) -> Callable[[], bool]:
    """Whether a run in `folder` has taken steps enough: their mean is known well, or the time `until` is near."""

    def enough() -> bool:
        seconds = [
            line["step"] - line.get("evaluate", 0.0) - line.get("validate", 0.0) for line in step_timings(folder)
        ]
        if not seconds:
            return False
        steady = seconds[1:]
        if len(seconds) == max_steps or time.monotonic() + mean(steady or seconds) > until:
            return True
        if len(seconds) > LEAST_STEPS and sum(seconds) > MOST_SECONDS:
            return True
        return len(steady) > 5 and stdev(steady) / len(steady) ** 0.5 < SURE * mean(steady)

    return enough


def saved_bytes(trainer: Trainer, checkpoint: bool) -> int:
    """Bytes of the weights that are saved, and of what a checkpoint holds besides (two moments, and fp32 copies)."""
    parameters = list(trainer.model.parameters())
    weights = sum(p.numel() * p.element_size() for p in parameters)
    masters = sum(4 * p.numel() for p in parameters if p.element_size() != 4)
    return weights + (weights + masters + 8 * trainer.model.num_parameters if checkpoint else 0)
