"""Repeats the steps of a run, one after the other, in this process."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np

from hone.algorithms.gap import Band, Gap
from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.environments import Environment
from hone.errors import UserError, first_line
from hone.extension import token_columns
from hone.extensions.reproduce import machine
from hone.extensions.reproduce.compare import Difference, Row, StepRecord, first_difference
from hone.extensions.reproduce.recorded import RecordedPolicy
from hone.extensions.reproduce.records import (
    CANARY,
    EVALUATIONS,
    SENT_BACK,
    Records,
    example_of,
    messages_of,
    plain_rows,
    score_of,
)
from hone.loops.canary import Canary, band_from_config, canary_metrics, first_examples
from hone.loops.colocated import LocalTrainer, new_policy
from hone.loops.curriculum import Curriculum
from hone.loops.groups import group_state, with_advantages
from hone.loops.own_functions import UserFunctions
from hone.loops.parts import eval_envs, make_sft_trainer, make_trainer, model_digests, task_digests, task_of
from hone.loops.sft import Progress, SFTSteps, load_data
from hone.loops.steps import Tasks, build
from hone.loops.updates import Update
from hone.model.chat import ChatRenderer
from hone.model.decoder import Decoder
from hone.runs import Run, provenance
from hone.runs.provenance import most_ranks
from hone.runs.rollouts import as_read, columns_of, group_rows
from hone.runs.signals import StopRequest
from hone.runs.view import rollouts_file
from hone.trainer.parallel import ALONE
from hone.trainer.ranked import RankedTrainer
from hone.trainer.step import Trainer
from hone.trust import NotTrusted
from hone.types import Group, Message, Outcome, Rollout, Segment, dense, with_column

OnStep = Callable[[int], None]
FAILED = [outcome for outcome in Outcome if outcome.is_failure]
TOLERANCE = {"fp32": 1e-5, "bf16_linear": 1e-3, "bf16": 1e-3}
"""Largest relative difference of the loss between several ranks and one process on the same batches."""


class Memory:
    """Replaces a loop's recorder, log and saver, and holds only the last step."""

    seconds_so_far, stopping = 1.0, False

    def __init__(self, band: Band | None = None) -> None:
        self.saver, self.stop, self.band = self, StopRequest(lambda text: None), band
        self.evals: list[Row] | None = None

    def phase(self, name: str) -> AbstractContextManager[None]:
        return nullcontext()

    def save(self, step: int) -> None: ...

    def at_target(self, version: int = 0, metrics: Mapping[str, float] | None = None) -> bool:
        return False

    def published(self, version: int, gap: Gap | None) -> dict[str, float]:
        return canary_metrics(gap, self.band) if gap and self.band else {}

    def evaluated(self, step: int, samples: Sequence[Any], rows: list[dict[str, Any]]) -> None:
        self.evals = as_read(rows)

    def record(self, step: int, metrics: dict[str, float], groups: list[Group], update: Update) -> None:
        self.weights = update.weights

    def log_step(self, step: int, metrics: dict[str, Any], timings: Any = None, weights: str = "") -> None:
        self.weights = weights


