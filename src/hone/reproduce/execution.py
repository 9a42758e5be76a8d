"""Taking the steps of a run again: from its recorded rollouts (`replay`), or from nothing but its state (`repeat`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.errors import UserError
from hone.orchestrator.curriculum import Curriculum
from hone.orchestrator.groups import GroupSampler, close_draws, group_state
from hone.orchestrator.ledger import Ledger
from hone.orchestrator.metrics import step_metrics
from hone.orchestrator.packing import pack_groups
from hone.reproduce.compare import Row, StepRecord
from hone.reproduce.groups import groups_of
from hone.reproduce.records import Records, plain_rows
from hone.runs.rollouts import group_rows, rollouts_file
from hone.trainer.packing import split_micro_batches
from hone.trainer.sft import Progress
from hone.trainer.sft_data import Source, next_batch
from hone.trainer.step import Trainer
from hone.types import Example, Group, PackedBatch, Trajectory

Publish = Callable[[int], dict[str, float]]
"""version -> what was measured of its publication."""
Evaluate = Callable[[int], tuple[dict[str, float], list[Row] | None]]
"""version -> metrics of its evaluation, and its samples as they are read back from a run; None without any."""


class Execution(Protocol):
    """The steps of one run, taken again by `trainer`, one after the other."""

    trainer: Trainer

    def begin(self, state: Mapping[str, Any] | None) -> None:
        """Go on from the loop's state in a checkpoint (None: from the beginning); the trainer is set already."""
        ...

    def replay(self, step: int) -> StepRecord:
        """The update of a step, from what the run recorded; without evaluations."""
        ...

    def repeat(self, step: int) -> StepRecord:
        """The whole step anew, with the evaluation before it if one was due or recorded."""
        ...

    @property
    def resamples(self) -> bool:
        """False if what sampled is not to be had: `repeat` grades the recorded completions, and measures no version."""
        ...

    @property
    def evaluates(self) -> bool:
        """True if the run was to measure versions, and so to end with measuring the last one."""
        ...

    def evaluation(self) -> StepRecord:
        """What is measured of the current version, as at the end of a run."""
        ...


class RLExecution:
    """An RL run. Without a `sampler` it can replay, not repeat; without `evaluate` and `publish` not sample anew."""

    def __init__(
        self,
        config: RLConfig,
        trainer: Trainer,
        records: Records,
        curriculum: Curriculum,
        sampler: GroupSampler | None = None,
        evaluate: Evaluate | None = None,
        publish: Publish | None = None,
    ) -> None:
        self.config = config
        self.trainer = trainer
        self.records = records
        self.curriculum = curriculum
        self.sampler = sampler
        self.evaluate = evaluate
        self.publish = publish
        self.ledger = Ledger()

    def begin(self, state: Mapping[str, Any] | None) -> None:
        self.ledger = Ledger(state["ledger"] if state else None)
        self.curriculum.restore(self.ledger.entries)

    def replay(self, step: int) -> StepRecord:
        return self._update(step, self._recorded(step), {})

    def repeat(self, step: int) -> StepRecord:
        sampler = self.sampler
        assert sampler is not None
        due = self.config.orchestrator.eval and step % self.config.orchestrator.eval.interval == 0
        metrics, samples = self.publish(step) if self.publish else {}, None
        if self.evaluate and (due or self.records.was_evaluated(step)):
            evaluated, samples = self.evaluate(step)
            metrics |= evaluated
        draws, examples = sampler.draw()
        if self.resamples:
            trajectories = sampler.sample(examples, draws, step)
        else:
            trajectories = self._retold(sampler, examples, draws, step)
        return replace(self._update(step, sampler.grade(examples, draws, trajectories), metrics), evals=samples)

    @property
    def resamples(self) -> bool:
        return self.publish is not None

    @property
    def evaluates(self) -> bool:
        return self.publish is not None

    def evaluation(self) -> StepRecord:
        assert self.evaluate is not None and self.publish is not None
        version = self.trainer.version
        metrics = self.publish(version)
        evaluated, samples = self.evaluate(version)
        return StepRecord(version, None, _finite(metrics | evaluated), self.trainer.fingerprint(), evals=samples)

    def _retold(
        self, sampler: GroupSampler, examples: Sequence[Example], draws: Sequence[int], step: int
    ) -> list[Trajectory]:
        """The completions of a step from their recorded token ids: prompts and texts are those of config and task."""
        recorded = [t for group in self._recorded(step) for t in group.trajectories]
        wanted = self.config.orchestrator.batch_size
        if len(recorded) != wanted:
            raise UserError(
                f"{self.records.run.path}/{rollouts_file(step)} has {len(recorded)} completions, where the config has "
                f"{wanted}: compare it with another copy of the run"
            )
        return sampler.retell(examples, draws, step, recorded)

    def _recorded(self, step: int) -> list[Group]:
        rows = self.records.rows(step)
        if rows is None:
            raise UserError(
                f"{self.records.run.path} has no {rollouts_file(step)}, without which the steps after it can't be "
                "reached: restore it from another copy of the run"
            )
        return groups_of(rows, self.config.orchestrator.advantage, self.trainer.model.config.vocab_size)

    def _update(self, step: int, groups: list[Group], metrics: dict[str, float]) -> StepRecord:
        before = self.trainer.fingerprint()
        orch = self.config.orchestrator
        micro_batch_tokens, device = self.config.trainer.micro_batch_tokens, self.trainer.model.device
        batch = pack_groups(groups, orch.truncated, micro_batch_tokens, device)
        metrics |= step_metrics(groups, step, orch.max_async_level) | self.trainer.step(batch)
        close_draws(self.ledger, self.curriculum, groups, step)
        metrics |= {"tokens/total": self.ledger.tokens} | self.curriculum.metrics()
        rows = [row for i, group in enumerate(groups) for row in group_rows(step, i, group, group_state(group))]
        return StepRecord(step, plain_rows(rows), _finite(metrics), before, self.trainer.fingerprint())


