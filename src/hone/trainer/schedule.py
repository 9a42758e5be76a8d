"""The learning rate as a function of the step: nothing to save, nothing to restore."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hone.config.shared import SchedulerConfig


def lr_at(step: int, peak: float, scheduler: SchedulerConfig, max_steps: int) -> float:
    """Return the learning rate of update `step` (0-based) out of `max_steps`.

    Warm-up: peak x (step + 1) / warmup_steps. Then constant, or a decay that reaches min_ratio x peak at the last
    update.
    """
    if step < scheduler.warmup_steps:
        return peak * (step + 1) / scheduler.warmup_steps
    if scheduler.type == "constant":
        return peak
    last = max(1, max_steps - 1 - scheduler.warmup_steps)
    progress = min(1.0, (step - scheduler.warmup_steps) / last)
    shape = 1 - progress if scheduler.type == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
    return peak * (scheduler.min_ratio + (1 - scheduler.min_ratio) * shape)
