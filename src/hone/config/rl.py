"""Config of `hone rl` in all modes. Keys that the roles share are top-level keys; see `hone.config.hoist`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from hone.config import hoist
from hone.config.algorithms import SUMMARIES, AdvantageConfig, Algorithm, CorrectionConfig, LossConfig
from hone.config.base import BaseConfig, Meta, Settings, changed, with_keys
from hone.config.servers import ClientConfig
from hone.config.shared import (
    TRANSPORT,
    EngineConfig,
    GradingConfig,
    MemoryConfig,
    OptimConfig,
    RunConfig,
    SamplingConfig,
    SchedulerConfig,
    TransportConfig,
)
from hone.config.tasks import MixedEnvConfig, TaskConfig, TrainEnvConfig, check_names
from hone.errors import UserError
from hone.extension import sampler_name

GREEDY_BELOW = 1e-5
"""Equal to the value in `hone.types`, which is not imported here because it loads numpy."""


class TrainerConfig(MemoryConfig):
    """Keys of the trainer."""

    is_role = True

    optim: OptimConfig = OptimConfig()
    """Optimiser."""
    scheduler: SchedulerConfig = SchedulerConfig()
    """Learning rate schedule."""
    loss: LossConfig = LossConfig()
    """Policy-gradient loss."""
    correction: CorrectionConfig = CorrectionConfig()
    """Off-policy correction."""
    updates_per_batch: int = Field(default=1, ge=1)
    """Passes over a step's batch (PPO's epochs), each with new updates."""
    minibatches: int = Field(default=1, ge=1)
    """Parts of a batch, split by prompt; each pass makes one update per part."""
    micro_batch_tokens: Annotated[int | None, Meta(from_machine=True)] = Field(default=None, ge=1)
    """Tokens per forward and backward pass (default: 4096 on a CPU, 16384 on a GPU); gradients are accumulated."""
    ranks: Annotated[int, Meta("ranks", -2, decides="rounding")] = Field(default=1, ge=1)
    """Number of trainer processes that `rl` starts or torchrun has started; they split model and batch (FSDP2)."""
    record_tokens: Annotated[bool, Meta(decides="nothing")] = True
    """Save entropy and trainer logprob of each trained token in tokens/ (about 5 bytes a token)."""

    @property
    def keeps_old(self) -> bool:
        """True if the ratio's old policy is the trainer before a step's first update, not the sampler."""
        return self.loss.old_policy == "trainer" or self.correction.type != "none"


class PoolConfig(BaseConfig):
    """Leaves out prompts if almost all or none of their completions are correct."""

    retire_at: float = Field(default=0.9, ge=0, le=1)
    """Stop drawing (retire) prompts with this pass rate or more; 0 is off."""
    park_after: int = Field(default=2, ge=0)
    """Set a prompt aside (park it) after this many draws in a row without a correct completion; 0 is off."""
    retry_parked: int = Field(default=4, ge=0)
    """Draw a parked prompt again this many epochs after its last draw; 0: never."""


class CurriculumConfig(BaseConfig):
    """Order of the prompts. Each prompt of the pool comes once per epoch."""

    order: Literal["shuffled", "sequential", "difficulty"] = "shuffled"
    """`shuffled` in each epoch; `sequential` as in the data; by `difficulty`, with pass rates nearest to 50 % first."""
    window: int = Field(default=1, ge=1)
    """Number of a prompt's last draws that its pass rate counts."""
    pool: PoolConfig | None = None
    """Leaves out prompts that are too easy or too hard."""

    @property
    def measures(self) -> bool:
        """True if draws depend on earlier results; then the ledger records solved rollouts."""
        return self.pool is not None or self.order == "difficulty"


class RefillConfig(BaseConfig):
    """Draws more prompts in a step until its batch is full of groups with unequal rewards (DAPO's dynamic
    sampling).

    Groups with unequal rewards enter the batch in the order of their draws; other groups are ignored.
    """

    max_rounds: int = Field(default=10, ge=1)
    """Most rounds of sampling in a step; then the step trains on fewer groups."""
    oversample: float = Field(default=1.0, ge=1, le=100)
    """Groups to draw in a round for each group that the batch lacks; groups that don't fit the batch are `surplus`."""

    def drawn(self, missing: int) -> int:
        return math.ceil(round(missing * self.oversample, 6))


