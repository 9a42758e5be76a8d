"""Loss, off-policy correction and advantages, and the keys of published algorithms (`docs/algorithms.md`).

By default, the advantage is the reward minus the group's mean, without a scale; PPO's surrogate clips the ratio at 0.8
and 1.28; each token has equal weight, but 0 in groups of equal rewards; and there is no KL term.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import Field, model_validator

from hone.config.base import BaseConfig, Meta, value_of
from hone.errors import UserError

LossType = Literal["clip", "gspo", "cispo", "sapo", "dppo", "reinforce"]
CLIPS = {"clip": (0.2, 0.28), "gspo": (3e-4, 4e-4), "cispo": (0.0, 5.0), "dppo": (0.2, 0.2)}
"""Default `eps_low` and `eps_high` of loss types that clip."""


class LossConfig(BaseConfig):
    """Policy-gradient loss."""

    bare = "type"

    type: Annotated[LossType, Meta("training")] = "clip"
    """`clip` (PPO's surrogate, as in GRPO and DAPO), `gspo`, `cispo`, `sapo`, `dppo` (prime-rl's) or `reinforce`."""
    function: str | None = None
    """A custom loss, `MODULE:FUNCTION`, instead of `type`."""
    old_policy: Literal["sampler", "trainer"] = "sampler"
    """Policy in the denominator of the importance ratio. `sampler`: the sampler, which corrects for its older weights
    and other kernels. `trainer`: the trainer before the step's first update; a `correction` implies this choice."""
    eps_low: float | None = Field(default=None, ge=0, lt=1)
    """Lower bound of the ratio: 1 - eps_low (default 0.2; gspo: 3e-4). dppo: largest fall of a token's probability."""
    eps_high: float | None = Field(default=None, ge=0)
    """Upper bound of the ratio: 1 + eps_high, for cispo eps_high. dppo: largest rise of a token's probability. Default:
    0.28; gspo: 4e-4; cispo: 5; dppo: 0.2."""
    dual_clip: float | None = Field(default=None, gt=1)
    """Upper bound of the ratio if the advantage is negative; by default 3 if `max_async_level` > 0, else off."""
    ratio_penalty: float = Field(default=1e-3, ge=0)
    """Weight of the squared log ratio in dppo."""
    aggregation: Annotated[Literal["token", "sequence", "prompt", "constant"], Meta("training")] = "token"
    """Unit that has equal weight in the step's loss: `token`, `sequence` (completion) or `prompt`. `constant`: divide a
    completion's summed loss by the longest possible length."""
    count_filtered: bool = False
    """Count groups of equal rewards in the divisor of the loss."""
    kl_coef: Annotated[float, Meta("training")] = Field(default=0.0, ge=0)
    """Weight of the KL divergence to the reference (the initial policy); 0 is off."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimate of a token's KL: log ratio (`k1`), half of its square (`k2`), or Schulman's `k3`."""
    kl_in: Literal["loss", "reward"] = "loss"
    """`loss`: add the KL to the loss. `reward`: subtract a completion's summed KL from its reward, before baseline and
    scale; with the scale `token_std`, subtract from each token's reward the KL summed from this token to the end."""
    kl_bias_correction: bool = False
    """Multiply the KL in the loss by the ratio. `k1` and `k3` then have the gradient of
    KL(policy || reference), as with `use_bias_correction_kl` in TRL (DeepSeek-V3.2)."""
    reference_interval: int | None = Field(default=None, ge=1)
    """Steps between copies of the policy to the reference; if unset, the reference stays the initial policy."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """Weight of an entropy bonus, against a collapse of the policy."""

    @property
    def regularized(self) -> bool:
        return self.kl_coef > 0 or self.entropy_coef > 0

    @property
    def kl_in_reward(self) -> bool:
        return self.kl_coef > 0 and self.kl_in == "reward"

    @property
    def range(self) -> tuple[float, float]:
        low, high = CLIPS.get(self.type, (0.0, 0.0))
        return low if self.eps_low is None else self.eps_low, high if self.eps_high is None else self.eps_high

    @model_validator(mode="after")
    def _check_loss(self) -> LossConfig:
        if self.kl_coef and self.kl_in == "loss" and self.kl_estimator == "k1" and not self.kl_bias_correction:
            raise UserError(
                'the gradient of k1 in the loss is 0 on average: set kl_estimator to "k2" or "k3", or kl_in to "reward"'
            )
        if self.kl_bias_correction and self.kl_in == "reward":
            raise UserError('kl_bias_correction is for the KL in the loss: leave it out, or set kl_in = "loss"')
        if self.kl_coef and self.kl_in == "reward" and self.kl_estimator != "k1":
            raise UserError('the KL in the reward is estimated by k1, the log ratio: also set kl_estimator = "k1"')
        if self.reference_interval and not self.kl_coef:
            raise UserError("reference_interval updates the reference of the KL divergence: also set kl_coef")
        return self


class CorrectionConfig(BaseConfig):
    """Off-policy correction by ρ, a token's probability in the trainer before the update, divided by its probability
    in the sampler."""

    bare = "type"

    type: Annotated[Literal["none", "token", "sequence", "band", "geometric"], Meta("training")] = "none"
    """A token's weight in the loss; ρ = trainer's / sampler's probability. `token`: min(ρ, `cap`) (truncated importance
    sampling); `sequence`: min(product of a completion's ρ, `cap`); `band`: ρ if `low` <= ρ <= `high`, else 0 (IcePop);
    `geometric`: 1 if the geometric mean of a completion's ρ is from `low` to `high`, else 0."""
    cap: float = Field(default=2.0, gt=0)
    """Largest weight, for `token` and `sequence`."""
    low: float | None = Field(default=None, ge=0)
    """Lowest accepted ρ; by default 0.5 for `band`, 0.99 for `geometric`."""
    high: float | None = Field(default=None, gt=0)
    """Highest accepted ρ; by default 5 for `band`, 1.01 for `geometric`."""

    @property
    def range(self) -> tuple[float, float]:
        low, high = {"band": (0.5, 5.0), "geometric": (0.99, 1.01)}.get(self.type, (0.0, 1.0))
        return low if self.low is None else self.low, high if self.high is None else self.high

    @model_validator(mode="after")
    def _check_range(self) -> CorrectionConfig:
        low, high = self.range
        if low >= high:
            raise UserError(f"correction.low = {low:g} must be less than correction.high = {high:g}")
        return self


class AdvantageConfig(BaseConfig):
    """Advantage of a completion: its reward minus a baseline, divided by a scale."""

    function: str | None = None
    """Custom advantages, `MODULE:FUNCTION`, instead of the keys below."""
    baseline: Annotated[Literal["group", "leave_one_out", "batch"], Meta("training")] = "group"
    """Mean reward to subtract: of the `group`, of the group's other completions (`leave_one_out`, RLOO), or of the step
    (`batch`)."""
    scale: Annotated[Literal["none", "group_std", "batch_std", "token_std", "group_mean"], Meta("training")] = "none"
    """Divisor: 1 (`none`, Dr. GRPO), standard deviation in the group (`group_std`, GRPO) or step (`batch_std`), or the
    group's mean (`group_mean`, MaxRL). `token_std`: subtract the mean over the step's tokens, then divide by the
    tokens' standard deviation (REINFORCE++)."""
    std_ddof: int = Field(default=1, ge=0, le=1)
    """The variance of n rewards divides by n - std_ddof; 1 is usual (TRL, most papers' code)."""
    std_eps: float = Field(default=1e-4, ge=0)
    """Added to the standard deviation before the division."""
    components: Literal["sum", "normalize"] = "sum"
    """`sum`: add the reward components. `normalize` (GDPO): normalise each component in its group, add the components,
    and normalise the sum over the step; `baseline` and `scale` are not used."""

    @property
    def divides_by_mean(self) -> bool:
        """True if advantages divide by a mean reward, so that rewards must be 0 or more."""
        return self.scale == "group_mean" and self.components == "sum" and self.function is None

    @property
    def compares_the_batch(self) -> bool:
        """True if the baseline is over all prompts, so one rollout per prompt is enough."""
        return self.baseline == "batch" and self.components == "sum"

    @model_validator(mode="after")
    def _check_scale(self) -> AdvantageConfig:
        if self.baseline == "batch" and self.scale in ("group_std", "group_mean"):
            raise UserError(
                f'advantage.baseline = "batch" does not work with advantage.scale = "{self.scale}": set scale to '
                '"batch_std", "token_std" or "none"'
            )
        return self


Algorithm = Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "maxrl", "reinforce++", "prime"]