class Rebuilt:
    """A recorded run that can be executed again, from the checkpoints that are `intact` or from the initial model.

    `missing_model` says why the initial model could not be loaded, else "". `sources` are digests as in run.json.
    Versions before `first` are left out, because they had other settings. `limit` is the largest relative difference
    of training values that counts as equal. It is 0, except for a run of several ranks.

    `begin` sets the loop to the state in a checkpoint, or to the start for None; load the trainer first. `retrain`
    repeats the update of a step from recorded rollouts, without evaluations. `repeat` executes the whole step again,
    and before it the evaluation, if one was due or recorded. `evaluation` evaluates the current version, as at the end
    of a run. If `resamples` is false, `repeat` takes recorded completions and evaluates nothing; if `regrades` is
    false, `repeat` does the same as `retrain`.
    """

    trainer: Trainer
    steps: Any
    build: Callable[[Decoder, bool], None]
    begin: Callable[[Mapping[str, Any] | None], None]
    retrain: Callable[[int], StepRecord]
    repeat: Callable[[int], StepRecord]

    def __init__(
        self,
        config: Any,
        model: Decoder,
        renderer: ChatRenderer,
        records: Records,
        intact: Sequence[int],
        missing_model: str,
        replay_only: bool,
    ) -> None:
        self.config, self.renderer, self.records, self.missing_model = config, renderer, records, missing_model
        self.sources = model_digests(model, renderer)
        # a resume with --allow-drift changed config.toml for the steps from there on
        self.first = max((entry["step"] for entry in records.run.info.get("drift", [])), default=0)
        self.limit = TOLERANCE[config.precision] if most_ranks(records.run.info) > 1 else 0.0
        self.intact = [version for version in intact if version >= self.first]
        self.loadable = self.intact if missing_model or self.first else sorted({0, *self.intact})
        self.loaded = -1
        self.resamples = self.regrades = self.evaluates = True
        self.memory: Any = Memory()
        self.build(model, replay_only)
        self.begin(None)

    @property
    def machine(self) -> dict[str, Any]:
        return machine.this_machine() | {"sources": {"code": provenance.code()} | self.sources}

    def nearest(self, version: int) -> int | None:
        """Return the newest loadable version up to `version`; None if there is none."""
        return max((loadable for loadable in self.loadable if loadable <= version), default=None)

    def name(self, version: int) -> str:
        return f"checkpoint step_{version}" if version in self.intact else "the initial model"

    def approach(self, version: int) -> None:
        """Load the newest loadable version up to `version`, unless the current one is nearer."""
        nearest = self.nearest(version)
        assert nearest is not None, f"no version up to {version} can be loaded"
        if self.loaded < 0 or not nearest < self.trainer.version <= version:
            self.load(nearest)

    def load(self, version: int) -> None:
        """Load checkpoint `version` with its loop state, or keep the initial model if no step was taken yet."""
        trainer, state, saved = self.trainer, None, self.records.run.checkpoints
        if version in self.intact:
            tensors, state = saved.load(version)
            try:
                trainer.load_tensors(tensors, version)
            except (KeyError, RuntimeError, ValueError) as error:
                raise UserError(
                    f"{saved.path(version)} is not a checkpoint of this run ({type(error).__name__}: "
                    f"{first_line(error)}), though its hashes are right: restore it from another copy"
                ) from error
        assert trainer.version == version
        self.loaded = version
        self.begin(state)

    def evaluation(self) -> StepRecord:
        self.memory.evals = None
        version = self.trainer.version
        metrics = self.steps.measure(version, last=True)
        return StepRecord(version, None, _finite(metrics), self.trainer.fingerprint(), evals=self.memory.evals)

    def replay(self, until: int, on_step: OnStep = lambda step: None) -> Difference | None:
        """Retrain up to version `until` from recorded rollouts; return the first difference from the record."""
        while (step := self.trainer.version) < until:
            on_step(step)
            recorded = self.records.record(step, without=(*EVALUATIONS, *CANARY, *SENT_BACK))
            if difference := first_difference(recorded, self.retrain(step), self.limit):
                return difference
        return None


