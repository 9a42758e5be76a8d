"""The section `teacher` of `hone rl`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from hone.config.base import BaseConfig, Meta
from hone.config.servers import AskedConfig
from hone.config.shared import server_url
from hone.errors import UserError


class TeacherConfig(AskedConfig):
    """On-policy distillation: a larger model behind a server scores each sampled token, and the policy learns from
    these scores. The teacher must have the policy's tokenizer. Serve it with hone (`inference`) or vLLM."""

    place = "teacher"

    base_url: Annotated[str, Meta(decides="rounding")]
    """URL of the teacher's server, such as http://localhost:8001/v1."""
    timeout: Annotated[float, Meta(decides="nothing")] = Field(default=600.0, gt=0)
    """Seconds to wait for the scores of one completion. Without an answer the run ends."""
    model: str | None = None
    """The teacher's model name on the server; by default the only model there."""
    coef: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Weight, in a token's advantage, of log π_teacher - log π, which is minus the token's reverse KL."""
    reward_coef: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Weight, in a token's advantage, of the advantage from rewards. With 0, only the teacher counts."""

    @field_validator("base_url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        return server_url(url, f"{cls.place}.api_key_var")


class RLKeys(BaseConfig):
    """The keys of `hone rl`."""

    teacher: TeacherConfig | None = None
    """A teacher to distill; off unless given."""

    @model_validator(mode="after")
    def _check_teacher(self: Any) -> Any:
        if self.teacher is None:
            return self
        orch, samplings = self.orchestrator, [one.orchestrator.sampling for one in self.tasks().values()]
        if any(sampling.temperature != 1 or sampling.cuts for sampling in samplings):
            raise UserError(
                "comparing with a teacher needs the policy's unchanged probabilities: set "
                "orchestrator.sampling.temperature to 1, and leave out top_k, top_p and min_p"
            )
        if orch.refill is not None:
            raise UserError(
                "with a teacher, groups with equal rewards train the policy, too, so orchestrator.refill has nothing "
                "to replace: leave it out"
            )
        if self.trainer.loss.type == "gspo":
            raise UserError(
                'trainer.loss.type = "gspo" has one ratio for a completion, but a teacher scores each token: '
                'set trainer.loss.type to "clip"'
            )
        return self
