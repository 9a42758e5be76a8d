"""RL with verifiable rewards: GRPO-style policy gradient, from a config to the last step.

Step N draws prompts, samples a group of completions per prompt from policy version N, grades them, takes each reward
minus its group's mean as the advantage, and makes one update of the token-level clipped loss: version N + 1. Groups
whose rewards are all equal carry no gradient and are dropped; if none is left, the weights stay as they are, and the
counter and the schedule go on. No value network, no KL by default, one update per batch, no replay.

    rl @ examples/reverse_text/tiny.toml

    with RL("examples/reverse_text/tiny.toml", seed=1) as rl:
        while not rl.done:
            groups = rl.sample()          # drawn, sampled, graded
            rl.update(groups)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hone.algorithms.losses import TokenLoss
from hone.composition import own_functions, parts
from hone.composition.machine import Machine, configure, device_of, resolve
from hone.composition.own_functions import OwnFunctions
from hone.composition.training import Training
from hone.config.base import changed
from hone.config.parse import from_settings
from hone.config.rl import PROGRAM_ROLLOUTS, TAUGHT_BY, OnlineEvalConfig, RLConfig, RoleConfig
from hone.environments import Environment, judgements
from hone.environments.data import Overlap
from hone.environments.rubric import RewardFunc
from hone.errors import Halt, UserError, called_from
from hone.evaluation.result import EvalResult
from hone.model.chat import load_renderer
from hone.model.hf import model_config
from hone.orchestrator.canary import Canary, GapWatch, band_from_config
from hone.orchestrator.colocated import LocalTrainer, own_policy
from hone.orchestrator.curriculum import Curriculum
from hone.orchestrator.groups import Advantages, GroupSampler, trainable
from hone.orchestrator.ledger import Ledger
from hone.orchestrator.mix import close_draws, make_groups, mix_metrics, pool_metrics
from hone.orchestrator.recorder import FailureWatch, RunRecorder
from hone.orchestrator.types import Evaluate, Policy, Publish, Updates
from hone.runs.metrics import check as check_metrics
from hone.runs.observer import Observer, checked_observers
from hone.runs.outputs import with_own_folder
from hone.runs.predictions import check as check_predictions
from hone.runs.saving import Ending, Snapshot
from hone.runs.signals import StepAbandoned
from hone.trainer.export import export_weights
from hone.trainer.optim import check_state
from hone.types import Group

if TYPE_CHECKING:
    import torch

    from hone.environments.references import Reference
    from hone.orchestrator.teacher import Teacher


@dataclass
class Sent:
    """A step whose batch the trainer has, and whose update was not taken yet."""

    step: int
    groups: list[Group]
    metrics: dict[str, float]
    totals: dict[str, float]


@dataclass(eq=False)
class Steps:
    """The steps of RL, whoever samples, trains and records: in one process, in several, or again in `hone verify`.

    With `max_async_level` k > 0 up to k batches are on their way to the trainer while the next one is sampled, and new
    weights reach the sampler in the middle of that. Draws keep their order whatever k is. A `teacher` scores what was
    sampled.
    """

    config: RLConfig
    samplers: Mapping[str, GroupSampler]
    curricula: Mapping[str, Curriculum]
    trainer: Updates
    ledger: Ledger
    recorder: RunRecorder
    publish: Publish
    evaluate: Evaluate
    teacher: Teacher | None = None
    metrics: dict[str, float] = field(default_factory=dict, init=False)
    """Those of the last step that was recorded."""
    _sent: deque[Sent] = field(default_factory=deque, init=False)
    _measured: dict[str, float] = field(default_factory=dict, init=False)
    _begun: int | None = field(default=None, init=False)

    @property
    def version(self) -> int:
        """Updates that were taken."""
        return self.trainer.version

    @property
    def next_step(self) -> int:
        """The step that comes next: as many as were taken, or are on their way."""
        return self.trainer.version + len(self._sent)

    @property
    def done(self) -> bool:
        """True once no step is left to take, a stop was asked for, the budget is used up, or the target is reached."""
        saver = self.recorder.saver
        return self.next_step >= self.config.max_steps or saver.stopping or saver.at_target()

    def step(self) -> dict[str, float]:
        """Take one step: sample, then update."""
        return self.update(self.sample())

    def begin(self) -> bool:
        """Save, publish and measure the trainer's version, once; False if a stop was asked for in a pause."""
        version, saver = self.trainer.version, self.recorder.saver
        if self._begun == version:
            return True
        saver.save(version)
        if goes_on := not saver.stopping:
            self._measured = self.publish(version)
            evaluated = self.evaluate(version, False)
            self._measured |= evaluated
            saver.at_target(version, evaluated)
        self.trainer.release(version)
        self._begun = version
        return goes_on

    def sample(self) -> list[Group]:
        """Draw the next prompts, sample a group of completions of each, and grade them; again, for `refill`."""
        if not self.begin():
            raise StepAbandoned
        groups = make_groups(self.samplers, self.config, self.next_step, self.ledger, self.recorder.phase)
        if self.teacher is None:
            return groups
        with self.recorder.phase("teacher"):
            return self.teacher(groups)

    def update(self, groups: Sequence[Group]) -> dict[str, float]:
        """Update the weights on the groups of a step; returns the metrics of the last step that was finished."""
        step, orch, groups = self.next_step, self.config.orchestrator, list(groups)
        metrics = mix_metrics(groups, self.config, step)
        self.trainer.put(step, trainable(groups, self.config))
        close_draws(self.ledger, self.curricula, groups, step)
        totals = {"tokens/total": self.ledger.tokens} | pool_metrics(self.curricula)
        self._sent.append(Sent(step, groups, metrics, totals))
        while self._sent and (len(self._sent) > orch.max_async_level or self.trainer.ready):
            self._take()
        return self.metrics

    def finish(self, complete: bool = True) -> Ending:
        """Take what is on its way, save the last version, measure and record it; returns how the run ended.

        Not `complete`: it was left before its last step.
        """
        while self._sent:
            self._take()
        version, saver = self.trainer.version, self.recorder.saver
        ending = saver.ending(version, self.config.max_steps) if complete else "stopped"
        saver.save(version, last=True)
        measured = self._measured if self._begun == version and saver.at_target() else {}  # it came to the target
        if ending != "stopped" and not measured:
            measured = self.publish(version) | self.evaluate(version, True)
        self.recorder.record(version, {} if ending == "stopped" else measured, [], self.trainer.fingerprint())
        return ending

    def give_up(self) -> None:
        """Record what the trainer has got already; nothing is published or measured any more."""
        self.trainer.give_up()
        while self._sent:
            with suppress(Halt):  # the first one ends the run
                self._take(begin=False)

    def fingerprint(self) -> str:
        """Return that of the current version."""
        return self.trainer.fingerprint()

    def _take(self, begin: bool = True) -> None:
        """Take the next update, and record its step. If another one is on its way, begin the version before that; so
        if it may be at the target, for `done` to tell.
        """
        update, sent = self.trainer.take(), self._sent.popleft()
        measured, self._measured = self._measured, {}
        self.metrics = measured | sent.metrics | update.metrics | sent.totals
        self.recorder.record(sent.step, self.metrics, sent.groups, update.weights, update.timings, update.token_stats)
        if begin and (self._sent or (self.config.stop and not self.done)):
            self.begin()