class RebuiltRL(Rebuilt):
    """An RL run. If `replay_only` is true, the run's task is not loaded, and `repeat` can't be called."""

    def build(self, model: Decoder, replay_only: bool) -> None:
        config, info = self.config, self.records.run.info
        if self.missing_model and config.trainer.loss.kl_coef > 0:
            raise UserError(
                f"the KL term of this run needs its initial model, but {self.missing_model}: name it with --model"
            )
        self.sources |= UserFunctions.of(config).digests
        self.trainer = make_trainer(config, model, record_tokens=False)
        envs, evals, curricula = dict[str, Environment](), dict[str, Environment](), dict[str, Curriculum]()
        if not replay_only:
            with needed_here("task"):
                envs = {name: task_of(one) for name, one in config.tasks().items()}
                evals = eval_envs(config, envs)
        for name, one in config.tasks().items():
            left_out = info["left_outs"][name] if name else info.get("left_out", [])
            # Older runs, which don't say, have no curriculum.
            size = info["pools"][name] if name else info.get("pool", 1)
            with needed_here("task"):
                rows = size + len(left_out) if replay_only else len(envs[name].split("train"))
            curricula[name] = Curriculum.from_config(one, rows, left_out)
        self.policy, canary = None, None
        if not replay_only:
            self.sources |= task_digests(config, envs, evals)
            self.regrades = not any(env.why_not_graded for env in envs.values())
            self.evaluates = not any(env.why_not_graded for env in evals.values())
            self.resamples = self.regrades and why_not_resampled(config, self.records.run) is None
        if self.resamples and not replay_only:
            self.policy = new_policy(config, [*envs.values(), *evals.values()], self.trainer, self.renderer)
            if config.mode != "split":  # there it is a server's
                first = first_examples(config, next(iter(envs.values())), next(iter(curricula.values())))
                canary = Canary.from_config(config, first, self.renderer, self.policy, self.trainer)
        elif self.regrades and not replay_only:
            self.policy = RecordedPolicy({}, self.renderer, lag=config.orchestrator.lag)
        self.memory.band = band_from_config(config, model.config.num_layers)
        self.tasks = Tasks(envs, evals if self.resamples and self.evaluates else {}, curricula, self.renderer)
        self.updates = LocalTrainer(self.trainer, config.trainer.micro_batch_tokens, self.policy, canary)

    def begin(self, state: Mapping[str, Any] | None) -> None:
        found = token_columns(self.config).items()
        columns = [(column.section, partial(self._with_recorded, name)) for name, column in found]
        self.steps = build(self.config, self.tasks, self.policy, self.updates, self.memory, state, columns)

    def retrain(self, step: int) -> StepRecord:
        return self._update(step, self._recorded(step))

    def repeat(self, step: int) -> StepRecord:
        self.memory.evals, recorded = None, dict[str, Rollout]()
        if not self.regrades:
            return self.retrain(step)
        if isinstance(self.policy, RecordedPolicy):
            recorded = self._recorded_rollouts(step)
            self.policy.recorded, self.policy.version = recorded, step
        # Measured although not due if the run ended here before.
        self.steps.begin(last=self.records.was_evaluated(step))
        groups = self.steps.sample()
        if more := recorded.keys() - {one.sample_id for group in groups for one in group.rollouts}:
            raise UserError(
                f"{self.records.run.path}/{rollouts_file(step)} has {min(more)}, a completion that the config does not "
                "draw: compare it with another copy of the run"
            )
        return replace(self._update(step, groups), evals=self.memory.evals)

    def _with_recorded(self, name: str, groups: Sequence[Group]) -> list[Group]:
        """Add a recorded column to the groups, for completions with the same tokens as recorded."""
        recorded = self._recorded_rollouts(self.trainer.version)

        def column(again: Rollout) -> np.ndarray | None:
            old = recorded.get(again.sample_id)
            if old is None or not np.array_equal(old.token_ids, again.token_ids):
                return None
            return dense(old.first.columns, name)

        rows = [column(rollout) for group in groups for rollout in group.rollouts]
        return with_column(groups, name, rows)

    def _recorded_rollouts(self, step: int) -> dict[str, Rollout]:
        return {one.sample_id: one for group in self._recorded(step) for one in group.rollouts}

    def _recorded(self, step: int) -> list[Group]:
        rows = self.records.rows(step)
        if rows is None:
            raise UserError(
                f"{self.records.run.path} has no {rollouts_file(step)}, which is needed to reach later steps: "
                "restore it from another copy of the run"
            )
        return groups_from_rows(rows, self.config, self.trainer.model.config.vocab_size)

    def _update(self, step: int, groups: list[Group]) -> StepRecord:
        metrics = self.steps.update(groups)
        rows = [row for i, group in enumerate(groups) for row in group_rows(step, i, group, group_state(group))]
        after = self.trainer.fingerprint()
        return StepRecord(step, plain_rows(rows), _finite(metrics), self.memory.weights, after)


class RebuiltSFT(Rebuilt):
    def build(self, model: Decoder, replay_only: bool) -> None:
        with needed_here("data"):
            self.data = load_data(self.config, self.renderer, model)
        self.sources |= self.data.digests
        self.trainer, self.evaluates = make_sft_trainer(self.config, model), self.config.val is not None

    def begin(self, state: Mapping[str, Any] | None) -> None:
        progress = Progress(**state["progress"]) if state else Progress()
        trainer = RankedTrainer(ALONE, lambda: self.trainer, self.config.data.micro_batch_tokens)
        trainer.start()
        data, memory = self.data, self.memory
        self.steps = SFTSteps(self.config, data.source, data.validation, trainer, progress, memory, memory)

    def retrain(self, step: int) -> StepRecord:
        metrics = self.steps.update()
        return StepRecord(step, None, _finite(metrics), self.memory.weights, self.trainer.fingerprint())

    def repeat(self, step: int) -> StepRecord:
        self.steps.begin(last=self.records.was_evaluated(step))
        return self.retrain(step)


