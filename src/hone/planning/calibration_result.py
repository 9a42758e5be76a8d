"""What a calibration measured, and what follows from it for the whole run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig

_APART = ("evaluate", "validate", "checkpoint")
"""Phases that not every step has."""


@dataclass(frozen=True)
class Calibration:
    """What was measured, and what it says of the whole run. Seconds, and bytes of the run's own process.

    `sampled` are the mean seconds of a step by phase as its completions are now (empty if no whole step fit into the
    time), `longest` those if every completion is as long as it may be. Of the longest, `share` says how much of each
    part was done; the rest is in proportion. `memory` is the peak of all, `memory_sampled` that before the longest step
    (None if that came first), by stage in `peaks`; `gpu_memory` what torch reserved on the GPU (None without one).
    """

    kind: str
    parameters: int
    steps: int
    start: float
    end: float
    sampled: dict[str, float]
    longest: dict[str, float]
    share: dict[str, float]
    sizes: dict[str, int]
    first: float
    """What the first step takes longer than others."""
    evaluation: float
    evaluations: int
    checkpoint: float
    """For which the loop waits on its way; the last one is in `end`."""
    checkpoints: int
    memory: int
    memory_sampled: int | None
    gpu_memory: int | None
    peaks: dict[str, dict[str, int]]
    taken: int
    """Steps that were taken as the run takes them."""
    seconds: float
    """That the calibration took."""
    new_tokens: float | None = None
    """Mean length of a completion in these steps."""
    notes: list[str] = field(default_factory=list)

    @property
    def device_memory(self) -> int:
        """Bytes at most of the memory that the run needs room in: the GPU's, or without one the process's."""
        return self.memory if self.gpu_memory is None else self.gpu_memory

    @property
    def step(self) -> float:
        """Seconds of a step, as the run takes them now."""
        return sum((self.sampled or self.longest).values())

    @property
    def longest_step(self) -> float:
        return sum(self.longest.values())

    @property
    def at_most_now(self) -> bool:
        """Whether the longest step is hardly longer (5 %) than those that the run takes now."""
        return bool(self.sampled) and self.longest_step <= 1.05 * self.step

    @property
    def at_limit(self) -> bool:
        """Whether completions are nearly as long as they may be now."""
        return self.new_tokens is not None and self.new_tokens >= 0.9 * self.sizes.get("new_tokens", math.inf)

    @property
    def around(self) -> float:
        """Seconds of all but the steps: start, evaluations, checkpoints, end."""
        return (
            self.start + self.first + self.evaluations * self.evaluation + self.checkpoints * self.checkpoint + self.end
        )

    @property
    def total(self) -> float:
        """Seconds of the whole run, if its steps stay as they are now."""
        return self.around + self.steps * self.step

    @property
    def total_at_most(self) -> float:
        """Seconds of the whole run, if every completion of it is as long as it may be."""
        return self.around + self.steps * self.longest_step

    def usd(self, per_hour: float) -> float:
        """What the whole run costs, at this price."""
        return self.total / 3600 * per_hour

    def to_json(self) -> dict[str, Any]:
        """All fields, and what follows from them."""
        derived = ("step", "longest_step", "total", "total_at_most")
        return self.__dict__ | {name: getattr(self, name) for name in derived}


def composed(config: RLConfig | SFTConfig, raw: Mapping[str, Any], ending: float, seconds: float) -> Calibration:
    """What the measurements `raw` say of the whole run."""
    rl = isinstance(config, RLConfig)
    lines = raw["steps"]
    taken = [line for line in lines if "train" in line]
    steady = taken[1:] if len(taken) > 1 else taken
    sampled = _phases(steady)
    worst = raw["worst"]
    longest = {name: worst[name] for name in ("sample", "grade", "train") if name in worst}
    if "grade" in longest and not longest["grade"]:
        longest["grade"] = sampled.get("grade", 0.0)
    others = sampled or {"publish": raw.get("publish", 0.0)}
    longest |= {name: value for name, value in others.items() if name not in ("sample", "grade", "train")}
    longest = {name: max(value, sampled.get(name, 0.0)) for name, value in longest.items()}
    first = _sum(_phases(taken[:1])) - _sum(sampled) if len(taken) > 1 else 0.0
    once = max(0.0, first)
    checkpoint, saved = _saving(config, raw, lines)
    found = raw["peaks"]
    every = [value for part in found.values() for value in part.values()]
    gpu = [value for part in raw["gpu_peaks"].values() for value in part.values()]
    interval = _interval(config)
    return Calibration(
        kind="rl" if rl else "sft",
        parameters=raw["parameters"],
        steps=config.max_steps,
        start=raw["start"],
        end=ending + saved,
        sampled=sampled,
        longest=longest,
        share=worst["share"],
        sizes={name: value for name, value in worst.items() if isinstance(value, int)},
        first=once,
        evaluation=_evaluation(config, raw, taken, longest),
        evaluations=-(-config.max_steps // interval) + 1 if interval else 0,
        checkpoint=checkpoint,
        checkpoints=(config.max_steps - 1) // config.ckpt.interval if config.ckpt and config.ckpt.interval else 0,
        memory=max(every),
        memory_sampled=max(found["sampled"].values()) if raw["sampled_first"] else None,
        gpu_memory=max(gpu, default=None),
        peaks=found,
        taken=len(taken),
        seconds=seconds,
        new_tokens=raw.get("new_tokens"),
        notes=_notes(config, raw, worst),
    )


def _phases(lines: list[Mapping[str, float]]) -> dict[str, float]:
    """Mean seconds by phase of these steps, without what not every step has; `other` is what no phase has."""
    if not lines:
        return {}
    names = [
        name for name in dict.fromkeys(n for line in lines for n in line) if name not in ("step", "total", *_APART)
    ]
    phases = {name: mean(line.get(name, 0.0) for line in lines) for name in names}
    apart = mean(line["step"] - sum(line.get(name, 0.0) for name in _APART) for line in lines)
    return phases | {"other": max(0.0, apart - _sum(phases))}


def _sum(phases: Mapping[str, float]) -> float:
    return sum(phases.values())


def _interval(config: RLConfig | SFTConfig) -> int | None:
    """Steps between evaluations, or validations."""
    settings = config.orchestrator.eval if isinstance(config, RLConfig) else config.val
    return settings.interval if settings else None


def _evaluation(
    config: RLConfig | SFTConfig, raw: Mapping[str, Any], taken: list[Mapping[str, float]], longest: Mapping[str, float]
) -> float:
    """Seconds of one evaluation or validation: of a part of it in proportion, else at the rate of the longest step."""
    if _interval(config) is None:
        return 0.0
    measured = taken[0].get("evaluate", taken[0].get("validate", 0.0)) if taken and raw.get("evaluated") else None
    if isinstance(config, SFTConfig):
        rate = raw["validation_tokens"] / max(1, raw["worst"]["tokens"])
        return measured if measured is not None else longest["train"] * rate / 3
    completions = raw["eval_completions"]
    if measured is not None:
        return measured * completions["all"] / completions["measured"]
    of_step = completions["all"] / raw["worst"]["completions"]
    return (longest["sample"] + longest["grade"]) * of_step


def _saving(
    config: RLConfig | SFTConfig, raw: Mapping[str, Any], lines: list[Mapping[str, float]]
) -> tuple[float, float]:
    """Seconds that the loop waits for a checkpoint on its way, and at the end."""
    if "write_rate" in raw or not lines:
        last = raw.get("saved", raw["saved_bytes"] / raw.get("write_rate", 2e8))
    else:
        last = lines[-1].get("checkpoint", 0.0)
        if on_the_way := [line["checkpoint"] for line in lines[:-1] if "checkpoint" in line]:
            return max(on_the_way), last
    background = config.ckpt is None or config.ckpt.background
    return (raw["saved_bytes"] / 2e9 if background else last), last


def _notes(config: RLConfig | SFTConfig, raw: Mapping[str, Any], worst: Mapping[str, Any]) -> list[str]:
    """What was not measured as a whole, a sentence each."""
    notes = []
    parts = {"groups": "of its groups", "tokens": "of the tokens of each completion", "train": "of its micro-batches"}
    for name, value in worst["share"].items():
        if value < 0.995:
            notes.append(f"the longest step: {100 * value:.0f} % {parts[name]} were done, the rest is in proportion")
    if raw["steps"] and raw.get("trained") == 0:
        notes.append(
            "no step trained: the completions of each prompt had equal rewards, which teaches nothing; a run that "
            "finds differences spends more on training, up to the longest step"
        )
    if not raw["steps"]:
        notes.append("no step was taken as the run takes them: one would not have fit into the time")
    elif not raw["sampled_first"]:
        notes.append("the longest step came first, so memory of steps as they are now could not be told apart")
    if _interval(config) is not None and not raw.get("evaluated"):
        alike = "to sample at the rate" if isinstance(config, RLConfig) else "a third of the time for as many tokens"
        name = "evaluation" if isinstance(config, RLConfig) else "validation"
        notes.append(f"{name} was not measured: it is taken {alike} of the longest step")
    if "write_rate" in raw or not (raw["steps"] or "saved" in raw):
        notes.append(
            f"saving {raw['saved_bytes'] / 2**30:.1f} GiB was not measured: seconds follow from the disk's rate"
        )
    return notes
