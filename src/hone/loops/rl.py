"""RL with verifiable rewards: a run, from config to last step; `hone.loops.steps` has the algorithm.

rl @ examples/reverse_text/tiny.toml

with RL("examples/reverse_text/tiny.toml", seed=1) as rl:
    while not rl.done:
        groups = rl.sample()          # drawn, sampled, graded
        rl.update(groups)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hone.algorithms.losses import TokenLoss
from hone.config.base import changed
from hone.config.parse import from_settings
from hone.config.rl import PROGRAM_ROLLOUTS, SCORED_BY, RLConfig, RoleConfig
from hone.environments import Environment, services
from hone.environments.data import Overlap
from hone.environments.rubric import RewardFunc
from hone.errors import UserError, called_from
from hone.evaluation.result import EvalResult
from hone.extension import token_columns
from hone.inference.policy import Policy
from hone.loops import own_functions, parts
from hone.loops.canary import Canary, band_from_config, first_examples
from hone.loops.colocated import LocalTrainer, new_policy
from hone.loops.curriculum import Curriculum
from hone.loops.groups import Advantages
from hone.loops.machine import Machine, configure_run, device_of, resolve
from hone.loops.own_functions import UserFunctions
from hone.loops.recorder import RunRecorder
from hone.loops.steps import Steps, Tasks, build
from hone.loops.training import Training
from hone.loops.updates import Updates
from hone.model.chat import load_renderer
from hone.model.config import DecoderConfig
from hone.model.decoder import Decoder
from hone.model.hf import model_config
from hone.runs.metrics import check as check_metrics
from hone.runs.observer import Observer, checked_observers
from hone.runs.outputs import with_own_folder
from hone.trainer.export import add_tokenizer
from hone.trainer.optim import check_state
from hone.types import Example, Group

if TYPE_CHECKING:
    import torch

    from hone.environments.references import Reference
    from hone.extension import MakePolicy


class Processes(Protocol):
    """The processes that sample and train: this process (`OneProcess`), or others."""

    backend: str | None
    """Kind of the server that samples, known once connected; None for the engine in this process."""

    def load(self, rl: RL) -> DecoderConfig:
        """Return the model's config; load the model if this process needs it. Raises UserError for invalid settings."""
        ...

    def connect(self, rl: RL) -> dict[str, Any]:
        """Connect to servers and trainer. Return digests and further arguments of `RunWriter.start`."""
        ...

    def start(self, rl: RL, stack: ExitStack) -> tuple[Policy, Updates]:
        """Make policy and trainer of the open run, from its checkpoint if it has one. `stack` closes them."""
        ...


class OneProcess:
    """Trains in this process, and samples in this process or from one server."""

    backend: str | None = None
    make_policy: MakePolicy | None = None

    def load(self, rl: RL) -> DecoderConfig:
        config = rl.config
        if config.mode == "split":
            raise UserError("RL trains in this process: for mode split use the command `hone rl`")
        if config.orchestrator.lag > 0:
            raise UserError("orchestrator.max_async_level > 0 needs mode split; in one process set it to 0 (lock-step)")
        if len(config.server_urls) > 1:
            raise UserError('several servers need mode "split": run `hone rl`, or name one server')
        check_state(config.trainer.optim)
        config.check_kl_in_reward()  # also with `advantages`, which the config did not name when it was parsed
        decoder = model_config(rl.source, config.model.init, config.model.implementation)
        turns = max(env.max_turns for env in rl.all_envs)
        rl.config = config = resolve(config, Machine(decoder, device_of(config.model.device), turns=turns))
        for env in rl.all_envs:
            env.use_workers(config.orchestrator.grading, deterministic=bool(config.deterministic))
        rl.model = parts.load_policy(config, rl.source)
        return decoder

    def connect(self, rl: RL) -> dict[str, Any]:
        config, model = rl.config, rl.model
        configure_run(config, model)
        if config.sampled_by is not None:
            from hone.loops.sampling import other_sampler

            self.backend, self.make_policy = other_sampler(config, rl.renderer, model.num_parameters)
        digests = parts.model_digests(model, rl.renderer) if rl.source == config.model.name else {}
        return {"digests": digests, "parameters": model.trained}

    def start(self, rl: RL, stack: ExitStack) -> tuple[Policy, Updates]:
        config, run = rl.config, rl.run
        trainer = parts.make_trainer(config, rl.model, user_loss=rl.user_functions.functions.get("loss"))
        if run.restored is not None:
            trainer.load_tensors(run.restored[0], run.start_step)
        if self.make_policy is None:
            policy = new_policy(config, rl.all_envs, trainer, rl.renderer)
        else:
            policy = self.make_policy(stack, config, run, trainer, rl.renderer)
        canary = Canary.from_config(config, rl.first_examples, rl.renderer, policy, trainer)
        return policy, LocalTrainer(trainer, config.trainer.micro_batch_tokens, policy, canary, run.phase)


