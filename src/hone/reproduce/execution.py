"""Taking the steps of a run again, one after the other.

`begin` goes on from the loop's state in a checkpoint (None: from the beginning); the trainer is set already. `replay`
takes the update of a step from what the run recorded, without evaluations. `repeat` takes the whole step anew, with the
evaluation before it if one was due or recorded. `evaluation` measures the current version, as at the end of a run.
Without `resamples` nothing can be sampled: `repeat` grades the recorded completions, and measures no version.
`evaluates`: the run measured versions, and so ended with measuring the last one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import numpy as np

from hone.algorithms.advantages import group_advantages
from hone.composition.rl import Steps
from hone.composition.sft import Progress, SFTSteps
from hone.config.rl import AdvantageConfig, RLConfig
from hone.config.sft import SFTConfig
from hone.errors import UserError
from hone.orchestrator.colocated import LocalTrainer
from hone.orchestrator.curriculum import Curriculum
from hone.orchestrator.groups import GroupSampler, group_state, rewards, valid
from hone.orchestrator.ledger import Ledger
from hone.orchestrator.types import Evaluate, Publish
from hone.reproduce.compare import Row, StepRecord
from hone.reproduce.recorded import retell
from hone.reproduce.records import Records, plain_rows
from hone.runs.rollouts import as_read, group_rows, rollouts_file
from hone.trainer.packing import Sequence as Packed
from hone.trainer.parallel import ALONE
from hone.trainer.ranked import RankedTrainer
from hone.trainer.sft_data import Source
from hone.trainer.step import Trainer
from hone.trainer.token_stats import TokenStats
from hone.types import Example, Group, Outcome, Score, Trajectory


class Memory:
    """Keeps what the last step recorded, in place of a run directory: a `RunRecorder` of RL, the `RunWriter` of SFT."""

    seconds_so_far = 1.0

    def __init__(self) -> None:
        self.saver: Any = SimpleNamespace(stopping=False, save=lambda step, last=False: None, ending=lambda *_: "done")
        self.saver.stop = SimpleNamespace(abandonable=nullcontext)
        self.evals: list[Row] | None = None

    def phase(self, name: str) -> AbstractContextManager[None]:
        return nullcontext()

    def record(
        self,
        step: int,
        metrics: dict[str, float],
        groups: list[Group],
        weights: str,
        timings: Mapping[str, float] | None = None,
        token_stats: TokenStats | None = None,
    ) -> None:
        self.groups = groups
        self.log_step(step, metrics, weights=weights)

    def log_step(self, step: int, metrics: dict[str, Any], timings: Any = None, weights: str | None = None) -> None:
        self.metrics, self.weights = metrics, weights or ""

    def evaluated(self, step: int, samples: Sequence[Any], rows: list[dict[str, Any]]) -> None:
        self.evals = as_read(rows)


class RLExecution:
    """An RL run. Without a `sampler` it can replay, not repeat; without `evaluate` and `publish` not sample anew.

    `memory` is where `evaluate` leaves its samples.
    """

    def __init__(
        self,
        config: RLConfig,
        trainer: Trainer,
        records: Records,
        curriculum: Curriculum,
        sampler: GroupSampler | None = None,
        evaluate: Evaluate | None = None,
        publish: Publish | None = None,
        memory: Memory | None = None,
    ) -> None:
        self.config, self.trainer, self.records, self.curriculum = config, trainer, records, curriculum
        self.sampler, self.evaluate, self.publish = sampler, evaluate, publish
        self.memory: Any = memory or Memory()
        self.begin(None)

    def begin(self, state: Mapping[str, Any] | None) -> None:
        ledger = Ledger(state["ledger"] if state else None)
        self.curriculum.restore(ledger.entries)
        self.steps = Steps(
            self.config,
            self.sampler,
            self.curriculum,
            LocalTrainer(self.trainer, self.config.trainer.micro_batch_tokens),
            ledger,
            self.memory,
            self.publish or (lambda version: {}),
            self._evaluate,
        )

    def replay(self, step: int) -> StepRecord:
        return self._update(step, self._recorded(step))

    def repeat(self, step: int) -> StepRecord:
        self.memory.evals = None
        groups = self.steps.sample() if self.resamples else self._graded_again(step)
        return replace(self._update(step, groups), evals=self.memory.evals)

    @property
    def resamples(self) -> bool:
        return self.publish is not None

    @property
    def evaluates(self) -> bool:
        return self.publish is not None

    def evaluation(self) -> StepRecord:
        assert self.evaluate is not None and self.publish is not None
        self.memory.evals = None
        version = self.trainer.version
        metrics = self.publish(version) | self.evaluate(version, True)
        return StepRecord(version, None, _finite(metrics), self.trainer.fingerprint(), evals=self.memory.evals)

    def _evaluate(self, version: int, last: bool) -> dict[str, float]:
        """Evaluate also where the run did so although it was not due: it had ended there before."""
        return self.evaluate(version, last or self.records.was_evaluated(version)) if self.evaluate else {}

    def _graded_again(self, step: int) -> list[Group]:
        """Grade the recorded token ids of a step again: prompts and texts are those of config and task."""
        assert self.sampler is not None
        draws, examples = self.sampler.draw()
        recorded = [t for group in self._recorded(step) for t in group.trajectories]
        wanted = self.config.orchestrator.batch_size
        if len(recorded) != wanted:
            raise UserError(
                f"{self.records.run.path}/{rollouts_file(step)} has {len(recorded)} completions, where the config has "
                f"{wanted}: compare it with another copy of the run"
            )
        return self.sampler.grade(examples, draws, retell(self.sampler, examples, draws, step, recorded))

    def _recorded(self, step: int) -> list[Group]:
        rows = self.records.rows(step)
        if rows is None:
            raise UserError(
                f"{self.records.run.path} has no {rollouts_file(step)}, without which the steps after it can't be "
                "reached: restore it from another copy of the run"
            )
        return groups_from_rows(rows, self.config.orchestrator.advantage, self.trainer.model.config.vocab_size)

    def _update(self, step: int, groups: list[Group]) -> StepRecord:
        metrics = self.steps.update(groups)
        rows = [row for i, group in enumerate(groups) for row in group_rows(step, i, group, group_state(group))]
        after = self.trainer.fingerprint()
        return StepRecord(step, plain_rows(rows), _finite(metrics), self.memory.weights, after)


class SFTExecution:
    """An SFT run. Its steps are a function of the data, so replaying one is repeating it."""

    resamples = True

    def __init__(
        self, config: SFTConfig, trainer: Trainer, records: Records, source: Source, validation: list[Packed]
    ) -> None:
        self.config, self.trainer, self.records = config, trainer, records
        self.source, self.validation = source, validation
        self.begin(None)

    def begin(self, state: Mapping[str, Any] | None) -> None:
        progress = Progress(**state["progress"]) if state else Progress()
        trainer = RankedTrainer(ALONE, lambda: self.trainer, self.config.data.micro_batch_tokens)
        trainer.start()
        self.memory: Any = Memory()
        self.steps = SFTSteps(
            self.config, self.source, self.validation, trainer, progress, self.memory, self.memory.saver
        )

    def replay(self, step: int) -> StepRecord:
        return self._step(step, validate=False)

    def repeat(self, step: int) -> StepRecord:
        due = self.config.val is not None and step % self.config.val.interval == 0
        return self._step(step, validate=due or self.records.was_evaluated(step))

    @property
    def evaluates(self) -> bool:
        return self.config.val is not None

    def evaluation(self) -> StepRecord:
        return StepRecord(self.trainer.version, None, _finite(self.steps.validate()), self.trainer.fingerprint())

    def _step(self, step: int, validate: bool) -> StepRecord:
        metrics = self.steps.step(validate)
        return StepRecord(step, None, _finite(metrics), self.memory.weights, self.trainer.fingerprint())


Execution = RLExecution | SFTExecution


def _finite(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Convert metrics to what metrics.jsonl has, where what is not finite is null."""
    plain = {name: value.item() if hasattr(value, "item") else value for name, value in metrics.items()}
    return {name: value if math.isfinite(value) else None for name, value in plain.items()}


