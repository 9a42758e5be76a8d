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
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hone.algorithms.losses import TokenLoss
from hone.composition import own_functions, parts
from hone.composition.machine import configure, device_of, resolved
from hone.composition.memory import changed
from hone.composition.own_functions import OwnFunctions
from hone.composition.training import Training
from hone.config.parse import from_settings
from hone.config.rl import OnlineEvalConfig, RLConfig
from hone.environments import MultiTurnEnv
from hone.environments.rubric import RewardFunc
from hone.errors import Halt, UserError
from hone.evaluation.result import EvalResult
from hone.model.chat import load_renderer
from hone.model.hf import model_config
from hone.orchestrator.canary import Canary, GapWatch, band_from_config
from hone.orchestrator.colocated import LocalTrainer, own_policy
from hone.orchestrator.conversations import check_turns
from hone.orchestrator.curriculum import Curriculum
from hone.orchestrator.groups import Advantages, GroupSampler, close_draws, step_metrics, trainable
from hone.orchestrator.ledger import Ledger
from hone.orchestrator.recorder import FailureWatch, RunRecorder
from hone.orchestrator.types import Evaluate, Policy, Publish, Updates
from hone.runs.observer import Observer, checked_observers
from hone.runs.predictions import check as check_predictions
from hone.runs.saving import Ending, Snapshot
from hone.runs.signals import StepAbandoned
from hone.trainer.export import export_weights
from hone.trainer.optim import check_state
from hone.types import Group

