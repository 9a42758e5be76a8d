"""Config of `hone eval`, with the flags of verifiers' `vf-eval`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field, field_validator, model_validator

from hone.config.base import BaseConfig, Meta, flag, with_keys
from hone.config.hoist import task_of_run
from hone.config.shared import DEFAULT_PRECISION, GradingConfig, KeyVariable, Precision, server_url
from hone.errors import UserError
from hone.extension import machines_of

MAX_TOKENS = 1024
"""Most new tokens per completion by default."""
NEEDS_SERVER = {"api_key_var", "concurrency", "timeout", "max_retries"}
NEEDS_PROCESS = {"precision", "threads", "kv_gib", "chat_template", "special_tokens"}
"""Fields that only a server (`base_url`) uses, and fields that only a model in this process uses."""
SAMPLING = {"temperature", "top_p", "max_tokens", "seed"}
"""Sampling arguments that have a flag besides `sampling_args`."""


@with_keys("eval")
class EvalConfig(BaseConfig):
    """Evaluate a model on an environment's held-out examples: a checkpoint in this process, or any server at a URL."""

    positional = "env"

    @classmethod
    def of_run(cls, kind: str, table: dict[str, Any]) -> dict[str, Any]:
        """Return a training run's task and task arguments; for an RL run also the sampling of its evaluations."""
        sampling = sampling_of_run(table) if kind == "rl" else {}
        return task_of_run(kind, table, "template") | sampling

    env: str = "reverse-text"
    """Task id; also the first word of the command line."""
    env_args: dict[str, Any] = Field(default={}, validation_alias=AliasChoices("env_args", "a"))
    """Keyword arguments of the task, as JSON."""
    template: dict[str, Any] | None = None
    """Columns for the task, made from columns of its data set: `question = "{problem}"`."""
    model: str = Field(default="hone/tiny", validation_alias=AliasChoices("model", "m"))
    """A folder in Hugging Face layout, a hub id, or `hone/tiny`; with -b the model's name on the server."""
    base_url: str | None = Field(default=None, validation_alias=AliasChoices("base_url", "b", "api_base_url"))
    """URL of a server with OpenAI's chat protocol, such as http://localhost:8000/v1; by default the model runs here."""
    api_key_var: KeyVariable = Field(default=None, validation_alias=AliasChoices("api_key_var", "k"))
    """Environment variable that holds the server's API key."""
    num_examples: int = Field(default=5, ge=1, validation_alias=AliasChoices("num_examples", "n"))
    """Number of held-out examples."""
    rollouts_per_example: int = Field(default=3, ge=1, validation_alias=AliasChoices("rollouts_per_example", "r"))
    """Completions per example."""
    concurrency: int = Field(default=32, ge=1, validation_alias=AliasChoices("concurrency", "c", "max_concurrent"))
    """Most requests to the server at one time."""
    max_tokens: int | None = Field(default=None, ge=1, validation_alias=AliasChoices("max_tokens", "t"))
    """Most new tokens per completion; by default 1024, or less if a local model's context has less room."""
    temperature: float = Field(default=1.0, ge=0, validation_alias=AliasChoices("temperature", "T"))
    """Sampling temperature; 0 is greedy (in this process also below 1e-5)."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample among the likeliest tokens with this total probability (nucleus sampling); 1 is off."""
    sampling_args: dict[str, Any] = Field(default={}, validation_alias=AliasChoices("sampling_args", "S"))
    """More sampling arguments, as JSON, such as '{"top_k": 20}'. A server gets them unchanged; an argument that is null
    is not sent. In this process, `seq_len` (at least `max_tokens`) limits prompt plus completion."""
    profile: Path | None = None
    """Measure training examples instead of held-out ones, and write each example's pass rate to this Parquet file."""
    save: bool = Field(default=True, validation_alias=AliasChoices("save", "s", "save_results"))
    """Save samples and results."""
    seed: int = Field(default=0, ge=0)
    """Seed of sampling."""
    timeout: float = Field(default=600.0, gt=0)
    """Seconds before a request for a completion is sent again."""
    max_retries: int = Field(default=6, ge=0)
    """Retries after statuses 429 and 5xx and lost connections; 6 take about a minute."""
    output_dir: Path | None = None
    """Folder to save in; by default `outputs/evals/<env>--<model>/<id>`."""
    precision: Precision = DEFAULT_PRECISION
    """`fp32`, `bf16_linear` (matrix products in bf16) or `bf16`."""
    threads: Annotated[int | None, Meta(from_machine=True)] = Field(default=None, ge=1)
    """CPU threads; by default 1 for models under 10M parameters, else one per core."""
    kv_gib: Annotated[float | None, Meta(from_machine=True)] = Field(default=None, gt=0)
    """Memory of the KV cache, in GiB; by default 4 on a CPU, and half of the free memory on a GPU."""
    grading: GradingConfig = GradingConfig()
    """Execution of reward functions."""
    chat_template: str | None = None
    """Overrides the model's chat template: a file path, or the Jinja text itself."""
    special_tokens: bool = False
    """Encode special tokens in prompts and tool answers as special; by default, as plain text."""

    @field_validator("base_url")
    @classmethod
    def _check_url(cls, url: str | None) -> str | None:
        return None if url is None else server_url(url, "-k")

    @model_validator(mode="after")
    def _check_flags(self) -> EvalConfig:
        # A saved config.toml has all fields: only values that differ from the default were meant.
        meant = {name for name, field in type(self).model_fields.items() if getattr(self, name) != field.default}
        for name in meant & NEEDS_SERVER if self.base_url is None and machines_of(self) is None else ():
            raise UserError(f"{flag((name,))} is for a server: give the server's URL with -b")
        for name in meant & NEEDS_PROCESS if self.base_url is not None else ():
            raise UserError(f"{flag((name,))} is for a model in this process: leave it out if a server (-b) is used")
        for name in meant & SAMPLING & self.sampling_args.keys():
            raise UserError(f"{name} is set twice, in -S and by a flag or file: leave out one of the two")
        limit = self.sampling_args.get("seq_len")
        if limit is not None and (type(limit) is not int or limit < 2):
            raise UserError("seq_len (-S) should be a whole number of 2 or more")
        return self

    @property
    def split_name(self) -> Literal["train", "eval"]:
        return "train" if self.profile else "eval"

    def sampling(self) -> dict[str, Any]:
        """Return all sampling arguments: the flags' values, overridden by `sampling_args`."""
        flags = {name: getattr(self, name) for name in ("temperature", "top_p", "seed")}
        flags |= {"max_tokens": self.max_tokens or MAX_TOKENS}
        # Servers refuse two names of one limit, and apply a limit equal to `seq_len` themselves.
        named, limit = "max_completion_tokens" in self.sampling_args, self.sampling_args.get("seq_len", 0)
        if (named and self.max_tokens is None) or (self.base_url and self.max_tokens == limit):
            del flags["max_tokens"]
        return flags | {name: value for name, value in self.sampling_args.items() if name != "seq_len"}

    @property
    def seq_len(self) -> int | None:
        """Most tokens of prompt plus completion in this process; None: the model's context is the limit."""
        limit = self.sampling_args.get("seq_len")
        return None if limit is None or (self.max_tokens or MAX_TOKENS) > limit else limit


def sampling_of_run(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampling of an RL run's evaluations. `max_tokens` and `stop` default to the values in training."""
    orch, seq_len = table.get("orchestrator", {}), table.get("seq_len")
    training, evaluated = orch.get("sampling", {}), orch.get("eval", {}).get("sampling", {})
    if len(tasks := orch.get("envs", [])) == 1:
        training = training | tasks[0].get("sampling", {})
    limits = {name: evaluated.get(name) or training.get(name) for name in ("max_tokens", "stop")}
    args = {name: evaluated.get(name) for name in ("top_k", "min_p")} | {"stop": limits["stop"], "seq_len": seq_len}
    found = {"max_tokens": limits["max_tokens"] or seq_len, "seed": table.get("seed")}
    found |= {name: evaluated.get(name) for name in ("temperature", "top_p")}
    found |= {"sampling_args": {name: value for name, value in args.items() if value}}
    return {name: value for name, value in found.items() if value is not None}
