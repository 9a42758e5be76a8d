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

import os
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hone.composition.machine import configure, device_of
from hone.composition.overlap import check_overlap, left_out, tell_overlap
from hone.composition.parts import (
    card,
    check_lengths,
    evaluate_policy,
    failure_watch,
    load_policy,
    make_evaluate,
    make_trainer,
    model_digests,
    model_source,
    own_sources,
    restore,
    task_digests,
    task_of,
    tell_restart,
    with_determinism,
    with_given_task,
)
from hone.composition.sampling import reached, sampling
from hone.composition.training import Training
from hone.config.parse import from_settings
from hone.config.rl import OnlineEvalConfig, RLConfig
from hone.environments import Environment
from hone.environments.rubric import RewardFunc
from hone.errors import Halt, UserError
from hone.evaluation.result import EvalResult
from hone.model.chat import load_renderer
from hone.orchestrator.canary import Canary
from hone.orchestrator.conversations import check_turns
from hone.orchestrator.curriculum import Curriculum
from hone.orchestrator.groups import GroupSampler, close_draws, oldest_version
from hone.orchestrator.ledger import Ledger
from hone.orchestrator.local_trainer import LocalTrainer
from hone.orchestrator.metrics import step_metrics
from hone.orchestrator.packing import trainable
from hone.orchestrator.recorder import RunRecorder
from hone.orchestrator.types import Evaluate, Publish, Recorder, Updates
from hone.orchestrator.watch import GapWatch, band_of
from hone.runs.observer import Observer, checked_observers
from hone.runs.prediction import check as check_predictions
from hone.runs.saving import Ending, Snapshot
from hone.runs.signals import StepAbandoned
from hone.runs.writer import RunWriter
from hone.trainer.export import export_weights
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
    timings: dict[str, float]