_GROUP_STD = {"orchestrator.advantage.baseline": "group", "orchestrator.advantage.scale": "group_std"}
_GROUP_MEAN = {"orchestrator.advantage.baseline": "group", "orchestrator.advantage.scale": "none"}


def _loss(kind: str, aggregation: str, counts_filtered: bool, **more: Any) -> dict[str, Any]:
    keys = {"type": kind, "aggregation": aggregation, "count_filtered": counts_filtered, **more}
    return {f"trainer.loss.{name}": value for name, value in keys.items()}


_OWN: dict[str, dict[str, Any]] = {
    # arXiv:2402.03300, as TRL's loss_type "grpo"; the paper adds a KL term of 0.04, here trainer.loss.kl_coef
    "grpo": _GROUP_STD | _loss("clip", "sequence", True, eps_low=0.2, eps_high=0.2),
    # arXiv:2503.20783
    "dr_grpo": _GROUP_MEAN | _loss("clip", "constant", True, eps_low=0.2, eps_high=0.2),
    # arXiv:2503.14476, as TRL's loss_type "dapo", which counts filtered groups. The paper's length penalty
    # is orchestrator.truncated.
    "dapo": _GROUP_STD | _loss("clip", "token", True, eps_low=0.2, eps_high=0.28),
    # arXiv:2507.18071; its range is narrower than what rounding in bf16 makes of a ratio to the sampler
    "gspo": _GROUP_STD | _loss("gspo", "sequence", True, eps_low=3e-4, eps_high=4e-4, old_policy="trainer"),
    # arXiv:2506.13585
    "cispo": _GROUP_STD | _loss("cispo", "token", True, eps_high=5.0),
    # arXiv:2402.14740
    "rloo": {"orchestrator.advantage.baseline": "leave_one_out", "orchestrator.advantage.scale": "none"}
    | _loss("reinforce", "constant", True, kl_estimator="k1", kl_in="reward"),
    # arXiv:2602.02710
    "maxrl": {"orchestrator.advantage.baseline": "group", "orchestrator.advantage.scale": "group_mean"}
    | _loss("clip", "token", False, eps_low=0.2, eps_high=0.2),
    # arXiv:2501.03262, as OpenRLHF's "reinforce"
    "reinforce++": {"orchestrator.advantage.baseline": "batch", "orchestrator.advantage.scale": "token_std"}
    | _loss("clip", "token", True, eps_low=0.2, eps_high=0.2, kl_estimator="k1", kl_in="reward"),
    # prime-rl's default
    "prime": _GROUP_MEAN | _loss("dppo", "token", False, eps_low=0.2, eps_high=0.2, ratio_penalty=1e-3),
}
_DEFAULTS: dict[str, Any] = {
    "trainer.loss.eps_low": None,
    "trainer.loss.eps_high": None,
    "trainer.loss.old_policy": "sampler",
    "trainer.loss.kl_estimator": "k3",
    "trainer.loss.kl_in": "loss",
    "trainer.loss.kl_bias_correction": False,
    "trainer.loss.ratio_penalty": 1e-3,
}
"""Defaults of the keys in ALGORITHMS. Every algorithm sets all these keys, so a second one undoes the first."""
ALGORITHMS = {name: _DEFAULTS | keys for name, keys in _OWN.items()}
SUMMARIES = {name: ", ".join(f"{key} = {value}" for key, value in keys.items()) for name, keys in _OWN.items()}
assert tuple(ALGORITHMS) == get_args(Algorithm) and len({frozenset(keys) for keys in ALGORITHMS.values()}) == 1


def by_algorithm(config: Any) -> str:
    """Return "by NAME", with the keys that differ from the algorithm, or "" if the config names no algorithm."""
    if config.algorithm is None:
        return ""
    values = {key: value_of(config, key) for key in ALGORITHMS[config.algorithm]}
    others = [f"{key} = {value}" for key, value in values.items() if value != ALGORITHMS[config.algorithm][key]]
    return f"by {config.algorithm}" + (f", but {', '.join(others)}" if others else "")