class OnlineEvalConfig(BaseConfig):
    """Evaluation on held-out examples during the run."""

    interval: Annotated[int, Meta("evaluation")] = Field(default=50, ge=1)
    """Steps between evaluations; there is also one before and one after training. Any eval key turns evaluation on."""
    num_examples: Annotated[int, Meta("evaluation")] = Field(default=128, ge=1)
    """Number of held-out examples."""
    rollouts_per_example: int = Field(default=1, ge=1)
    """Completions per example."""
    sampling: Annotated[SamplingConfig, Meta(common=None)] = SamplingConfig()
    """Sampling in evaluations; `max_tokens` and `stop` default to training's."""
    envs: list[MixedEnvConfig] = []
    """Tasks to evaluate on, instead of the trained ones."""
    overlap: Literal["warn", "drop", "refuse"] = "warn"
    """If a training prompt is also held out: `warn`, `drop` it from training, or `refuse` to start."""

    @model_validator(mode="after")
    def _check_envs(self) -> OnlineEvalConfig:
        check_names(self.envs, "orchestrator.eval.envs")
        return self


class OrchestratorConfig(BaseConfig):
    """Sampling, grading and packing of rollouts."""

    is_role = True

    batch_size: Annotated[int, Meta("rollouts")] = Field(default=128, ge=1)
    """Completions per step; a multiple of `rollouts_per_example`."""
    rollouts_per_example: Annotated[int, Meta("rollouts")] = Field(default=16, ge=1)
    """Completions per prompt (the group): at least 2, since the baseline is the group's mean; 1 needs
    `advantage.baseline = "batch"`."""
    max_examples: Annotated[int | None, Meta("rollouts")] = Field(default=None, ge=1)
    """Use only the first N training examples; by default all."""
    curriculum: CurriculumConfig = CurriculumConfig()
    """Order of the prompts."""
    refill: RefillConfig | None = None
    """Draws more prompts until the batch is full of groups with unequal rewards; off unless given."""
    truncated: Annotated[Literal["keep", "mask", "penalize"], Meta("rollouts", 1)] = "keep"
    """A completion that reached its length limit: `keep` it, leave it out of the loss (`mask`), or lower
    its reward by up to `overlong_penalty` (`penalize`)."""
    overlong_buffer: int = Field(default=0, ge=0)
    """With `penalize`: the penalty grows linearly over this many tokens before the limit (DAPO)."""
    overlong_penalty: float = Field(default=1.0, gt=0)
    """With `penalize`: the penalty at the limit."""
    sampling: SamplingConfig = SamplingConfig()
    """Sampling of rollouts."""
    env: TaskConfig = TaskConfig()
    """The task."""
    envs: list[TrainEnvConfig] = []
    """Several tasks instead of `env`: tables `[[orchestrator.envs]]`, each with a `weight`."""
    grading: Annotated[GradingConfig, Meta(decides="nothing")] = GradingConfig()
    """Execution of reward functions."""
    advantage: AdvantageConfig = AdvantageConfig()
    """Advantages."""
    eval: OnlineEvalConfig | None = None
    """Evaluation; off unless given."""
    client: ClientConfig = ClientConfig()
    """A running server to sample from."""
    max_async_level: Annotated[int | None, Meta(from_machine=True)] = Field(default=None, ge=0)
    """Most updates that the sampler may lag behind the trainer; with 0, sampling waits for each update. By default
    1 in mode split on GPUs without `deterministic` and `inference.batch_invariant`, else 0."""

    @property
    def lag(self) -> int:
        return self.max_async_level or 0

    @property
    def most_groups(self) -> int:
        prompts = self.batch_size // self.rollouts_per_example
        return self.refill.max_rounds * self.refill.drawn(prompts) if self.refill else prompts

    @model_validator(mode="after")
    def _settle_envs(self) -> OrchestratorConfig:
        if not self.envs:
            return self
        check_names(self.envs, "orchestrator.envs")
        first = TaskConfig(**{name: getattr(self.envs[0], name) for name in TaskConfig.model_fields})
        if "env" in self.model_fields_set and self.env != first:
            raise UserError(
                f"orchestrator.env is {self.env.id}, but orchestrator.envs has other tasks: list all tasks in envs"
            )
        self.env = first  # the names in plans and titles
        common = self.sampling
        if other := next((e for e in self.envs if e.sampled(common).temperature != common.temperature), None):
            raise UserError(
                f"{other.name} has sampling.temperature = {other.sampling.temperature:g}, but all trained tasks need "
                f"the same temperature: set orchestrator.sampling.temperature instead"
            )
        return self

    @model_validator(mode="after")
    def _check(self) -> OrchestratorConfig:
        if self.rollouts_per_example == 1 and not self.advantage.compares_the_batch:
            raise UserError(
                "with 1 rollout per prompt all advantages are 0: set orchestrator.rollouts_per_example to at "
                'least 2, better 4 or more, or orchestrator.advantage.baseline to "batch"'
            )
        if self.truncated == "penalize" and self.advantage.divides_by_mean:
            raise UserError(
                'orchestrator.truncated = "penalize" makes rewards negative, and orchestrator.advantage.scale = '
                '"group_mean" divides by a mean reward: set truncated to "keep" or "mask", or set another scale'
            )
        if self.overlong_buffer and self.truncated != "penalize":
            raise UserError(
                f"orchestrator.overlong_buffer = {self.overlong_buffer} has no effect with "
                f'truncated = "{self.truncated}": set truncated to "penalize", or leave overlong_buffer out'
            )
        if self.truncated == "penalize" and self.advantage.components == "normalize":
            raise UserError(
                'orchestrator.truncated = "penalize" changes the sum of the components, but advantage.components = '
                '"normalize" does not use this sum: leave out one of the two'
            )
        if self.refill is not None and (self.advantage.baseline == "batch" or self.advantage.scale == "token_std"):
            key = "baseline" if self.advantage.baseline == "batch" else "scale"
            raise UserError(
                f'with orchestrator.advantage.{key} = "{getattr(self.advantage, key)}", groups of equal rewards are '
                f"trained, too, so orchestrator.refill replaces no group: leave out refill, or set another {key}"
            )
        size, group, sampling = self.batch_size, self.rollouts_per_example, self.sampling
        if size % group:
            below, above = size // group * group, (size // group + 1) * group
            raise UserError(
                f"batch_size = {size} counts completions and must be a multiple of rollouts_per_example = {group}: "
                f"set batch_size to {f'{below} or {above}' if below else above}"
            )
        if not GREEDY_BELOW <= sampling.temperature < math.inf:
            raise UserError(
                f"sampling.temperature = {sampling.temperature} gives no importance ratio to train with: "
                "set temperature = 1 (eval.sampling.temperature may differ)"
            )
        return self


