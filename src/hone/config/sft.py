"""`hone sft`: supervised fine-tuning."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from hone.config.base import BaseConfig, Meta
from hone.config.shared import EnvConfig, MemoryConfig, OptimConfig, RunConfig, SchedulerConfig
from hone.errors import UserError


class SFTDataConfig(BaseConfig):
    """Text to imitate: a data set (`name` or `path`), an environment's demonstrations (`env`) or the best completions
    of a run (`run`)."""

    name: Annotated[str | None, Meta("data")] = None
    """Hub id of a data set with columns `messages`, or `prompt` and `completion`."""
    path: Annotated[str | None, Meta("data")] = None
    """Local JSONL or Parquet file (or a folder of files) with columns as for `name`."""
    split: Annotated[str, Meta("data")] = "train"
    """Split of the data set."""
    template: Annotated[dict[str, Any] | None, Meta("data")] = None
    """Make SFT's columns (and `tools`) from other columns: `prompt = "{question}"`, `completion = "{answer}"`."""
    env: EnvConfig | None = None
    """Task to imitate by its `demonstrate` function, which makes new demonstrations for each step."""
    run: Annotated[str | None, Meta("data")] = None
    """Directory or id of an RL run or an evaluation: imitate the best recorded completion of each example."""
    min_reward: Annotated[float, Meta("data")] = 1.0
    """With `run`: leave out an example if its best reward is lower."""
    seq_len: Annotated[int, Meta("data")] = Field(default=4096, ge=2)
    """Tokens per packed row; without packing, most tokens per example."""
    batch_size: Annotated[int, Meta("data")] = Field(default=16, ge=1)
    """Number of packed rows per step; with `pack = false`, number of examples."""
    pack: Annotated[bool, Meta("data")] = True
    """Join examples into rows of `seq_len` tokens; attention stays within each example."""
    micro_batch_tokens: Annotated[int | None, Meta(from_machine=True)] = Field(default=None, ge=1)
    """Tokens per forward and backward pass (default: 4096 on a CPU, 16384 on a GPU); gradients are accumulated."""
    too_long: Annotated[Literal["error", "drop", "truncate"], Meta("data")] = "error"
    """Examples longer than `seq_len`: stop with an `error`, `drop` them or `truncate` them."""


class ValConfig(BaseConfig):
    """Validation loss on held-out data."""

    interval: Annotated[int, Meta("training")] = Field(default=50, ge=1)
    """Steps between validations; the last step is always validated."""
    fraction: Annotated[float, Meta("training")] = Field(default=0.05, gt=0, lt=1)
    """Share of the data set to hold out; if the data come from a task, its eval split is used instead."""
    max_examples: int = Field(default=256, ge=1)
    """Most examples in one validation."""


class SFTOptimConfig(OptimConfig):
    """AdamW or Muon with the usual learning rate of SFT."""

    lr: Annotated[float, Meta("training")] = Field(default=2e-5, gt=0)
    """Peak learning rate."""


class SFTConfig(RunConfig, MemoryConfig):
    """Supervised fine-tuning: imitate a data set or an environment's demonstrations."""

    headings = "Model and data: data; Run: run below; Training: training decay; Watching; Machine"

    data: SFTDataConfig = SFTDataConfig()
    """Data to imitate."""
    optim: SFTOptimConfig = SFTOptimConfig()
    """Optimiser."""
    scheduler: SchedulerConfig = SchedulerConfig()
    """Learning rate schedule."""
    val: ValConfig | None = None
    """Validation; off unless given."""

    @model_validator(mode="after")
    def _check_data(self) -> SFTConfig:
        given = [f"data.{name}" for name in ("name", "path", "env", "run") if getattr(self.data, name) is not None]
        if len(given) != 1:
            problem = "has no data to imitate" if not given else f"has {' and '.join(given)}"
            raise UserError(
                f"the config {problem}: set exactly one of data.name (a hub data set), data.path (a local file), "
                "data.env.id (an environment's demonstrations) and data.run (a run's completions)"
            )
        if self.data.min_reward != SFTDataConfig.model_fields["min_reward"].default and self.data.run is None:
            raise UserError("data.min_reward is for completions of data.run: set data.run, or leave min_reward out")
        template = self.data.template
        if template is not None and (self.data.env or self.data.run) is not None:
            raise UserError("data.template is for data.name and data.path: set data.env.template for an environment")
        if template is not None and set(template) - {"tools"} not in ({"messages"}, {"prompt", "completion"}):
            made = " and ".join(template) or "nothing"
            raise UserError(f"data.template makes {made}, but SFT needs messages, or prompt and completion")
        return self
