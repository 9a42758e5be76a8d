"""The learning rate as a function of the step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hone.config.shared import SchedulerConfig


def lr_at(step: int, peak: float, scheduler: SchedulerConfig, max_steps: int) -> float:
    """Return the learning rate of step `step` (from 0) out of `max_steps`.

    In the warm-up, the rate is peak x (step + 1) / warmup_steps. After it, the rate is constant ("constant"), decays at
    once ("linear", "cosine"), or decays linearly over the last decay_ratio x max_steps steps ("wsd", arXiv:2404.06395).
    The decay reaches min_ratio x peak at the last step. With min_ratio = 0 the decay reaches 0 one step later, as in
    transformers, as rate 0 would train nothing. A warm-up of max_steps - 1 or more leaves no decay.
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