class InferenceConfig(EngineConfig):
    """Keys of the sampler."""

    is_role = True

    def check(self, urls: list[str]) -> None:
        if urls and self.replicas > 1:
            raise UserError(
                f"inference.replicas = {self.replicas} starts servers, but orchestrator.client.base_url names running "
                "servers: leave out one of them"
            )
        if self.port + self.replicas > 2**16:
            raise UserError(f"inference.replicas = {self.replicas} needs ports over 65535: lower inference.port")


SAMPLED_BY = "completions are sampled by "
SCORED_BY = "tokens are scored by "
PROGRAM_ROLLOUTS = "a program makes the rollouts"
"""First words of the reason why a run is inexact, if hone can still retrain the run from its rollouts."""


class GapConfig(BaseConfig):
    """Limits of the gap |sampler's - trainer's logprob| in nats per token; defaults depend on backend and precision."""

    action: Annotated[Literal["stop", "warn"], Meta(decides="nothing")] = "stop"
    """If the mean gap is above `gap.stop`: save and `stop`, or `warn`."""
    mean: float | None = Field(default=None, gt=0)
    """Warn if the mean gap is above this."""
    max: float | None = Field(default=None, gt=0)
    """Warn if the gap of a single token is above this."""
    stop: float | None = Field(default=None, gt=0)
    """Take `action` if the mean gap is above this."""