if TYPE_CHECKING:
    import torch


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
    weights reach the sampler in the middle of that. Draws keep their order whatever k is.
    """

    config: RLConfig
    sampler: GroupSampler | None
    curriculum: Curriculum
    trainer: Updates
    ledger: Ledger
    recorder: RunRecorder
    publish: Publish
    evaluate: Evaluate
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
        """True once no step is left to take, a stop was asked for, or the budget is used up."""
        return self.next_step >= self.config.max_steps or self.recorder.saver.stopping

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
            self._measured |= self.evaluate(version, False)
        self.trainer.release(version)
        self._begun = version
        return goes_on

    def sample(self) -> list[Group]:
        """Draw the next prompts, sample a group of completions of each, and grade them."""
        assert self.sampler is not None
        if not self.begin():
            raise StepAbandoned
        step, (draws, examples) = self.next_step, self.sampler.draw()
        with self.sampler.early_grading() as early:
            with self.recorder.phase("sample"):
                trajectories = self.sampler.sample(examples, draws, step, early)
            with self.recorder.phase("grade"):
                return self.sampler.grade(examples, draws, trajectories, early)

    def update(self, groups: Sequence[Group]) -> dict[str, float]:
        """Update the weights on the groups of a step; returns the metrics of the last step that was finished."""
        step, orch, groups = self.next_step, self.config.orchestrator, list(groups)
        metrics = step_metrics(groups, step, orch.max_async_level)
        self.trainer.put(step, trainable(groups, self.config))
        close_draws(self.ledger, self.curriculum, groups, step)
        totals = {"tokens/total": self.ledger.tokens} | self.curriculum.metrics()
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
        metrics = {} if ending == "stopped" else self.publish(version) | self.evaluate(version, True)
        self.recorder.record(version, metrics, [], self.trainer.fingerprint())
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
        """Take the next update, and record its step. If another one is on its way, begin the version before that."""
        update, sent = self.trainer.take(), self._sent.popleft()
        measured, self._measured = self._measured, {}
        self.metrics = measured | sent.metrics | update.metrics | sent.totals
        self.recorder.record(sent.step, self.metrics, sent.groups, update.weights, update.timings, update.token_stats)
        if begin and self._sent:
            self.begin()


class RL(Training):
    """A run of RL in this process: task, renderer, model, policy, trainer, curriculum and ledger of a config.

    `config` is an `RLConfig`, a TOML file or nothing; further keys of it are `settings`, by name or dotted name. The
    task is the one that it names, or `reward_funcs` on the examples of `dataset`: see `hone.environments.functions`,
    and `given_task` there. `loss` and `advantages` are functions in place of the algorithm's, see
    `docs/algorithms.md`. Raises UserError if a setting, the task, its data or the model is bad. Used as a
    context, it opens the run directory, sets threads and deterministic kernels, and on leaving saves the final version
    and sets them back.
    """

    kind = "rl"
    steps: Steps

    def __init__(
        self,
        config: RLConfig | str | Path | None = None,
        *,
        dataset: Any = None,
        eval_dataset: Any = None,
        reward_funcs: Sequence[RewardFunc | str] | RewardFunc | str = (),
        reward_weights: Sequence[float] | None = None,
        correct: RewardFunc | str | None = None,
        loss: TokenLoss | str | None = None,
        advantages: Advantages | str | None = None,
        observers: Sequence[Observer] = (),
        **settings: Any,
    ) -> None:
        parsed = from_settings(RLConfig, config, settings)
        parsed, self.own = OwnFunctions.given(parsed, loss=loss, advantages=advantages)
        parsed = parsed.model_copy(update={"mode": parsed.mode or "colocated"})
        task = dataset, eval_dataset, reward_funcs, reward_weights, correct
        self.config, self.given = parts.with_given_task(parsed, *task)
        self.observers = checked_observers(observers)
        self._drawn: list[int] = []
        self._refuse_unsupported()
        self.env = parts.task_of(self.config, self.given)
        self.env.check_rollouts()
        check_predictions(self.config, self.env.id)
        self._settle_overlap()
        self.source = parts.model_source(self.config)
        self.renderer = load_renderer(self.source, self.config.model.chat_template)
        self._load_model()
        self.overlap = parts.check_overlap(self.config, self.env)
        evals = self.config.orchestrator.eval
        self.left_out = list(self.overlap.rows) if self.overlap and evals and evals.overlap == "drop" else []
        train = self.env.split("train")
        self.curriculum = Curriculum.from_config(self.config, len(train), self.left_out)
        check_turns(self.env, self.renderer, train[0])
        context = self.decoder.max_position_embeddings
        parts.check_lengths(self.config, self.env, self.renderer, context, self.curriculum)

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

    def evaluate(self, num_examples: int | None = None) -> EvalResult:
        """Evaluate the current version on held-out examples, by `orchestrator.eval`. Nothing is recorded."""
        self._check_left(takes_step=False)
        if num_examples is not None and num_examples < 1:
            raise UserError(f"num_examples is {num_examples}; evaluate at least 1 example")
        settings = self.config.orchestrator.eval or OnlineEvalConfig()
        if num_examples is not None:
            settings = settings.model_copy(update={"num_examples": num_examples})
        self.policy.load(self.version)
        return parts.evaluate_policy(self.config, settings, self.env, self.renderer, self.policy)

    def _refuse_unsupported(self) -> None:
        if self.config.mode == "split":
            raise UserError("RL trains in this process: for mode split use the command `hone rl`")
        if self.config.orchestrator.max_async_level > 0:
            raise UserError("orchestrator.max_async_level > 0 needs mode split; in one process set it to 0 (lock-step)")
        check_state(self.config.trainer.optim)

    def _settle_overlap(self) -> None:
        """Refuse `grading.overlap` = true where it has no effect for the task; switch it off there if it is left open.

        A resumed run keeps what it began with.
        """
        grading = self.config.orchestrator.grading
        if self.config.resume is not None:
            return
        if (reason := self.env.late_grading_reason) is None:
            return
        if grading.overlap:
            raise UserError(
                f"orchestrator.grading.overlap = true has no effect with {self.env.id or 'this task'}, for {reason}: "
                "leave it out, or set it to false"
            )
        self.config = changed(self.config, orchestrator={"grading": {"overlap": False}})

    def _load_model(self) -> None:
        self.decoder = model_config(self.source, self.config.model.init)
        turns = self.env.max_turns if isinstance(self.env, MultiTurnEnv) else 1
        self.config = resolved(self.config, self.decoder, device_of(self.config.model.device), turns=turns)
        self.env.use_workers(self.config.orchestrator.grading, deterministic=bool(self.config.deterministic))
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
            self.policy = own_policy(config, self.env, trainer, renderer)
        else:
            from hone.composition.sampling import sampling

            self.policy = stack.enter_context(sampling(config, server, run, trainer, renderer))
        own_advantages = self.own.functions.get("advantages")
        sampler = GroupSampler(config, self.env, renderer, self.policy, self.curriculum, own_advantages)

        def export(folder: Path, step: int, parameters: dict[str, torch.Tensor]) -> None:
            export_weights(folder, model, renderer, parts.card(config, step), parameters)

        snapshot = lambda _: Snapshot(trainer.tensors(), ledger.state())  # noqa: E731
        stack.enter_context(self._saving(export, snapshot, config.ckpt))
        trainer.interrupt = self.saver.stop.check
        band = band_from_config(config, model.config.num_layers, server.backend if server else None)
        canary = Canary.from_config(config, sampler, self.policy, trainer)
        watch = GapWatch(band, config.gap.action, run, canary)

        def publish(version: int) -> dict[str, float]:
            with self.steps.recorder.phase("publish"):
                self.policy.load(version)
                return watch.published(version)

        local = LocalTrainer(trainer, config.trainer.micro_batch_tokens, run.phase)
        self._make_steps(sampler, self.policy, local, ledger, watch, publish)

    def _open_run(self, stack: ExitStack, digests: dict[str, str], **more: Any) -> Any:
        """Open the run directory and, if anything is left to do, start what grades."""
        config, env, given = self.config, self.env, self.given
        kept = (given.files if given else {}) | self.own.files
        digests = digests | parts.task_digests(config, env) | (given.digests if given else {}) | self.own.digests
        reads = parts.local_sources([config.model.name, config.model.chat_template], config.orchestrator.env.args)
        reads = [path for path in reads if path not in [config.output_dir / name for name in kept]]
        run = self._start(stack, reads, digests, keep=kept, **more)
        if run.nothing_left:
            return run
        if run.start_step == 0 and self.overlap is not None and self.overlap.rows:
            parts.report_overlap(config, env, self.overlap, run)
        stack.callback(env.close_workers)
        env.progress = run.display.doing
        env.start_workers(config.orchestrator.batch_size)
        facts: dict[str, Any] = {"pool": self.curriculum.size, "correctness": env.rubric.correctness}
        if self.left_out or "left_out" in run.info:  # a resume with --allow-drift may leave none out
            facts["left_out"] = self.left_out
        run.info.pop("grading", None)
        run.note(reward_ranges=env.rubric.ranges_as_lists(), **facts)
        if given is not None:
            parts.note_given(given, run)
        parts.warn_not_kept(own_functions.FILE, self.own.not_kept, run)
        return run

    def _restored(self, state: dict[str, Any] | None) -> Ledger:
        """Return the ledger of a checkpoint's state, None without one; the curriculum is put where it was."""
        run, curriculum = self.run, self.curriculum
        ledger = Ledger(state["ledger"] if state else None)
        curriculum.restore(ledger.entries)

        def restarted(step: int) -> None:
            run.event("pool_restarted", step, examples=curriculum.size)
            run.display.message(
                f"Step {step} found no prompt left in the pool (all {curriculum.size:,} are retired or parked): all "
                "are back, and what was measured of them is forgotten."
            )

        curriculum.restarted = restarted
        return ledger

    def _make_steps(
        self,
        sampler: GroupSampler,
        policy: Policy,
        trainer: Updates,
        ledger: Ledger,
        watch: GapWatch,
        publish: Publish,
    ) -> None:
        config, orch = self.config, self.config.orchestrator
        failures = FailureWatch(orch.grading.max_failed, config.max_steps * orch.batch_size, self.run)
        recorder = RunRecorder(self.run, self.saver, watch, failures)
        evaluate = parts.make_evaluate(config, self.env, self.renderer, policy, recorder)
        self.steps = Steps(config, sampler, self.curriculum, trainer, ledger, recorder, publish, evaluate)