class RL(Training):
    """A run of RL, from a config. `processes` sample and train; by default this one does, or a server samples.

    `config` is an `RLConfig`, a TOML file or None. `settings` set its keys, by name or dotted name. The task comes from
    the config, from `reward_funcs` with the examples of `dataset` (see `given_task` in `hone.environments.functions`),
    or from `agent`, a program that calls the model. `loss` and `advantages` replace the algorithm's functions, see
    `docs/algorithms.md`. Raises UserError if a setting, the task, its data or the model is bad. As a context manager it
    opens the run directory, and sets threads and deterministic kernels. Its exit saves the final version and restores
    threads and kernels.
    """

    kind = "rl"
    steps: Steps
    model: Decoder
    policy: Policy

    @called_from(python=True)
    def __init__(
        self,
        config: RLConfig | str | Path | None = None,
        *,
        dataset: Any = None,
        eval_dataset: Any = None,
        reward_funcs: Sequence[RewardFunc | str] | RewardFunc | str = (),
        reward_weights: Sequence[float] | None = None,
        correct: RewardFunc | str | None = None,
        agent: Callable[..., Any] | str | None = None,
        reference: Reference | None = None,
        loss: TokenLoss | str | None = None,
        advantages: Advantages | str | None = None,
        observers: Sequence[Observer] = (),
        processes: Processes | None = None,
        **settings: Any,
    ) -> None:
        parsed = from_settings(RLConfig, config, settings)
        if not isinstance(parsed, RoleConfig):  # a role has to be where the others are
            parsed = with_own_folder(parsed, f"rl-{parts.name_of_task(parsed, reward_funcs, agent)}")
        self.user_functions, named = UserFunctions.given(parsed, loss=loss, advantages=advantages)
        task = dataset, eval_dataset, reward_funcs, reward_weights, correct, agent, reference
        self.given, values = parts.task_given(parsed, *task)
        self.config = changed(parsed, {"mode": parsed.mode or "colocated"} | named | values)
        self.observers, self.processes = checked_observers(observers, self.config), processes or OneProcess()
        self._drawn: list[int] = []
        self.envs = {name: parts.task_of(one, self.given) for name, one in self.config.tasks().items()}
        self.eval_envs = parts.eval_envs(self.config, self.envs)
        for env in self.all_envs:
            env.check_rollouts()
        self._check_agents()
        self._check_least_rewards()
        for observer in self.observers:
            observer.check_config(self.config, self.env)
        check_metrics(self.config, self.env.id)
        self.source = parts.model_source(self.config)
        self.renderer = load_renderer(self.source, self.config.model.chat_template, self.config.model.special_tokens)
        self.decoder = self.processes.load(self)
        evals = self.config.orchestrator.eval
        self.overlaps: dict[str, Overlap | None] = {}
        self.left_out: dict[str, list[int]] = {}
        self.curricula: dict[str, Curriculum] = {}
        for name, one in self.config.tasks().items():
            env = self.envs[name]
            overlap = self.overlaps[name] = parts.check_overlap(one, env)
            self.left_out[name] = list(overlap.rows) if overlap and evals and evals.overlap == "drop" else []
            train = env.split("train")
            self.curricula[name] = Curriculum.from_config(one, len(train), self.left_out[name])
            env.check_template(self.renderer, train[0])
            parts.check_lengths(one, env, self.renderer, self.decoder, self.curricula[name])
        for name, one in self.config.eval_tasks().items():
            if self.eval_envs[name] not in self.envs.values():
                parts.check_lengths(one, self.eval_envs[name], self.renderer, self.decoder, None)

    @property
    def env(self) -> Environment:
        """The task, or the first of several."""
        return next(iter(self.envs.values()))

    @property
    def all_envs(self) -> list[Environment]:
        """All tasks for training and evaluation, without repeats."""
        return list({id(env): env for env in (*self.envs.values(), *self.eval_envs.values())}.values())

    def sample(self) -> list[Group]:
        """Draw the next prompts, sample a group of completions for each prompt, and grade them."""
        with self._inside():
            groups = self.steps.sample()
        self._drawn = [group.draw for group in groups]
        return groups

    def update(self, groups: Sequence[Group]) -> dict[str, float]:
        """Update the weights on all groups from `sample`, in their order. Return the step's metrics."""
        self._check_left(takes_step=True)
        if not self._drawn or [group.draw for group in groups] != self._drawn:
            raise UserError("update takes all groups that the last sample() returned, in their order, only once")
        self._drawn = []
        with self._inside():
            return self.steps.update(groups)

    def evaluate(self, num_examples: int | None = None, task: str | None = None) -> EvalResult:
        """Evaluate the current version on held-out examples, by `orchestrator.eval`, and record nothing. `task` is a
        task's name, by default the first. Raises UserError if no task has this name.
        """
        self._check_left(takes_step=False)
        if num_examples is not None and num_examples < 1:
            raise UserError(f"num_examples is {num_examples}; evaluate at least 1 example")
        tasks = self.config.eval_tasks() or self.config.tasks()
        name = next(iter(tasks)) if task is None else task
        if name not in tasks:
            raise UserError(f"task {name!r} is not one of {', '.join(map(repr, tasks))}")
        config, env = tasks[name], (self.eval_envs or self.envs)[name]
        self.policy.load(self.version)
        return parts.evaluate_policy(config, env, self.renderer, self.policy, num_examples)

    def _check_agents(self) -> None:
        if not any(env.why_not_graded for env in self.all_envs):
            return
        orch = self.config.orchestrator
        problems = {
            **{column.giver: True for column in token_columns(self.config).values()},
            'orchestrator.advantage.components = "normalize"': orch.advantage.components == "normalize",
            'orchestrator.truncated = "penalize"': orch.truncated == "penalize",
        }
        if (problem := next((name for name, is_there in problems.items() if is_there), None)) is not None:
            raise UserError(f"a run with an agent does not work with {problem}: leave it out")

    def _check_least_rewards(self) -> None:
        if not self.config.orchestrator.advantage.divides_by_mean:
            return
        for env in self.envs.values():
            if (least := env.rubric.least_reward) is not None and least < 0:
                raise UserError(
                    f'orchestrator.advantage.scale = "group_mean" needs rewards of 0 or more, and a reward of {env.id} '
                    f"can be {least:g}: add {-least:g} to a component, or take another scale"
                )

    @property
    def first_examples(self) -> list[Example]:
        return first_examples(self.config, self.env, next(iter(self.curricula.values())))

    def _open(self, stack: ExitStack) -> None:
        givers = [
            (column.section, *column.connect(self.config, self.renderer, self.decoder.vocab_size))
            for column in token_columns(self.config).values()
        ]
        files = (self.given.files if self.given else {}) | self.user_functions.files
        reads = parts.local_sources(parts.model_files(self.config))
        for one in (*self.config.tasks().values(), *self.config.eval_tasks().values()):
            task = one.orchestrator.env
            reads += parts.local_sources([], task.args) + ([task.profile] if task.profile else [])
        reads = [path for path in reads if path not in [self.config.output_dir / name for name in files]]
        self._check(reads, files)
        run = self._open_run(stack, reads, keep=files, **self.processes.connect(self))
        if run.nothing_left:
            return
        config = self.config
        self.policy, trainer = self.processes.start(self, stack)

        def export(folder: Path, step: int, parameters: Mapping[str, torch.Tensor]) -> None:
            trainer.export(folder, step, parameters)
            add_tokenizer(folder, self.renderer, parts.card(config, step))

        stack.enter_context(self._saving(export, config.ckpt, trainer.plans))
        band = band_from_config(config, self.decoder.num_layers, self.processes.backend)
        recorder = RunRecorder(config, run, self.saver, band, self.renderer.special_texts)
        for _, _, words in givers:
            run.mark_inexact(run.start_step, SCORED_BY + words)
        given = self.user_functions.functions.get("advantages")
        tasks = Tasks(self.envs, self.eval_envs, self.curricula, self.renderer, given)
        state = run.restored[1] if run.restored else None
        columns = [(phase, add) for phase, add, _ in givers]
        self.steps = build(config, tasks, self.policy, trainer, recorder, state, columns)
        for curriculum in self.curricula.values():
            curriculum.restarted = partial(self._report_restart, curriculum.size)
        trainer.start(self.saver)

    def _open_run(self, stack: ExitStack, reads: list[Path], digests: dict[str, str], **more: Any) -> Any:
        config, given = self.config, self.given
        digests = (
            digests
            | parts.task_digests(config, self.envs, self.eval_envs)
            | (given.digests if given else {})
            | self.user_functions.digests
        )
        run = self._start(stack, reads, digests, **more)
        if run.nothing_left:
            return run
        services.record_in(config.output_dir)
        for name, overlap in self.overlaps.items():
            if run.start_step == 0 and overlap is not None and overlap.rows:
                parts.report_overlap(config, self.envs[name], overlap, run)
        self.renderer.special_texts.report(run.event, run.display.message, run.start_step)
        for env in self.all_envs:
            stack.callback(env.close_workers)
            env.progress = run.display.doing
            env.start_workers(config.orchestrator.batch_size)
        sizes = {name: curriculum.size for name, curriculum in self.curricula.items()}
        facts: dict[str, Any] = {"pool": sum(sizes.values()), "correctness": self.env.rubric.correctness}
        if len(sizes) > 1:
            facts |= {"pools": sizes, "left_outs": self.left_out}
        elif self.left_out[""] or "left_out" in run.info:  # a resume with --allow-drift may leave none out
            facts["left_out"] = self.left_out[""]
        if by_rate := [env.left_out for env in self.all_envs if env.left_out]:
            facts["profile"] = "; ".join(by_rate)
        run.info.pop("grading", None)
        ranges = {n: {"right": list(r.right), "wrong": list(r.wrong)} for n, r in self.env.rubric.ranges.items()}
        run.note(reward_ranges=ranges, **facts)
        if given is not None:
            parts.note_program_task(given, run)
        if any(env.patience is not None for env in self.all_envs):
            run.mark_inexact(run.start_step, f"{PROGRAM_ROLLOUTS}, and nothing shows that it repeats itself")
        parts.warn_not_importable(own_functions.FILE, self.user_functions.import_problem, run)
        return run

    def _report_restart(self, size: int, step: int) -> None:
        self.run.event("pool_restarted", step, examples=size)
        self.run.display.message(
            f"Step {step} found no prompt left in the pool (all {size:,} are retired or parked): all "
            "prompts are back, and their measurements are forgotten."
        )
