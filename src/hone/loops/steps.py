"""The steps of RL: in one process, in several, or replayed by `hone verify`. `build` makes them from a config.

Step N draws prompts, samples a group of completions per prompt from policy version N and grades them. The advantage is
the reward minus the mean of its group. One update with the token-level clipped loss makes version N + 1. Groups of
equal rewards carry no gradient and are dropped; if all are dropped, the weights stay the same, but the version and the
schedule advance. There is no value network and no replay; by default there is no KL, and one update per batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from hone.config.rl import RLConfig
from hone.environments import Environment
from hone.errors import Halt
from hone.inference.policy import Policy
from hone.loops.curriculum import Curriculum
from hone.loops.groups import Advantages, GroupSampler, trainable
from hone.loops.ledger import Ledger
from hone.loops.mix import close_draws, mix_metrics, pool_metrics, shares
from hone.loops.parts import evaluate_policy
from hone.loops.recorder import RunRecorder
from hone.loops.training import Loop
from hone.loops.updates import Update, Updates
from hone.model.chat import ChatRenderer
from hone.runs.saving import Ending, Snapshot
from hone.runs.signals import StepAbandoned
from hone.types import Group


@dataclass(eq=False)
class Tasks:
    """The tasks of a run by name: tasks to train on, with `curricula` that draw their examples, and tasks to evaluate.

    `renderer` writes the prompts. `advantages` is a program's function that replaces the algorithm's, or None.
    """

    train: Mapping[str, Environment]
    evaluation: Mapping[str, Environment]
    curricula: Mapping[str, Curriculum]
    renderer: ChatRenderer
    advantages: Advantages | None = None


AddColumn = Callable[[Sequence[Group]], list[Group]]
"""Returns the groups with an extension's column (`hone.extension.Column`) added."""


@dataclass
class PendingStep:
    """A step that was sent to the trainer. Its update is not received yet."""

    step: int
    groups: list[Group]
    metrics: dict[str, float]
    totals: dict[str, float]


def build(
    config: RLConfig,
    tasks: Tasks,
    policy: Policy | None,
    trainer: Updates,
    recorder: RunRecorder,
    state: Mapping[str, Any] | None = None,
    columns: Sequence[tuple[str, AddColumn]] = (),
) -> Steps:
    """Make the steps of a run, from a checkpoint's `state` or, if None, from step 0.

    Without a policy, `sample` can't be used, and `update` trains on recorded groups.
    """
    ledger, samplers = Ledger(state["ledger"] if state else None), dict[str, GroupSampler]()
    for name, one in config.tasks().items():
        curriculum = tasks.curricula[name]
        curriculum.restore(ledger.of(name))
        if policy is not None:
            env, custom = tasks.train[name], tasks.advantages
            samplers[name] = GroupSampler(one, env, tasks.renderer, policy, curriculum, custom, name)
    return Steps(config, tasks, policy, samplers, trainer, ledger, recorder, columns)


@dataclass(eq=False)
class Steps(Loop):
    """The loop: `sample` draws, samples, grades and takes advantages; `update` trains; `measure` publishes and
    evaluates.

    With `max_async_level` k > 0 up to k batches wait for the trainer while the next batch is sampled, and the sampler
    may get new weights meanwhile. The order of draws doesn't depend on k.
    """

    config: RLConfig
    tasks: Tasks
    policy: Policy | None
    samplers: Mapping[str, GroupSampler]
    trainer: Updates
    ledger: Ledger
    recorder: RunRecorder
    columns: Sequence[tuple[str, AddColumn]]
    """(phase, function) for each column; the function's time is logged as this phase."""
    metrics: dict[str, float] = field(default_factory=dict, init=False)
    """Metrics of the last recorded step."""
    _pending: deque[PendingStep] = field(default_factory=deque, init=False)

    def __post_init__(self) -> None:
        self.saver = self.recorder.saver

    @property
    def next_step(self) -> int:
        """Number of the next step: the number of updates that were received or are pending."""
        return self.version + len(self._pending)

    def step(self) -> dict[str, float]:
        return self.update(self.sample())

    def sample(self) -> list[Group]:
        if not self.begin():
            raise StepAbandoned
        step, groups, draw = self.next_step, list[Group](), len(self.ledger.entries)
        for name, count in shares(self.config, step).items():
            if count:
                made = self.samplers[name].groups(step, count, draw, self.recorder.phase)
                groups, draw = groups + made, draw + len(self.tasks.curricula[name].draw(len(made)))
        for phase, add_column in self.columns:
            with self.recorder.phase(phase):
                groups = add_column(groups)
        return groups

    def update(self, groups: Sequence[Group]) -> dict[str, float]:
        """Update the weights on the groups of a step. Return the metrics of the last finished step."""
        step, orch, groups = self.next_step, self.config.orchestrator, list(groups)
        metrics, batch = mix_metrics(groups, self.config, step), trainable(groups, self.config)
        self.trainer.put(step, batch)
        close_draws(self.ledger, self.tasks.curricula, groups, step)
        totals = {"tokens/total": self.ledger.tokens} | pool_metrics(self.tasks.curricula)
        self._pending.append(PendingStep(step, groups, metrics, totals))
        while self._pending and (len(self._pending) > orch.lag or self.trainer.ready):
            self._receive_update()
        return self.metrics

    def begin(self, last: bool = False) -> bool:
        goes_on = super().begin(last)
        self.trainer.release(self.version)
        return goes_on

    def measure(self, version: int, last: bool) -> dict[str, float]:
        """Publish the version to the sampler. Evaluate every `eval.interval` versions, and the last one."""
        with self.recorder.phase("publish"):
            gap = self.trainer.publish(version)
        self._measured = self.recorder.published(version, gap)  # of a step that is given up before the rest
        evals, envs = self.config.orchestrator.eval, self.tasks.evaluation
        if self.policy is None or evals is None or not envs or (version % evals.interval and not last):
            return self._measured
        metrics, samples, rows = dict(self._measured), [], []
        for name, one in self.config.eval_tasks().items():
            with self.recorder.phase("evaluate"):
                result = evaluate_policy(one, envs[name], self.tasks.renderer, self.policy)
            result = replace(result, env_id=name or result.env_id)
            samples += result.samples
            rows += [{"env": name} | row for row in result.rows()] if len(envs) > 1 else result.rows()
            metrics |= result.metrics()
        self.recorder.evaluated(version, samples, rows)
        return metrics

    def finish(self, complete: bool = True) -> Ending:
        while self._pending:
            self._receive_update()
        return super().finish(complete)

    def record_end(self, version: int, metrics: dict[str, float]) -> None:
        self.recorder.record(version, metrics, [], Update({}, self.fingerprint()))

    def give_up(self) -> None:
        self.trainer.give_up()
        while self._pending:
            with suppress(Halt):  # the first one ends the run
                self._receive_update(begin=False)

    def snapshot(self, checkpoint: bool) -> Snapshot:
        tensors, part = self.trainer.snapshot(checkpoint)
        return Snapshot(tensors, self.ledger.state(before=self.version), part)

    def _receive_update(self, begin: bool = True) -> None:
        """Record the next update. Begin its version if another step is pending, or if `config.stop` must be tested."""
        update, pending = self.trainer.take(), self._pending.popleft()
        measured, self._measured = dict(self._measured), {}
        self.metrics = measured | pending.metrics | update.metrics | pending.totals
        self.recorder.record(pending.step, self.metrics, pending.groups, update)
        if begin and (self._pending or (self.config.stop and not self.done)):
            self.begin()