class Steps:
    """The steps of RL, whoever samples, trains and records: in one process, in several, or again in `hone verify`.

    With `max_async_level` k > 0 up to k batches are on their way to the trainer while the next one is sampled, and new
    weights reach the sampler in the middle of that. Draws keep their order whatever k is.
    """

    def __init__(
        self,
        config: RLConfig,
        sampler: GroupSampler | None,
        curriculum: Curriculum,
        trainer: Updates,
        ledger: Ledger,
        recorder: Recorder,
        publish: Publish,
        evaluate: Evaluate,
    ) -> None:
        self.config, self.sampler, self.curriculum, self.trainer = config, sampler, curriculum, trainer
        self.ledger, self.recorder, self.publish, self.evaluate = ledger, recorder, publish, evaluate
        self.metrics: dict[str, float] = {}
        """Those of the last step that was recorded."""
        self._sent: deque[Sent] = deque()
        self._measured: dict[str, float] = {}
        self._begun: int | None = None
        self._returned: int | None = None

    @property
    def next_step(self) -> int:
        """The step that comes next: as many as were taken, or are on their way."""
        return self.trainer.version + len(self._sent)

    @property
    def done(self) -> bool:
        """True once there is nothing to take: all steps are, or a stop was asked for, or the budget is used up."""
        return self.next_step >= self.config.max_steps or self.recorder.saver.stopping

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
        draws, examples = self.sampler.draw()
        step, oldest = self.next_step, self.next_step - self.config.orchestrator.max_async_level
        groups: dict[int, Group] = {}
        self._returned = 0
        while waiting := [draw for draw in draws if draw not in groups]:
            of_draws = [example for draw, example in zip(draws, examples, strict=True) if draw in waiting]
            with self.recorder.phase("sample"):
                trajectories = self.sampler.sample(of_draws, waiting, step)
            with self.recorder.phase("grade"):
                graded = self.sampler.grade(of_draws, waiting, trajectories)
            groups |= {group.draw: group for group in graded if oldest_version(group, step) >= oldest}
            if stale := [group.draw for group in graded if group.draw not in groups]:
                self._returned += len(stale)
                self.recorder.returned(step, stale, oldest)
        return [groups[draw] for draw in draws]

    def update(self, groups: Sequence[Group]) -> dict[str, float]:
        """Update the weights on the groups of a step; returns the metrics of the last step that was finished."""
        step, orch, groups = self.next_step, self.config.orchestrator, list(groups)
        metrics = step_metrics(groups, step, orch.max_async_level)
        if self._returned or (orch.max_async_level and self._returned is not None):
            metrics["staleness/returned"] = self._returned
        timings = self.trainer.put(step, trainable(groups, orch.truncated))
        close_draws(self.ledger, self.curriculum, groups, step)
        totals = {"tokens/total": self.ledger.tokens} | self.curriculum.metrics()
        self._sent.append(Sent(step, groups, metrics, totals, timings))
        while self._sent and (len(self._sent) > orch.max_async_level or self.trainer.ready):
            self._take()
        return self.metrics

    def step(self) -> dict[str, float]:
        """Take one step: sample, then update."""
        return self.update(self.sample())

    def finish(self, complete: bool = True) -> Ending:
        """Take what is on its way, save the last version, measure and record it; tells how the run ended.

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
            with suppress(Halt):  # the first one is told
                self._take(begin=False)

    def _take(self, begin: bool = True) -> None:
        """Take the next update, and record its step. If another one is on its way, begin the version before that."""
        update, sent = self.trainer.take(), self._sent.popleft()
        measured, self._measured = self._measured, {}
        self.metrics = measured | sent.metrics | update.metrics | sent.totals
        timings = sent.timings | update.timings
        self.recorder.record(sent.step, self.metrics, sent.groups, update.weights, timings, update.token_stats)
        if begin and self._sent:
            self.begin()


class RL(Training):
    """A run of RL in this process: task, renderer, model, policy, trainer, curriculum and ledger of a config.

    `config` is an `RLConfig`, a TOML file or nothing; further keys of it are `settings`, by name or dotted name. The
    task is the one that it names, or `reward_funcs` on the examples of `dataset`: see `hone.environments.functions`,
    and `given_task` there. UserError for what is wrong with them, the task, its data or the model. Used as a context,
    it opens the run directory, sets threads and deterministic kernels, and on leaving saves the final version and sets
    them back.
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
        observers: Sequence[Observer] = (),
        **settings: Any,
    ) -> None:
        found = from_settings(RLConfig, config, settings).on_gpus(1)
        task = dataset, eval_dataset, reward_funcs, reward_weights, correct
        self.config, self.given = with_given_task(found, *task)
        self.observers = checked_observers(observers)
        self._drawn: list[int] = []
        self._refuse_unsupported()
        self.env = self.fresh_task()
        self.env.check_rollouts()
        check_predictions(self.config, self.env.id)
        self.source = model_source(self.config)
        self.renderer = load_renderer(self.source, self.config.model.chat_template)
        self._load_model()
        self.overlap = check_overlap(self.config, self.env)
        self.left_out = left_out(self.config, self.overlap)
        train = self.env.split("train")
        self.curriculum = Curriculum.of_run(self.config, len(train), self.left_out)
        check_turns(self.env, self.renderer, train[0])
        check_lengths(self.config, self.env, self.renderer, self.decoder.max_position_embeddings, self.curriculum)

    @property
    def done(self) -> bool:
        """True once no step is left to take, or a stop was asked for."""
        return self.opened.nothing_left or self.steps.done

    def fresh_task(self) -> Environment:
        """The task, made anew, with processes of its own. Touches no data."""
        if self.given is None:
            return task_of(self.config)
        env, template = self.given.load(), self.config.orchestrator.env.template
        if template is not None:
            env.use_template(template, "orchestrator.env.template")
        env.use_workers(self.config.orchestrator.grading, deterministic=bool(self.config.deterministic))
        return env

    def sample(self) -> list[Group]:
        """Draw the next prompts, sample a group of completions of each, and grade them."""
        self.check_steps_left()
        with self.inside():
            groups = self.steps.sample()
        self._drawn = [group.draw for group in groups]
        return groups

    def update(self, groups: Sequence[Group]) -> dict[str, float]:
        """Update the weights on all groups that `sample` gave, in their order; returns the step's metrics."""
        self.check_steps_left()
        if not self._drawn or [group.draw for group in groups] != self._drawn:
            raise UserError("update takes all groups that the last sample() has returned, in their order, once")
        self._drawn = []
        with self.inside():
            return self.steps.update(groups)

    def step(self) -> dict[str, float]:
        """Sample, then update; returns the step's metrics."""
        self.check_steps_left()
        with self.inside():
            return self.steps.step()

    def evaluate(self, num_examples: int | None = None) -> EvalResult:
        """Evaluate the current version on held-out examples, as `orchestrator.eval` says. Nothing is recorded."""
        self.check_not_finished()
        if num_examples is not None and num_examples < 1:
            raise UserError(f"num_examples is {num_examples}; evaluate at least 1 example")
        settings = self.config.orchestrator.eval or OnlineEvalConfig()
        if num_examples is not None:
            settings = settings.model_copy(update={"num_examples": num_examples})
        self.policy.load(self.version)
        return evaluate_policy(self.config, settings, self.env, self.renderer, self.policy)

    def train(self) -> None:
        """Take all steps that are left."""
        with self.inside():
            while not self.done:
                if self.steps.begin():
                    self.steps.step()

    def _refuse_unsupported(self) -> None:
        if self.config.mode == "cluster":
            raise UserError(
                "mode cluster (roles on several machines, by Ray) is not available in this version: --mode split has a "
                "process for each role on this one"
            )
        if self.config.mode == "split":
            raise UserError("RL trains in this process: for mode split use the command `hone rl`")
        if self.config.orchestrator.max_async_level > 0:
            raise UserError("orchestrator.max_async_level > 0 needs mode split; in one process set it to 0 (lock-step)")

    def _load_model(self) -> None:
        self.config = with_determinism(self.config, device_of(self.config.model.device))
        self.env.use_workers(self.config.orchestrator.grading, deterministic=bool(self.config.deterministic))
        self.model = load_policy(self.config, self.source)
        self.decoder = self.model.config

    def _open(self, stack: ExitStack) -> None:
        config, parameters = self.config, dict(self.model.named_parameters())
        configure(config.threads, self.model.num_parameters, bool(config.deterministic))
        server = reached(config, self.renderer, self.model.num_parameters)
        self.check()
        digests = model_digests(self.model, self.renderer, self.source == config.model.name)
        digests |= task_digests(config, self.env) | (self.given.digests if self.given else {})
        kept = self.given.files if self.given else {}
        run = self._start(stack, own_sources(config, kept), digests, parameters=parameters, keep=kept)
        if run.nothing_left:
            return
        self._begin_grading(stack)
        trainer = make_trainer(config, self.model)
        ledger = self._restored(restore(run, trainer))
        self.policy = policy = stack.enter_context(sampling(config, self.env, server, run, trainer, self.renderer))
        sampler = GroupSampler(config, self.env, self.renderer, policy, self.curriculum)

        def export(folder: Path, step: int, parameters: dict[str, torch.Tensor]) -> None:
            export_weights(folder, self.model, self.renderer, card(config, step), parameters)

        self._save_with(stack, export, lambda _: Snapshot(trainer.tensors(), ledger.state()))
        trainer.interrupt = self.saver.stop.check
        canary = Canary.of_run(
            config, sampler, self.renderer, policy, trainer, band_of(config, server.backend if server else None)
        )
        watch = GapWatch(canary, config.gap.action, run)
        recorder = RunRecorder(run, self.saver, watch, failure_watch(config, run))

        def publish(version: int) -> dict[str, float]:
            with recorder.phase("publish"):
                policy.load(version)
                return watch.published(version)

        self.steps = Steps(
            config,
            sampler,
            self.curriculum,
            LocalTrainer(trainer, config.trainer.micro_batch_tokens, run.phase),
            ledger,
            recorder,
            publish,
            make_evaluate(config, self.env, self.renderer, policy, recorder),
        )

    def _begin_grading(self, stack: ExitStack) -> None:
        """Start what grades, and write down what is graded."""
        run, config, env = self.run, self.config, self.env
        if run.start_step == 0:
            tell_overlap(config, env, self.overlap, run)
        stack.callback(env.close_workers)
        env.progress = run.display.doing
        env.start_workers(config.orchestrator.batch_size)
        told_before = "left_out" in run.info  # a resume with --allow-drift may leave none out
        run.info.pop("grading", None)
        if self.given and self.given.graded_here and os.environ.get("PYTHONHASHSEED") != "0":
            run.mark_inexact(run.start_step, "reward functions run in this process, whose PYTHONHASHSEED is not 0")
        run.note(
            pool=self.curriculum.size,
            correctness=env.rubric.correctness,
            reward_ranges=env.rubric.ranges_as_lists(),
            **({"left_out": self.left_out} if self.left_out or told_before else {}),
            **({"grading": self._graded_here()} if self.given and self.given.graded_here else {}),
        )

    def _graded_here(self) -> str:
        """Return what run.json says of how completions are graded; warn if rewards.py can't be imported by itself."""
        assert self.given is not None
        if self.given.not_kept:
            self.run.display.message(
                f"Warning: rewards.py can't be imported by itself ({self.given.not_kept}): this program can resume the "
                "run (resume=True), but no command can, nor verify it."
            )
        names = ", ".join(self.given.graded_here)
        return f"in the process that trains, without limits: no other one can import {names}"

    def _restored(self, state: dict[str, Any] | None) -> Ledger:
        """The ledger of a checkpoint's state, None without one; the curriculum is put where it was."""
        run: RunWriter = self.run
        ledger = Ledger(state["ledger"] if state else None)
        self.curriculum.restore(ledger.entries)
        self.curriculum.restarted = lambda step: tell_restart(run, self.curriculum, step)
        return ledger

    def finish(self, complete: bool = True) -> Ending:
        """Take what is on its way, save the last version, measure and record it; tells how the run ended."""
        return self.steps.finish(complete)

    def _updates(self) -> int:
        return self.steps.trainer.version

    def _give_up(self) -> None:
        self.steps.give_up()

    def _fingerprint(self) -> str:
        return self.steps.trainer.fingerprint()
