"""The learning rate as a pure function of the step, without state."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hone.config.shared import SchedulerConfig


def lr_at(step: int, peak: float, scheduler: SchedulerConfig, max_steps: int) -> float:
    """Return the learning rate of update `step` (0-based) out of `max_steps`.

    Warm-up: peak x (step + 1) / warmup_steps. Then constant, or a decay: right after the warm-up (linear, cosine), or
    over the last decay_ratio x max_steps updates, linearly (wsd, arXiv:2404.06395). The decay reaches min_ratio x peak
    at the last update. With min_ratio = 0 it reaches 0 one update later, as in transformers: an update at learning rate
    0 would train nothing. A warm-up of max_steps - 1 or more leaves no decay.
    """
    if step < scheduler.warmup_steps:
        return peak * (step + 1) / scheduler.warmup_steps
    if scheduler.type == "constant":
        return peak
    begin, end = scheduler.warmup_steps, max_steps - 1 if scheduler.min_ratio else max_steps
    if scheduler.type == "wsd":
        begin = max(begin, end - max(1, round(scheduler.decay_ratio * max_steps)))
    progress = min(1.0, max(0, step - begin) / max(1, end - begin))
    shape = 0.5 * (1 + math.cos(math.pi * progress)) if scheduler.type == "cosine" else 1 - progress
    return peak * (scheduler.min_ratio + (1 - scheduler.min_ratio) * shape)
