"""Tasks of RL, with their weights and sampling."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from hone.config.base import changed
from hone.config.shared import EnvConfig, SamplingConfig
from hone.errors import UserError


class TaskConfig(EnvConfig):
    """A task, and a selection of its training examples."""

    profile: Path | None = None
    """File with pass rates of training examples, which `hone eval ENV --profile FILE` writes."""
    pass_rate: tuple[float, float] | None = None
    """With `profile`: train only on examples within these two pass rates, such as [0.1, 0.9]."""

    @field_validator("pass_rate", mode="before")
    @classmethod
    def _two_rates(cls, value: Any) -> Any:
        if value is not None and not (isinstance(value, list | tuple) and len(value) == 2):
            raise UserError(f"pass_rate {value} is not two rates: set, for example, [0.1, 0.9]")
        return value

    @model_validator(mode="after")
    def _check_profile(self) -> TaskConfig:
        if (self.profile is None) != (self.pass_rate is None):
            raise UserError("orchestrator.env.profile and orchestrator.env.pass_rate only work together: set both")
        if self.pass_rate is not None and not 0 <= self.pass_rate[0] <= self.pass_rate[1] <= 1:
            raise UserError(
                f"pass_rate = {[*self.pass_rate]} is not two rates from 0 to 1, the lower one first: set, for "
                "example, [0.1, 0.9]"
            )
        return self


class OwnSamplingConfig(SamplingConfig):
    """Sampling of one of several tasks."""

    partial = True


class MixedEnvConfig(EnvConfig):
    """One of several tasks."""

    name: str = Field(default="", pattern=r"^[^/\s]*$")
    """The task's name in metrics and ledger; by default its id."""
    sampling: OwnSamplingConfig = OwnSamplingConfig()
    """Keys that differ from `orchestrator.sampling`; trained tasks can't change `temperature`."""

    @model_validator(mode="after")
    def _settle_name(self) -> Self:
        self.name = self.name or self.id
        return self

    def sampled(self, common: SamplingConfig) -> SamplingConfig:
        return changed(common, {name: getattr(self.sampling, name) for name in self.sampling.model_fields_set})


class TrainEnvConfig(MixedEnvConfig, TaskConfig):
    """One of several tasks to train on."""

    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Share of a step's prompts, relative to other tasks' weights."""


def check_names(envs: Sequence[MixedEnvConfig], key: str) -> None:
    names = [env.name for env in envs]
    if clash := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f'two tasks in {key} have the name "{clash}": give one of them another `name`')