class SFTExecution:
    """An SFT run. Its steps are a function of the data, so replaying one is repeating it."""

    def __init__(
        self, config: SFTConfig, trainer: Trainer, records: Records, source: Source, validation: list[PackedBatch]
    ) -> None:
        self.config = config
        self.trainer = trainer
        self.records = records
        self.source = source
        self.validation = validation
        self.progress = Progress()

    def begin(self, state: Mapping[str, Any] | None) -> None:
        self.progress = Progress(**state["progress"]) if state else Progress()

    def replay(self, step: int) -> StepRecord:
        return self._update(step, {})

    def repeat(self, step: int) -> StepRecord:
        due = self.config.val is not None and step % self.config.val.interval == 0
        validated = due or self.records.was_evaluated(step)
        return self._update(step, self._validation() if validated else {})

    @property
    def resamples(self) -> bool:
        return True

    @property
    def evaluates(self) -> bool:
        return self.config.val is not None

    def evaluation(self) -> StepRecord:
        return StepRecord(self.trainer.version, None, _finite(self._validation()), self.trainer.fingerprint())

    def _validation(self) -> dict[str, float]:
        return {"val/loss": self.trainer.evaluate(self.validation)} if self.evaluates else {}

    def _update(self, step: int, metrics: dict[str, float]) -> StepRecord:
        before, progress, data = self.trainer.fingerprint(), self.progress, self.config.data
        sequences, progress.position = next_batch(self.source, step, progress.position, data)
        batch = split_micro_batches(sequences, data.micro_batch_tokens, self.trainer.model.device)
        metrics |= self.trainer.step(batch)
        progress.examples += len(sequences)
        progress.tokens += sum(len(sequence) for sequence in sequences)
        metrics |= {"epoch": progress.position / len(self.source)}
        metrics |= {"examples/total": progress.examples, "tokens/total": progress.tokens}
        return StepRecord(step, None, _finite(metrics), before, self.trainer.fingerprint())


def _finite(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """As in metrics.jsonl, where what is not finite is null."""
    plain = {name: value.item() if hasattr(value, "item") else value for name, value in metrics.items()}
    return {name: value if math.isfinite(value) else None for name, value in plain.items()}
