"""When a run warns of itself, and what it does then. What each alarm looks for is in `hone.runs.alarms`."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from hone.config.base import BaseConfig
from hone.errors import UserError

Action = Literal["off", "warn", "checkpoint", "pause", "stop"]


class AlarmConfig(BaseConfig):
    """One alarm."""

    bare: ClassVar[str | None] = "action"

    action: Action | None = None
    """What it does, if not what `alarms.action` says."""
    threshold: float | None = Field(default=None, gt=0)
    """When it is raised, in the unit of its description, which has the default."""


class AlarmsConfig(BaseConfig):
    """Looks at every step for what ruins runs. `hone runs show` lists what was found."""

    bare: ClassVar[str | None] = "action"

    action: Action = "warn"
    """`warn`; save a `checkpoint` as well; `pause` (saved) until `hone runs continue`; `stop` (saved); or `off`."""
    window: int = Field(default=10, ge=2)
    """Steps that are averaged, now and at the beginning, before the two are compared."""
    falling_reward: AlarmConfig = AlarmConfig(threshold=0.15)
    """The reward fell by this share of its best (0.15) while completions grew by a fifth: a parser loses long
    answers."""
    zero_std: AlarmConfig = AlarmConfig(threshold=0.8)
    """So many groups have one and the same reward (0.8): they teach nothing."""
    unparsable: AlarmConfig = AlarmConfig(threshold=0.1)
    """The share of unparsable completions rose from its lowest by this (0.1): the parser, not the skill, is lost."""
    wrong: AlarmConfig = AlarmConfig(threshold=0.15)
    """The share of correct completions fell by this (0.15) from its best, for they are wrong, though well-formed."""
    component: AlarmConfig = AlarmConfig(threshold=0.1)
    """A component other than the answer's, times its share of the weights, rose by this (0.1) while correctness did
    not: a hack."""
    truncation: AlarmConfig = AlarmConfig(threshold=0.4)
    """So many completions were cut at the length limit (0.4)."""
    entropy_collapse: AlarmConfig = AlarmConfig(threshold=0.05)
    """The entropy of RL fell below this share of the beginning's (0.05), with the task not solved: nothing is
    explored."""
    entropy_blowup: AlarmConfig = AlarmConfig(threshold=0.5)
    """The entropy rose from its lowest by this many nats a token (0.5): the policy turns to noise."""
    kl: AlarmConfig = AlarmConfig(threshold=0.1)
    """The KL to the initial policy is above this many nats a token (0.1); only where `loss.kl_coef` is above 0."""
    ratio: AlarmConfig = AlarmConfig(threshold=0.2)
    """So many tokens had their importance ratio clipped (0.2): the updates are too large, or the samples too old."""
    gap: AlarmConfig = AlarmConfig()
    """Sampler and trainer are apart; its bounds are those of `gap`."""
    grad_spike: AlarmConfig = AlarmConfig(threshold=10)
    """The gradient's norm is this many times any of the 20 steps before (10), or stays so far above their median, or is
    not finite."""
    identical: AlarmConfig = AlarmConfig(threshold=0.5)
    """So many completions are the same as one of another prompt (0.5), more than at the beginning, and not
    correct."""
    grader: AlarmConfig = AlarmConfig(threshold=0.02)
    """So many completions could not be graded (0.02)."""
    solved_pool: AlarmConfig = AlarmConfig(threshold=0.95)
    """So many completions are correct (0.95), or the curriculum has retired so many prompts: nothing is left to
    learn."""
    dead_pool: AlarmConfig = AlarmConfig(threshold=20)
    """Not one completion was correct for this many steps (20), and the reward does not rise meanwhile."""
    no_signal: AlarmConfig = AlarmConfig(threshold=5)
    """No group had rewards that differ for this many steps in a row (5): the weights stay as they are."""

    @model_validator(mode="after")
    def _check_gap(self) -> AlarmsConfig:
        if self.gap.threshold is not None:
            raise UserError("the alarm gap has no threshold: set gap.mean, gap.max and gap.stop")
        return self

    def of(self, name: str) -> AlarmConfig:
        """The settings of an alarm, decided: its own, else the action of all and its default threshold."""
        own: AlarmConfig = getattr(self, name)
        default: AlarmConfig = type(self).model_fields[name].default
        return AlarmConfig(action=own.action or self.action, threshold=own.threshold or default.threshold)