def why_not_resampled(config: RLConfig | SFTConfig, run: Run) -> str | None:
    """Say why the completions of a run can't be sampled again; None if they can."""
    if not isinstance(config, RLConfig):
        return None
    if (sampled_by := machine.sampled_by(run.info) or config.sampled_by) is not None:
        return f"completions were sampled by {sampled_by}, which can't be asked again"
    if (ranks := most_ranks(run.info)) > 1:
        return f"the weights that sampled were trained on {ranks} ranks: one process gets them only up to rounding"
    return None


@contextmanager
def needed_here(what: str) -> Iterator[None]:
    """Add to a UserError in the block that the task or data must be at its recorded place."""
    try:
        yield
    except NotTrusted:
        raise
    except UserError as error:
        raise UserError(f"executing steps again needs the run's {what} at its recorded place: {error}") from None


def _finite(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Convert metrics to what metrics.jsonl holds; a number that is not finite becomes None."""
    plain = {name: value.item() if hasattr(value, "item") else value for name, value in metrics.items()}
    return {name: value if math.isfinite(value) else None for name, value in plain.items()}


def groups_from_rows(rows: Sequence[Row], config: RLConfig, vocab_size: int) -> list[Group]:
    """Rebuild the groups of a step from its recorded completions. Only advantages are computed anew.

    Raises UserError if no step can have written these rows.
    """
    try:
        ids = np.concatenate([row["token_ids"] for row in rows])
        ids = np.concatenate([ids, *(row["kept_ids"] for row in rows if row.get("kept_ids"))])
        if ids.min() < 0 or ids.max() >= vocab_size:
            raise ValueError("a token id is not in the vocabulary")
        if not all(np.any(row["sampled_mask"]) or row["outcome"] in FAILED for row in rows):
            raise ValueError("a sample has no token that was sampled")
        members = {draw: list(mine) for draw, mine in groupby(rows, key=lambda row: row["draw"])}
        scores = [[score_of(row) for row in mine] for mine in members.values()]
        rollouts = [[_rollout(row) for row in mine] for mine in members.values()]
        columns = zip(members.items(), rollouts, scores, strict=True)
        groups = [
            replace(
                Group(example_of(mine[0]), draw, made, graded, np.zeros(len(mine), np.float32)),
                left_out="surplus" if any(row["state"] == "surplus" for row in mine) else None,
                env=mine[0].get("env") or "",
                masks_truncated=config.orchestrator.truncated == "mask",
            )
            for (draw, mine), made, graded in columns
        ]
        tasks = config.tasks()
        by_task = groupby(groups, key=lambda group: group.env)
        return [group for name, members in by_task for group in with_advantages(list(members), tasks[name])]
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        which = f"step {rows[0]['step']}" if rows else "a step"
        raise UserError(
            f"the rollouts of {which} do not have hone's form ({type(error).__name__}: {error}), so they can't be "
            "trained on: compare them with another copy of the run"
        ) from error


def _rollout(row: Row) -> Rollout:
    state = None if row.get("completion") is None else {}  # the environment's state is not recorded, nor needed again
    messages = messages_of(row)
    further = [_segment(branch, branch["messages"]) for branch in json.loads(row.get("branches") or "[]")]
    segments = (_segment(row, messages), *further)
    branches = row.get("branches") is not None
    return Rollout(row["sample_id"], messages, row["stop_reason"], segments, state, branches=branches)


def _segment(row: Mapping[str, Any], messages: list[Message]) -> Segment:
    calls = row.get("call_rewards")
    return Segment(
        token_ids=np.array(row["token_ids"], dtype=np.int64),
        sampled_mask=np.array(row["sampled_mask"], dtype=np.bool_),
        logprobs=np.array(row["logprobs"], dtype=np.float32),
        versions=np.array(row["versions"], dtype=np.int32),
        messages=messages,
        stop_reason=row["stop_reason"],
        columns=columns_of(row),
        turn_rewards=None if calls is None else np.array(calls, dtype=np.float64),
    )
