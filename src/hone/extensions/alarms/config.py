"""Settings of a run's alarms (`rules` says when they are raised), and of `hone runs predictions`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, create_model, model_validator

from hone.config.base import BaseConfig, Meta
from hone.errors import UserError

Action = Literal["off", "warn", "checkpoint", "pause", "stop"]

ALARMS = {
    "falling_reward": (0.15, "The reward fell by `threshold` of its best value while completions grew by a fifth."),
    "zero_std": (0.8, "The share `threshold` of the groups have equal rewards, which teach nothing."),
    "unparsable": (0.1, "The share of unparsable completions is `threshold` above its lowest."),
    "wrong": (0.15, "The share of correct completions is `threshold` below its best; more are well-formed, but wrong."),
    "component": (0.1, "A component other than correctness rose by `threshold` (weighted), but correctness did not."),
    "truncation": (0.4, "The share `threshold` of completions were cut off at the length limit."),
    "entropy_collapse": (0.05, "The entropy fell below `threshold` of the initial entropy before the task was solved."),
    "entropy_blowup": (0.5, "The entropy is `threshold` nats a token above its lowest."),
    "kl": (0.1, "The KL to the initial policy is above `threshold` nats a token; needs `loss.kl_coef` above 0."),
    "ratio": (0.2, "The importance ratio was clipped for the share `threshold` of tokens."),
    "gap": (None, "Logprobs of sampler and trainer differ by more than the bounds of `gap`."),
    "regraded": (None, "Recorded completions were graded again, with other scores: the reward changes or is random."),
    "grad_spike": (10, "The gradient's norm is `threshold` times the norm of the 20 steps before, or not finite."),
    "identical": (
        0.5,
        "The share `threshold` of completions equal another prompt's, more than at first; few are right.",
    ),
    "grader": (0.02, "The share `threshold` of completions could not be graded."),
    "solved_pool": (0.95, "The share `threshold` of completions are correct, or of prompts are retired."),
    "dead_pool": (20, "No completion was correct for `threshold` steps, and the reward does not rise."),
    "no_signal": (5, "No group was trained on for `threshold` steps in a row."),
}
"""The default threshold of each alarm, and its description."""


class AlarmConfig(BaseConfig):
    """Settings of one alarm."""

    bare = "action"

    action: Action | None = None
    """Action of this alarm; overrides `alarms.action`."""
    threshold: float | None = Field(default=None, gt=0)
    """Threshold, in the unit of the alarm's description."""


_fields: dict[str, Any] = {
    name: (AlarmConfig, Field(AlarmConfig(threshold=usual), description=text)) for name, (usual, text) in ALARMS.items()
}


class AlarmsConfig(create_model("AlarmFields", __base__=BaseConfig, **_fields)):
    """Checks every step for known problems. `hone runs show` lists what was found."""

    bare = "action"

    action: Annotated[Action, Meta("watching")] = "warn"
    """`off`, `warn`, `checkpoint` (warn, save), `pause` (save, wait for `hone runs continue`) or `stop` (save, end)."""
    window: int = Field(default=10, ge=2)
    """Number of steps to average. Alarms compare the last average with earlier ones."""

    @model_validator(mode="after")
    def _check_thresholds(self) -> AlarmsConfig:
        if self.of("gap").threshold is not None:
            raise UserError("the alarm gap has no threshold: set gap.mean, gap.max and gap.stop")
        if self.of("regraded").threshold is not None:
            raise UserError("the alarm regraded has no threshold: any changed score raises it")
        return self

    def of(self, name: str) -> AlarmConfig:
        """Return an alarm's settings; where unset, the common action and the default threshold."""
        alarm: AlarmConfig = getattr(self, name)
        return AlarmConfig(action=alarm.action or self.action, threshold=alarm.threshold or ALARMS[name][0])


class RunsPredictionsConfig(BaseConfig):
    """Predictions of the runs under a folder, with their scores."""

    positional = "root"

    root: Path = Path("outputs")
    """Folder of runs; also the first word of the command line. Runs in `.previous/` count as well."""
    jsonl: bool = False
    """Print each prediction as a line of JSON, without overall scores."""
