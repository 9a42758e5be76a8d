"""`hone rl`: one schema for every mode. Keys shared by the roles live at the top; see `hone.config.hoist`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hone.config.base import BaseConfig
from hone.config.shared import (
    CkptConfig,
    EnvConfig,
    ModelConfig,
    OptimConfig,
    RunConfig,
    SamplingConfig,
    SchedulerConfig,
)


class SectionConfig(BaseConfig):
    """Keys that belong to the top of the config, accepted inside every section too (so that each file stands alone)."""

    model: ModelConfig | None = None
    """Shared key: see `model` at the top."""
    max_steps: int | None = None
    """Shared key: see `max_steps` at the top."""
    seq_len: int | None = None
    """Shared key: see `seq_len` at the top."""
    ckpt: CkptConfig | None = None
    """Shared key: see `ckpt` at the top."""


class LossConfig(BaseConfig):
    """Token-level clipped policy-gradient loss."""

    eps_low: float = Field(0.2, ge=0, lt=1)
    """The importance ratio is clipped below at 1 - eps_low."""
    eps_high: float = Field(0.28, ge=0)
    """The importance ratio is clipped above at 1 + eps_high (clip-higher, DAPO)."""
    kl_coef: float = Field(0.0, ge=0)
    """Weight of the k3 KL estimate to the initial policy; 0 keeps no reference model."""


class TrainerConfig(SectionConfig):
    """The trainer."""

    optim: OptimConfig = OptimConfig()
    """AdamW."""
    scheduler: SchedulerConfig = SchedulerConfig()
    """Learning rate schedule."""
    loss: LossConfig = LossConfig()
    """Policy-gradient loss."""
    micro_batch_tokens: int = Field(16384, ge=1)
    """Tokens per forward and backward pass; a larger batch accumulates gradients."""


class AdvantageConfig(BaseConfig):
    """Advantage of a completion: its reward minus the mean of its group."""

    normalize_std: bool = False
    """Divide by the group's standard deviation (GRPO); off is Dr. GRPO's unbiased form."""


class OnlineEvalConfig(BaseConfig):
    """Evaluation on held-out examples during the run."""

    interval: int = Field(50, ge=1)
    """Steps between evaluations; step 0 and the end are always evaluated."""
    num_examples: int = Field(128, ge=1)
    """Held-out examples."""
    rollouts_per_example: int = Field(1, ge=1)
    """Completions per example."""
    sampling: SamplingConfig = SamplingConfig()
    """How evaluation samples; `max_tokens` defaults to training's."""


class ClientConfig(BaseConfig):
    """The inference server (split mode)."""

    base_url: str = "http://localhost:8000/v1"
    """OpenAI-compatible URL."""


class OrchestratorConfig(SectionConfig):
    """The orchestrator: what is sampled, how it is graded and packed."""

    batch_size: int = Field(128, ge=1)
    """Completions per step; a multiple of `rollouts_per_example`."""
    rollouts_per_example: int = Field(16, ge=2)
    """Completions per prompt (the group G); at least 2, for the group mean is the baseline."""
    max_examples: int | None = Field(None, ge=1)
    """Use only the first this many training examples."""
    truncated: Literal["keep", "mask"] = "keep"
    """A completion stopped by length: `keep` trains on it with the reward it got; `mask` leaves it out of the loss (it still counts in its group's mean)."""
    sampling: SamplingConfig = SamplingConfig()
    """How rollouts are sampled."""
    env: EnvConfig = EnvConfig()
    """The task."""
    advantage: AdvantageConfig = AdvantageConfig()
    """Advantages."""
    eval: OnlineEvalConfig | None = None
    """Evaluation; off unless given."""
    client: ClientConfig = ClientConfig()
    """The inference server (split mode)."""
    max_async_level: int = Field(0, ge=0)
    """How many versions the sampler may lag behind the trainer; 0 is lock-step."""


class InferenceConfig(SectionConfig):
    """The sampler."""

    port: int = Field(8000, ge=1, le=65535)
    """Port of the server."""
    backend: Literal["hone", "vllm"] = "hone"
    """Own engine, or vLLM."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """vLLM's `--dtype`; the own engine follows `precision`."""


class RLConfig(RunConfig):
    """Reinforcement learning with verifiable rewards."""

    seq_len: int = Field(2048, ge=2)
    """Prompt plus completion in tokens; a completion gets min(`max_tokens`, what the prompt leaves)."""
    mode: Literal["colocated", "split", "cluster"] | None = None
    """One process; one process per role; Ray. By default colocated, or split when sections are files of their own."""
    trainer: TrainerConfig = TrainerConfig()
    """The trainer."""
    orchestrator: OrchestratorConfig = OrchestratorConfig()
    """The orchestrator."""
    inference: InferenceConfig = InferenceConfig()
    """The sampler."""