def groups_from_rows(rows: Sequence[Row], advantage: AdvantageConfig, vocab_size: int) -> list[Group]:
    """Rebuild the groups of a step from its recorded completions.

    Advantages are computed anew from the recorded rewards; everything else is as recorded. Raises UserError if no step
    can have written these rows.
    """
    try:
        ids = np.concatenate([row["token_ids"] for row in rows])
        if ids.min() < 0 or ids.max() >= vocab_size:
            raise ValueError("a token id is not in the vocabulary")
        if not all(np.any(row["sampled_mask"]) for row in rows):
            raise ValueError("a sample has no token that was sampled")
        return [_group(list(members), advantage) for _, members in groupby(rows, key=lambda row: row["draw"])]
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        which = f"step {rows[0]['step']}" if rows else "a step"
        raise UserError(
            f"the rollouts of {which} do not have hone's form ({type(error).__name__}: {error}), so they can't be "
            "trained on: compare them with another copy of the run"
        ) from error


def _group(rows: list[Row], advantage: AdvantageConfig) -> Group:
    first = rows[0]
    example = Example(json.loads(first["prompt"]), first["answer"], json.loads(first["info"]), first["example_id"])
    scores = [
        Score(
            float("nan") if row["reward"] is None else row["reward"],
            dict(row["components"]),
            dict(row["weights"]),
            Outcome(row["outcome"]),
            row["detail"] or "",
        )
        for row in rows
    ]
    advantages = group_advantages(rewards(scores), valid(scores), **advantage.model_dump())
    return Group(example, first["draw"], [_trajectory(row) for row in rows], scores, advantages)


def _trajectory(row: Row) -> Trajectory:
    several_turns = row.get("completion") is not None
    turns = json.loads(row["completion"]) if several_turns else [{"role": "assistant", "content": row["text"]}]
    return Trajectory(
        token_ids=np.array(row["token_ids"], dtype=np.int64),
        sampled_mask=np.array(row["sampled_mask"], dtype=np.bool_),
        logprobs=np.array(row["logprobs"], dtype=np.float32),
        versions=np.array(row["versions"], dtype=np.int32),
        messages=[*json.loads(row["prompt"]), *turns],
        stop_reason=row["stop_reason"],
        sample_id=row["sample_id"],
        state={} if several_turns else None,  # what the environment kept is not recorded, and no step needs it again
    )