class RL(Training):
    """A run of RL in this process: task, renderer, model, policy, trainer, curriculum and ledger of a config.

    `config` is an `RLConfig`, a TOML file or nothing; further keys of it are `settings`, by name or dotted name. The
    task is the one that it names, or `reward_funcs` on the examples of `dataset`: see `hone.environments.functions`,
    and `given_task` there; or `agent`, a program that calls the model: see `hone.environments.agents`. `loss` and
    `advantages` are functions in place of the algorithm's, see `docs/algorithms.md`. Raises UserError if a setting, the
    task, its data or the model is bad. Used as a context, it opens the run directory, sets threads and deterministic
    kernels, and on leaving saves the final version and sets them back.
    """

    kind = "rl"
    steps: Steps
    teacher: Teacher | None = None

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
        **settings: Any,
    ) -> None:
        parsed = from_settings(RLConfig, config, settings)
        if not isinstance(parsed, RoleConfig):  # a role has to be where the others are
            parsed = with_own_folder(parsed, f"rl-{parts.name_of_task(parsed, reward_funcs, agent)}")
        self.own, named = OwnFunctions.given(parsed, loss=loss, advantages=advantages)
        task = dataset, eval_dataset, reward_funcs, reward_weights, correct, agent, reference
        self.given, values = parts.task_given(parsed, *task)
        self.config = changed(parsed, {"mode": parsed.mode or "colocated"} | named | values)
        self.observers = checked_observers(observers)
        self._drawn: list[int] = []
        self._refuse_unsupported()
        self.envs = {name: parts.task_of(one, self.given) for name, one in self.config.tasks().items()}
        self.eval_envs = parts.eval_envs(self.config, self.envs)
        for env in self.all_envs:
            env.check_rollouts()
        self._check_agents()
        self._check_least_rewards()
        check_predictions(self.config, self.env.id)
        check_metrics(self.config, self.env.id)
        self.source = parts.model_source(self.config)
        self.renderer = load_renderer(self.source, self.config.model.chat_template, self.config.model.special_tokens)
        self._load_model()
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
        """The task; of several, the first."""
        return next(iter(self.envs.values()))

    @property
    def all_envs(self) -> list[Environment]:
        """All tasks, to train on and to evaluate on, each once."""
        return list({id(env): env for env in (*self.envs.values(), *self.eval_envs.values())}.values())

    def sample(self) -> list[Group]:
        """Draw the next prompts, sample a group of completions of each, and grade them."""
        with self._inside():
            groups = self.steps.sample()
        self._drawn = [group.draw for group in groups]
        return groups

    def update(self, groups: Sequence[Group]) -> dict[str, float]:
        """Update the weights on all groups that `sample` gave, in their order; returns the step's metrics."""
        self._check_left(takes_step=True)
        if not self._drawn or [group.draw for group in groups] != self._drawn:
            raise UserError("update takes all groups that the last sample() has returned, in their order, once")
        self._drawn = []
        with self._inside():
            return self.steps.update(groups)

    def evaluate(self, num_examples: int | None = None, task: str | None = None) -> EvalResult:
        """Evaluate the current version on held-out examples, by `orchestrator.eval`. Nothing is recorded.

        `task`: which of several, by name (the first); UserError for an unknown one.
        """
        self._check_left(takes_step=False)
        if num_examples is not None and num_examples < 1:
            raise UserError(f"num_examples is {num_examples}; evaluate at least 1 example")
        tasks = self.config.eval_tasks() or self.config.tasks()
        name = next(iter(tasks)) if task is None else task
        if name not in tasks:
            raise UserError(f"task is {name!r}; it is one of {', '.join(map(repr, tasks))}")
        config, env = tasks[name], (self.eval_envs or self.envs)[name]
        settings = config.orchestrator.eval or OnlineEvalConfig()
        if num_examples is not None:
            settings = changed(settings, {"num_examples": num_examples})
        self.policy.load(self.version)
        return parts.evaluate_policy(config, settings, env, self.renderer, self.policy)

    def _refuse_unsupported(self) -> None:
        if self.config.mode == "split":
            raise UserError("RL trains in this process: for mode split use the command `hone rl`")
        if self.config.orchestrator.max_async_level > 0:
            raise UserError("orchestrator.max_async_level > 0 needs mode split; in one process set it to 0 (lock-step)")
        if len(self.config.server_urls) > 1:
            raise UserError("several servers need mode split: use the command `hone rl`, or name one server")
        check_state(self.config.trainer.optim)
        self.config.check_kl_in_reward()  # also with `advantages`, which the config did not name when it was parsed

    def _check_agents(self) -> None:
        """Raise UserError for what a run can't have whose rollouts a program makes."""
        if not any(env.why_not_graded for env in self.all_envs):
            return
        orch = self.config.orchestrator
        problems = {
            "a teacher": self.config.teacher is not None,
            'orchestrator.advantage.components = "normalize"': orch.advantage.components == "normalize",
            'orchestrator.truncated = "penalize"': orch.truncated == "penalize",
        }
        if (problem := next((name for name, is_there in problems.items() if is_there), None)) is not None:
            raise UserError(f"a run with an agent does not work with {problem}: leave it out")

    def _check_least_rewards(self) -> None:
        """Raise UserError if a task declares rewards below 0, where advantages are divided by the mean reward."""
        if not self.config.orchestrator.advantage.divides_by_mean:
            return
        for env in self.envs.values():
            if (least := env.rubric.least_reward) is not None and least < 0:
                raise UserError(
                    f'orchestrator.advantage.scale = "group_mean" needs rewards of 0 or more, and a reward of {env.id} '
                    f"can be {least:g}: add {-least:g} to a component, or take another scale"
                )

    def _load_model(self) -> None:
        self.decoder = model_config(self.source, self.config.model.init, self.config.model.implementation)
        turns = max(env.max_turns for env in self.all_envs)
        self.config = resolve(self.config, Machine(self.decoder, device_of(self.config.model.device), turns=turns))
        for env in self.all_envs:
            env.use_workers(self.config.orchestrator.grading, deterministic=bool(self.config.deterministic))
        self.model = parts.load_policy(self.config, self.source)

    def _open(self, stack: ExitStack) -> None:
        config, model, renderer = self.config, self.model, self.renderer
        kernels: dict[str, Any] = {"deterministic": bool(config.deterministic), "compiled": config.model.compile}
        configure(config.threads, model.num_parameters, **kernels, device=model.device)
        server = None
        if config.sampled_by is not None:
            from hone.composition.sampling import reached

            server = reached(config, renderer, model.num_parameters)
        self._check()
        digests = parts.model_digests(model, renderer) if self.source == config.model.name else {}
        run = self._open_run(stack, digests, parameters=model.trained)
        if run.nothing_left:
            return
        trainer = parts.make_trainer(config, model, own_loss=self.own.functions.get("loss"))
        state = None
        if run.restored is not None:
            tensors, state = run.restored
            trainer.load_tensors(tensors, run.start_step)
        ledger = self._restored(state)
        if config.sampled_by is None:
            self.policy = own_policy(config, self.all_envs, trainer, renderer)
        else:
            from hone.composition.sampling import sampling

            self.policy = stack.enter_context(sampling(config, server, run, trainer, renderer))
        samplers = self._samplers(self.policy)

        def export(folder: Path, step: int, parameters: dict[str, torch.Tensor]) -> None:
            export_weights(folder, model, renderer, parts.card(config, step), parameters)

        snapshot = lambda _: Snapshot(trainer.tensors(), ledger.state())  # noqa: E731
        stack.enter_context(self._saving(export, snapshot, config.ckpt))
        trainer.interrupt = self.saver.stop.check
        band = band_from_config(config, model.config.num_layers, server.backend if server else None)
        canary = Canary.from_config(config, next(iter(samplers.values())), self.policy, trainer)
        watch = GapWatch(band, config.gap.action, run, canary)

        def publish(version: int) -> dict[str, float]:
            with self.steps.recorder.phase("publish"):
                self.policy.load(version)
                return watch.published(version)

        local = LocalTrainer(trainer, config.trainer.micro_batch_tokens, run.phase)
        self._make_steps(samplers, self.policy, local, ledger, watch, publish)

    def _check(self) -> None:
        """Also ask for the teacher."""
        super()._check()
        if self.config.teacher is not None:
            vocab_size, seq_len = self.decoder.vocab_size, self.config.seq_len
            from hone.orchestrator.teacher import Teacher

            self.teacher = Teacher.reach(self.config.teacher, self.renderer, vocab_size, seq_len)

    def _samplers(self, policy: Policy) -> dict[str, GroupSampler]:
        own = self.own.functions.get("advantages")
        return {
            name: GroupSampler(one, self.envs[name], self.renderer, policy, self.curricula[name], own, name)
            for name, one in self.config.tasks().items()
        }

    def _open_run(self, stack: ExitStack, digests: dict[str, str], **more: Any) -> Any:
        """Open the run directory and, if anything is left to do, start what grades."""
        config, given = self.config, self.given
        kept = (given.files if given else {}) | self.own.files
        digests = (
            digests
            | parts.task_digests(config, self.envs, self.eval_envs)
            | (given.digests if given else {})
            | self.own.digests
        )
        reads = parts.local_sources(parts.model_files(config))
        for one in (*config.tasks().values(), *config.eval_tasks().values()):
            task = one.orchestrator.env
            reads += parts.local_sources([], task.args) + ([task.profile] if task.profile else [])
        reads = [path for path in reads if path not in [config.output_dir / name for name in kept]]
        run = self._start(stack, reads, digests, keep=kept, **more)
        if run.nothing_left:
            return run
        judgements.record_in(config.output_dir)
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
        run.note(reward_ranges=self.env.rubric.ranges_as_lists(), **facts)
        if given is not None:
            parts.note_given(given, run)
        if any(env.patience is not None for env in self.all_envs):
            run.mark_inexact(run.start_step, f"{PROGRAM_ROLLOUTS}, and nothing shows that it repeats itself")
        parts.warn_not_kept(own_functions.FILE, self.own.not_kept, run)
        return run

    def _restored(self, state: dict[str, Any] | None) -> Ledger:
        """Return the ledger of a checkpoint's state, None without one; the curriculum is put where it was."""
        run, ledger = self.run, Ledger(state["ledger"] if state else None)

        def restarted(size: int, step: int) -> None:
            run.event("pool_restarted", step, examples=size)
            run.display.message(
                f"Step {step} found no prompt left in the pool (all {size:,} are retired or parked): all "
                "are back, and what was measured of them is forgotten."
            )

        for name, curriculum in self.curricula.items():
            curriculum.restore(ledger.of(name))
            curriculum.restarted = partial(restarted, curriculum.size)
        return ledger

    def _make_steps(
        self,
        samplers: Mapping[str, GroupSampler],
        policy: Policy,
        trainer: Updates,
        ledger: Ledger,
        watch: GapWatch,
        publish: Publish,
    ) -> None:
        config, orch = self.config, self.config.orchestrator
        failures = FailureWatch(orch.grading.max_failed, config.max_steps * orch.batch_size, self.run)
        recorder = RunRecorder(
            self.run, self.saver, watch, failures, self.renderer.special_texts, orch.advantage.divides_by_mean
        )
        evaluate = parts.make_evaluate(config, self.eval_envs, self.renderer, policy, recorder)
        if config.teacher is not None:
            self.run.mark_inexact(self.run.start_step, f"{TAUGHT_BY}{config.teacher.base_url}")
        parties = recorder, publish, evaluate, self.teacher
        self.steps = Steps(config, samplers, self.curricula, trainer, ledger, *parties)
