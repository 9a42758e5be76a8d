"""`hone audit ENV`, `hone audit --template MODEL`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import AliasChoices, Field, model_validator

from hone.config.base import BaseConfig, flag
from hone.config.hoist import task_of_run
from hone.config.shared import DEFAULT_PRECISION, Precision
from hone.errors import UserError

TASK_FIELDS = {"env_args", "env_template", "num_examples", "split", "model", "max_tokens", "rollouts_per_example"}
"""Fields that don't apply to a chat template."""


class AuditConfig(BaseConfig):
    """Find a broken reward before it costs money: test a task's grader, or a model's chat template (`--template`).

    Exit code 0 if nothing fails, 1 if something does.
    """

    positional = "env"

    @classmethod
    def of_run(cls, kind: str, table: dict[str, Any]) -> dict[str, Any]:
        return task_of_run(kind, table, "env_template")

    env: str | None = None
    """Task id; also the first word of the command line."""
    env_args: dict[str, Any] = Field(default={}, validation_alias=AliasChoices("env_args", "a"))
    """Keyword arguments of the task, as JSON."""
    env_template: dict[str, Any] | None = None
    """Columns for the task, made from columns of its data set: `question = "{problem}"`."""
    template: str | None = None
    """Audit the chat template of this model instead: a folder in Hugging Face layout, a hub id, or `hone/tiny`."""
    num_examples: int = Field(default=32, ge=1, validation_alias=AliasChoices("num_examples", "n"))
    """Number of examples to try."""
    split: Literal["train", "eval"] = "train"
    """Split of the examples."""
    allow: dict[str, str] = {}
    """Findings that are intended, with the reason: `--allow.growth "answers are short"`."""
    timeout: float = Field(default=2.0, gt=0)
    """Seconds of processor time that grading one text may take."""
    model: str | None = Field(default=None, validation_alias=AliasChoices("model", "m"))
    """Also sample from this model (named as in `hone eval`), to measure pass rate, equal rewards and truncation."""
    rollouts_per_example: int = Field(default=8, ge=2, validation_alias=AliasChoices("rollouts_per_example", "r"))
    """Completions of the model per example."""
    max_tokens: int | None = Field(default=None, ge=1, validation_alias=AliasChoices("max_tokens", "t"))
    """Limit of new tokens per completion, in training and in this audit (by default 1024)."""
    temperature: float = Field(default=1.0, ge=0, validation_alias=AliasChoices("temperature", "T"))
    """Sampling temperature of the model."""
    seed: int = Field(default=0, ge=0)
    """Seed that chooses the examples, and seed of sampling."""
    as_json: bool = Field(default=False, validation_alias=AliasChoices("as_json", "json"))
    """Print the report as JSON instead of tables."""
    html: Path | None = None
    """Write the report as a single HTML file."""
    precision: Precision = DEFAULT_PRECISION
    """`fp32`, `bf16_linear` (matrix products in bf16) or `bf16`."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads; by default 1 for models under 10M parameters, else one per core."""
    chat_template: str | None = None
    """Overrides the model's chat template: a file path, or the Jinja text itself."""

    @model_validator(mode="after")
    def _check_subject(self) -> AuditConfig:
        if (self.env is None) == (self.template is None):
            what = "audit either a task (`hone audit gsm8k`) or a model's chat template"
            raise UserError(f"{what} (`hone audit --template PATH`)" + (", not both" if self.env else ""))
        given = {name for name, field in type(self).model_fields.items() if getattr(self, name) != field.default}
        for name in given & TASK_FIELDS if self.template is not None else ():
            raise UserError(f"{flag((name,))} is for the audit of a task, not of a chat template: leave it out")
        if self.chat_template is not None and self.template is None and self.model is None:
            raise UserError("--chat-template needs a model: name it with --template, or with -m to sample")
        return self
