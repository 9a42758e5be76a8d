"""The current state of a run, and its wording, for the plain and the live display."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from hone.config.hoist import FUNCTIONS
from hone.extension import gathered

_DOING = {
    "start": "starting the server",
    "publish": "publishing weights",
    "sample": "sampling",
    "grade": "grading",
    "train": "training",
    "evaluate": "evaluating",
    "validate": "validating",
    "checkpoint": "saving a checkpoint",
    "export": "exporting weights",
    "record": "writing rollouts",
    "report": "writing the run card",
}


@dataclass
class Progress:
    """The latest numbers of a run. `clock` returns seconds; only their differences are used."""

    kind: str
    max_steps: int
    clock: Callable[[], float] = time.monotonic
    first_step: int = 0
    began: float = 0.0
    seconds: list[float] = field(default_factory=list)
    """Seconds of each step, without pauses."""
    step: int | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    timings: Mapping[str, Any] = field(default_factory=dict)
    first_evals: dict[str, Any] = field(default_factory=dict)
    evals: dict[str, Any] = field(default_factory=dict)
    eval_step: int | None = None
    history: list[float] = field(default_factory=list)
    phase: str = ""
    doing: str = ""
    doing_since: float = 0.0
    task: str = ""
    """Name of the task to show instead of FUNCTIONS."""

    def __post_init__(self) -> None:
        self.began = self.clock()

    def start(self, step: int) -> None:
        self.first_step, self.began = step, self.clock()
        self.doing, self.doing_since = "", self.began

    def enter(self, phase: str) -> None:
        doing = _DOING | {column.section: column.doing for column in gathered("COLUMNS", {}).values()}
        self.phase, self.doing_since = doing.get(phase, phase), self.clock()
        self.doing = self.phase

    def update(self, step: int, metrics: Mapping[str, Any], timings: Mapping[str, Any]) -> None:
        """Read the lines of one step. If the step made no update, training numbers stay."""
        evals = {name: value for name, value in metrics.items() if name.startswith(("eval/", "val/"))}
        if evals:
            self.first_evals, self.evals, self.eval_step = self.first_evals or evals, evals, step
        if any(name != "step" and not name.startswith(("eval/", "val/", "canary/")) for name in metrics):
            if (seconds := timings.get("time/step")) is not None:
                self.seconds.append(seconds)
            self.step, self.metrics, self.timings = step, metrics, timings
            if (value := metrics.get("loss" if self.kind == "sft" else "reward/mean")) is not None:
                self.history.append(value)
        self.doing, self.doing_since = "", self.clock()

    @property
    def done(self) -> int:
        """Steps taken, including steps before a resume."""
        return self.first_step if self.step is None else self.step + 1

    @property
    def current(self) -> int:
        """Index of the current step, from 0; after the end, of the last step."""
        return min(self.done, self.max_steps - 1)

    @property
    def left(self) -> float | None:
        """Estimated seconds to the end: steps left times mean time of a step, without the slow first one. None at
        first.
        """
        if not self.seconds or self.step is None:
            return None
        return fmean(self.seconds[1:] or self.seconds) * (self.max_steps - self.done)

    def summary(self) -> list[str]:
        m, parts = self.metrics, []
        if self.kind == "sft":
            parts += [f"loss {m['loss']:.4f} nats/token"] if m.get("loss") is not None else []
            parts += [f"lr {m['lr']:.2e}"] if m.get("lr") is not None else []
        else:
            if (reward := m.get("reward/mean")) is not None:
                parts.append(f"reward {reward:.3f}" + (f" (std {m['reward/std']:.2f})" if "reward/std" in m else ""))
            if (share := m.get("outcome/correct")) is not None:
                parts.append(f"correct {percent(share)}")
            if (failed := m.get("outcome/grader_error", 0) + m.get("outcome/grader_timeout", 0)) > 0:
                parts.append(f"grader failures {percent(failed)}")
            if (length := m.get("completion/length/mean")) is not None:
                turns = m.get("turns/mean")
                parts.append(f"length {length:.1f} tokens" + (f" in {turns:.1f} turns" if turns is not None else ""))
            if (cut := m.get("completion/truncated")) is not None:
                parts.append(f"truncated {percent(cut)}")
            if (drawn := m.get("groups/drawn")) is not None:
                parts.append(f"{m['groups/trained']:.0f} of {drawn:.0f} groups trained")
            for name, of in (("kl", "reference"), ("teacher/kl", "teacher")):
                parts += [f"KL to {of} {value:.3f}"] if (value := m.get(name)) is not None else []
        if (speed := self.timings.get("tokens/s")) is not None:
            parts.append(f"{thousands(speed)} tokens/s")
        if (seconds := self.timings.get("time/step")) is not None:
            parts.append(f"{short_seconds(seconds)}/step")
        return parts

    def evaluation(self) -> list[str]:
        """Return the latest evaluations in words, one line per environment (or the validation loss)."""
        lines = []
        for name, value in self.evals.items():
            if name == "val/loss" and value is not None:
                lines.append(f"validation loss {value:.4f} nats/token")
            if name.endswith("/reward/mean") and value is not None:
                env = name.removeprefix("eval/").removesuffix("/reward/mean")
                interval, correct = reward_interval(self.evals, env), self.evals.get(f"eval/{env}/correct")
                text = f"{self.task or env if env == FUNCTIONS else env} reward {value:.3f}"
                text += f" (95 % interval {interval[0]:.3f} to {interval[1]:.3f})" if interval is not None else ""
                lines.append(text + (f", correct {percent(correct)}" if correct is not None else ""))
        return lines


def reward_interval(metrics: Mapping[str, float | None], env: str) -> tuple[float, float] | None:
    """Return the 95 % interval of an evaluation's mean reward; None if all rewards are equal."""
    low, high = (metrics.get(f"eval/{env}/ci95/{end}") for end in ("low", "high"))
    return None if low is None or high is None or high - low < 1e-9 else (low, high)


def percent(share: float) -> str:
    """Return "12 %" for 0.123; shares below 10 % have a decimal, so that a small share doesn't look like 0."""
    return f"{share:.1%}".replace("%", " %") if 0 < share < 0.0995 else f"{share:.0%}".replace("%", " %")


def thousands(value: float) -> str:
    """Return "1.2k" for 1234."""
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.1f}{unit}"
    return f"{value:.0f}"


def short_seconds(value: float) -> str:
    """Return the seconds of a step as a text such as "35 ms", "0.31 s", "12.4 s" or "2:05 min"."""
    if value < 0.0995:
        return f"{value * 1e3:.0f} ms"
    if value < 10:
        return f"{value:.2f} s"
    return f"{value:.1f} s" if value < 60 else duration(value)


def duration(seconds: float) -> str:
    """Return a time such as "0:07", "12:34" or "1:02:03"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