@with_keys("rl")
class RLConfig(RunConfig):
    """Reinforcement learning with verifiable rewards."""

    headings = "Model and task: task; Run: run above; Rollouts; Training; Evaluation; Watching; Machine: machine server"
    choices = {"algorithm": SUMMARIES}

    reward: Annotated[list[str] | None, Meta("task", 1)] = None
    """Reward functions of a task without a file, `MODULE:FUNCTION` (repeatable); the first function decides if an
    answer is correct."""
    agent: Annotated[str | None, Meta("task", 1)] = None
    """A program instead of reward functions, `MODULE:ASYNC_FUNCTION`: it calls the model and gives the reward."""
    agent_command: str | None = None
    """An agent as a command line, such as "python my_agent.py" (docs/agents.md)."""
    algorithm: Annotated[Algorithm | None, Meta("training", -1)] = None
    """Sets the keys of a published algorithm, listed by `--help algorithm`; each key can still be set separately."""
    data: Annotated[str | None, Meta("task", 1)] = None
    """Examples of a task without a file: a JSONL or Parquet file, a folder of them, or a hub id."""
    eval_data: str | None = None
    """Held-out examples of a task without a file; turns evaluation on. By default a tenth of `data` is held out."""
    reward_weights: list[float] | None = None
    """Weight of each reward function; by default 1."""
    system_prompt: str | None = None
    """System prompt of a task without a file, before every prompt."""
    reference: str | None = None
    """Source of right answers for the audit: a template such as `<answer>{answer}</answer>`, or `MODULE:FUNCTION`."""
    seq_len: Annotated[int, Meta("rollouts", shared=3)] = Field(default=2048, ge=2)
    """Most tokens of prompt plus completion; a completion may have min(`max_tokens`, `seq_len` - prompt) tokens."""
    mode: Annotated[Literal["colocated", "split"] | None, Meta("run", 1, decides="rounding")] = None
    """`colocated`: one process. `split`: one process per role; the default with `--SECTION @ FILE`, several ranks, or
    several servers."""
    trainer: TrainerConfig = TrainerConfig()
    """Loss, optimiser and updates."""
    orchestrator: OrchestratorConfig = OrchestratorConfig()
    """Tasks, rollouts and advantages."""
    inference: InferenceConfig = InferenceConfig()
    """The sampling engine."""
    gap: GapConfig = GapConfig()
    """Limits of the gap between sampler and trainer."""
    transport: Annotated[TransportConfig, Meta(decides="nothing", shared=8)] = TransportConfig()
    """Folder through which the processes of mode split exchange batches, weights and results."""
    restarts: Annotated[int, Meta(decides="nothing")] = Field(default=3, ge=0)
    """In mode split: most restarts of dead processes in a run."""

    def tasks(self) -> dict[str, RLConfig]:
        """Return {task's name: config with only this task}; a single task has the name ""."""
        orch = self.orchestrator
        if not orch.envs and not (orch.eval and orch.eval.envs):
            return {"": self}
        found = {}
        for env in orch.envs or [TrainEnvConfig(**orch.env.model_dump(include=set(TaskConfig.model_fields)))]:
            measured = orch.eval and (not orch.eval.envs or any(env.same_task(other) for other in orch.eval.envs))
            alone = {"env": env, "envs": [], "sampling": env.sampled(orch.sampling)}
            alone |= {"eval": orch.eval if measured else None}
            found[env.name if len(orch.envs) > 1 else ""] = self._with(alone)
        return found

    def eval_tasks(self) -> dict[str, RLConfig]:
        """Return {evaluated task's name: config with only this task}; {} without evaluation."""
        evals = self.orchestrator.eval
        if evals is None or not evals.envs:
            return self.tasks() if evals else {}
        sampled = {env.name: env.sampled(evals.sampling) for env in evals.envs}
        of = {name: changed(evals, {"sampling": sampling, "envs": []}) for name, sampling in sampled.items()}
        alone = {env.name: TaskConfig(**env.model_dump(include={"id", "args", "template"})) for env in evals.envs}
        return {name: self._with({"env": env, "envs": [], "eval": of[name]}) for name, env in alone.items()}

    def refuse_cuts(self, name: str) -> None:
        """Raise UserError if top_k, top_p or min_p is set: only hone's server returns each token's candidates."""
        if any(one.orchestrator.sampling.cuts for one in self.tasks().values()):
            raise UserError(
                f"orchestrator.sampling has top_k, top_p or min_p, but {name} does not return each token's "
                "candidates, which training needs: sample with hone's engine or server, or leave out these keys"
            )

    def check_kl_in_reward(self) -> None:
        """Raise UserError if `kl_in` is "reward" and the advantages can't include the KL."""
        advantage = self.orchestrator.advantage
        if not self.trainer.loss.kl_in_reward:
            return
        if advantage.function is not None:
            key, why = "function", "does not get the reference's logprobs"
        elif advantage.components == "normalize":
            key, why = "components", "does not use the sum of the components minus the KL"
        elif advantage.scale == "group_mean":
            key, why = "scale", "divides by a group's mean reward, which the KL can make negative"
        else:
            return
        raise UserError(
            f'trainer.loss.kl_in = "reward" does not work with orchestrator.advantage.{key} = '
            f'"{getattr(advantage, key)}", which {why}: set kl_in = "loss" and kl_estimator = "k3"'
        )

    def _with(self, orchestrator: dict[str, Any]) -> RLConfig:
        return changed(self, {f"orchestrator.{name}": value for name, value in orchestrator.items()})

    @property
    def most_tokens(self) -> int | None:
        """Largest `max_tokens` of the tasks; None if a task sets no `max_tokens`."""
        most = [one.orchestrator.sampling.max_tokens for one in self.tasks().values()]
        return None if None in most else max(tokens for tokens in most if tokens is not None)

    @property
    def task_name(self) -> str:
        orch = self.orchestrator
        return " + ".join(env.name for env in orch.envs) or hoist.task_label(orch.env.id, orch.env.args)

    @property
    def sampled_by(self) -> str | None:
        """Description of the sampler; None if it samples the same tokens as a run in one process."""
        if urls := self.orchestrator.client.urls:
            return f"the server{'s' if len(urls) > 1 else ''} at {', '.join(urls)}"
        if self.inference.backend != "hone":
            return sampler_name(self.inference.backend)
        if self.mode == "split" and not self.inference.batch_invariant:
            return "a server without inference.batch_invariant"
        if self.mode == "split" and self.model.lora:
            return "a server with merged weights"
        lag = self.orchestrator.lag
        return f"whichever weights are there, up to {lag} version{'s' if lag > 1 else ''} old" if lag else None

    @property
    def samples_here(self) -> bool:
        return self.mode != "split" and self.sampled_by is None

    @property
    def server_urls(self) -> list[str]:
        inference = self.inference
        ports = range(inference.port, inference.port + inference.replicas)
        return self.orchestrator.client.urls or [f"http://127.0.0.1:{port}/v1" for port in ports]

    @property
    def transport_path(self) -> Path:
        return self.transport.path or self.output_dir / TRANSPORT

    @classmethod
    def compose(cls, settings: Settings) -> dict[str, Any]:
        return hoist.compose(settings, cls)

    @model_validator(mode="before")
    @classmethod
    def _hoist(cls, data: Any) -> Any:
        return hoist.hoist(Settings().put_tree(data), cls).tree() if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _check(self) -> RLConfig:
        orch, trainer = self.orchestrator, self.trainer
        several = {"trainer.ranks": trainer.ranks, "inference.replicas": self.inference.replicas}
        several["servers in orchestrator.client.base_url"] = len(orch.client.urls)
        for name, count in several.items():
            if count > 1 and self.mode == "colocated":
                raise UserError(f"mode colocated is one process, but {name} = {count}: leave out one of the two")
        self.inference.check(orch.client.urls)
        trainer.optim.check_ranks(trainer.ranks)
        self.check_lora(trainer.optim)
        if self.model.lora and trainer.loss.reference_interval:
            raise UserError("model.lora does not work with trainer.loss.reference_interval: leave out one of them")
        if (backend := self.inference.backend) != "hone":
            if orch.client.base_url is not None:
                raise UserError(
                    f"inference.backend = {backend} starts a server, but orchestrator.client.base_url names a running "
                    "server: leave out one of them"
                )
            self.refuse_cuts(sampler_name(backend))
        self.check_kl_in_reward()
        samplings = {"sampling": orch.sampling}
        samplings |= {f"envs.{env.name}.sampling": env.sampled(orch.sampling) for env in orch.envs}
        if orch.eval:
            common = samplings["eval.sampling"] = orch.eval.sampling
            samplings |= {f"eval.envs.{env.name}.sampling": env.sampled(common) for env in orch.eval.envs}
        for name, sampling in samplings.items():
            if sampling.max_tokens is not None and sampling.max_tokens >= self.seq_len:
                raise UserError(
                    f"orchestrator.{name}.max_tokens = {sampling.max_tokens} leaves no room for a prompt in "
                    f"seq_len = {self.seq_len}, which counts prompt and completion: raise seq_len, or lower max_tokens"
                )
        return self


class RoleConfig(RLConfig):
    """A role of a run in mode split: files and flags set keys of the role's section; flags also set top-level keys.

    hone trainer @ train.toml --optim.lr 1e-6     as `rl --trainer @ train.toml --trainer.optim.lr 1e-6`
    hone trainer @ outputs/config.toml            the whole config of a run
    """

    @classmethod
    def compose(cls, settings: Settings) -> dict[str, Any]:
        return hoist.compose(settings, cls) | {"mode": "split"}
