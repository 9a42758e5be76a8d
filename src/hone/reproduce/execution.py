"""Taking the steps of a run again, one after the other, in this process."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import numpy as np

from hone.composition.own_functions import OwnFunctions
from hone.composition.parts import (
    eval_envs,
    make_evaluate,
    make_sft_trainer,
    make_trainer,
    model_digests,
    task_digests,
    task_of,
)
from hone.composition.rl import Steps
from hone.composition.sft import Progress, SFTSteps, load_data
from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.environments import Environment
from hone.errors import UserError, first_line
from hone.model.chat import ChatRenderer
from hone.model.decoder import Decoder
from hone.orchestrator.canary import Canary, band_from_config, canary_metrics
from hone.orchestrator.colocated import LocalTrainer, own_policy
from hone.orchestrator.curriculum import Curriculum
from hone.orchestrator.groups import GroupSampler, group_state, with_advantages
from hone.orchestrator.ledger import Ledger
from hone.orchestrator.mix import make_groups
from hone.orchestrator.teacher import with_teacher_logprobs
from hone.orchestrator.types import Evaluate, Publish
from hone.reproduce import machine
from hone.reproduce.compare import Difference, Row, StepRecord, first_difference
from hone.reproduce.recorded import resample_recorded
from hone.reproduce.records import (
    CANARY,
    EVALUATIONS,
    SENT_BACK,
    Records,
    example_of,
    messages_of,
    plain_rows,
    score_of,
)
from hone.runs import Run, provenance
from hone.runs.provenance import most_ranks
from hone.runs.rollouts import as_read, columns_of, group_rows
from hone.runs.view import rollouts_file
from hone.trainer.parallel import ALONE
from hone.trainer.ranked import RankedTrainer
from hone.trainer.step import Trainer
from hone.trainer.token_stats import TokenStats
from hone.trust import NotTrusted
from hone.types import Example, Group, Message, Outcome, Rollout, Segment, dense

OnStep = Callable[[int], None]
FAILED = [outcome for outcome in Outcome if outcome.is_failure]
TOLERANCE = {"fp32": 1e-5, "bf16_linear": 1e-3, "bf16": 1e-3}
"""Largest distance of the loss of several ranks from that of one process on the same batches, relative to its terms."""


class Memory:
    """Keeps what the last step recorded, in place of a run directory: a `RunRecorder` of RL, the `RunWriter` of SFT."""

    seconds_so_far = 1.0

    def __init__(self) -> None:
        self.saver: Any = SimpleNamespace(stopping=False, save=lambda step, last=False: None, ending=lambda *_: "done")
        self.saver.at_target = lambda *_: False
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


class Rebuilt:
    """A recorded run that can be executed again, from the checkpoints that are `intact` or from the initial model.

    `missing_model` says why the initial model could not be loaded, "" if it was. `sources` are digests of what the run
    reads, as in run.json. Versions before `first` are left out: their steps were taken with other settings. `limit` is
    how far values of training may be apart, relative to their size: 0, but for a run of several ranks.

    `begin` goes on from the loop's state in a checkpoint (None: from the beginning); the trainer is set already.
    `retrain` takes the update of a step from what the run recorded, without evaluations. `repeat` takes the whole step
    anew, with the evaluation before it if one was due or recorded. `evaluation` measures the current version, as at the
    end of a run that `evaluates`. Without `resamples` nothing can be sampled: `repeat` grades the recorded completions,
    and measures no version. Without `regrades` it is `retrain`: only a program could grade them, and is not run.
    """

    trainer: Trainer
    build: Callable[[Decoder, bool], None]
    begin: Callable[[Mapping[str, Any] | None], None]
    retrain: Callable[[int], StepRecord]
    repeat: Callable[[int], StepRecord]
    evaluation: Callable[[], StepRecord]

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
        """The version that was loaded last."""
        self.resamples = self.regrades = self.evaluates = True
        self.memory: Any = Memory()
        self.build(model, replay_only)
        self.begin(None)

    @property
    def machine(self) -> dict[str, Any]:
        """The facts about this process that run.json holds about the run's."""
        return machine.this_machine() | {"sources": {"code": provenance.code()} | self.sources}

    def nearest(self, version: int) -> int | None:
        """Return the newest that can be loaded and is not after `version`; None if there is none."""
        return max((loadable for loadable in self.loadable if loadable <= version), default=None)

    def name(self, version: int) -> str:
        """Say where a loadable version comes from."""
        return f"checkpoint step_{version}" if version in self.intact else "the initial model"

    def approach(self, version: int) -> None:
        """Load the nearest version, unless the current one is nearer still."""
        nearest = self.nearest(version)
        assert nearest is not None, f"no version up to {version} can be loaded"
        if self.loaded < 0 or not nearest < self.trainer.version <= version:
            self.load(nearest)

    def load(self, version: int) -> None:
        """Put the execution where the run was before step `version`: the initial model only if nothing was done yet."""
        trainer, state, saved = self.trainer, None, self.records.run.checkpoints
        if version in self.intact:
            tensors, state = saved.load(version)
            try:
                trainer.load_tensors(tensors, version)
            except (KeyError, RuntimeError, ValueError) as error:
                raise UserError(
                    f"{saved.path(version)} is not a checkpoint of this run ({type(error).__name__}: "
                    f"{first_line(error)}), though it fits its COMPLETE: restore it from another copy"
                ) from error
        assert trainer.version == version
        self.loaded = version
        self.begin(state)

    def replay(self, until: int, on_step: OnStep = lambda step: None) -> Difference | None:
        """Take the steps up to version `until` again from their recorded rollouts, and compare each with the record.

        Stops at the first step that differs and returns how.
        """
        while (step := self.trainer.version) < until:
            on_step(step)
            recorded = self.records.record(step, without=(*EVALUATIONS, *CANARY, *SENT_BACK))
            if difference := first_difference(recorded, self.retrain(step), self.limit):
                return difference
        return None


class RebuiltRL(Rebuilt):
    """An RL run. With `replay_only` it has no task, and can't repeat a step."""

    def build(self, model: Decoder, replay_only: bool) -> None:
        config, records = self.config, self.records
        if self.missing_model and config.trainer.loss.kl_coef > 0:
            raise UserError(
                f"the KL term of this run needs its initial model, but {self.missing_model}: say where it is by --model"
            )
        self.sources |= OwnFunctions.of(config).digests
        self.trainer = make_trainer(config, model, record_tokens=False)
        self.samplers: dict[str, GroupSampler] = {}
        self.evaluate: Evaluate | None = None
        self.publish: Publish | None = None
        info, envs, evals = records.run.info, dict[str, Environment](), dict[str, Environment]()
        if not replay_only:
            with needed_here("task"):
                envs = {name: task_of(one) for name, one in config.tasks().items()}
                evals = eval_envs(config, envs)
            self.regrades = not any(env.why_not_graded for env in envs.values())
            self.evaluates = not any(env.why_not_graded for env in evals.values())
        self.curricula = {}
        for name, one in config.tasks().items():
            left_out = info["left_outs"][name] if name else info.get("left_out", [])
            # Older runs, which don't say, have no curriculum.
            size = info["pools"][name] if name else info.get("pool", 1)
            with needed_here("task"):
                rows = size + len(left_out) if replay_only else len(envs[name].split("train"))
            self.curricula[name] = Curriculum.from_config(one, rows, left_out)
        if not replay_only:
            self._make_samplers(envs, evals)

    def _make_samplers(self, envs: Mapping[str, Environment], evals: Mapping[str, Environment]) -> None:
        config, renderer = self.config, self.renderer
        self.sources |= task_digests(config, envs, evals)
        self.resamples = self.regrades and why_not_resampled(config, self.records.run) is None
        if not self.regrades:
            return
        policy = own_policy(config, [*envs.values(), *evals.values()], self.trainer, renderer)
        self.samplers = {
            name: GroupSampler(one, envs[name], renderer, policy, self.curricula[name], name=name)
            for name, one in config.tasks().items()
        }
        if not self.resamples:
            return
        if self.evaluates:
            self.evaluate = make_evaluate(config, evals, renderer, policy, self.memory)
        own_canary = config.mode != "split"  # that of a server is another one
        first = next(iter(self.samplers.values()))
        canary = Canary.from_config(config, first, policy, self.trainer) if own_canary else None
        band = band_from_config(config, self.trainer.model.config.num_layers)

        def publish(version: int) -> dict[str, float]:
            policy.load(version)
            return canary_metrics(canary.measure(), band) if canary else {}

        self.publish = publish

    def begin(self, state: Mapping[str, Any] | None) -> None:
        ledger = Ledger(state["ledger"] if state else None)
        for name, curriculum in self.curricula.items():
            curriculum.restore(ledger.of(name))
        self.steps = Steps(
            self.config,
            self.samplers,
            self.curricula,
            LocalTrainer(self.trainer, self.config.trainer.micro_batch_tokens),
            ledger,
            self.memory,
            self.publish or (lambda version: {}),
            self._evaluate,
        )

    def retrain(self, step: int) -> StepRecord:
        return self._update(step, self._recorded(step))

    def repeat(self, step: int) -> StepRecord:
        self.memory.evals = None
        if not self.regrades:
            return self.retrain(step)
        groups = self.steps.sample() if self.resamples else self._graded_again(step)
        if self.config.teacher is not None:
            groups = self._with_recorded_teacher(step, groups)
        return replace(self._update(step, groups), evals=self.memory.evals)

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
        used = 0
        recorded = [rollout for group in self._recorded(step) for rollout in group.rollouts]

        def sample(sampler: GroupSampler, examples: list[Example], draws: list[int]) -> list[Rollout]:
            nonlocal used
            begin, used = used, used + len(draws) * self.config.orchestrator.rollouts_per_example
            if used > len(recorded):
                raise self._other_completions(step, len(recorded), used)
            return resample_recorded(sampler, examples, draws, step, recorded[begin:used])

        groups = make_groups(self.samplers, self.config, step, self.steps.ledger, rollout_fn=sample)
        if used < len(recorded):
            raise self._other_completions(step, len(recorded), used)
        return groups

    def _with_recorded_teacher(self, step: int, groups: list[Group]) -> list[Group]:
        """Return the groups with the run's teacher logprobs, for completions whose tokens are those recorded."""
        recorded = {one.sample_id: one.first for group in self._recorded(step) for one in group.rollouts}

        def logprobs(again: Rollout) -> np.ndarray | None:
            old = recorded.get(again.sample_id)
            if old is None or not np.array_equal(old.token_ids, again.first.token_ids):
                return None
            return dense(old.columns, "teacher_logprobs")

        rows = [logprobs(rollout) for group in groups for rollout in group.rollouts]
        return with_teacher_logprobs(groups, rows)

    def _other_completions(self, step: int, recorded: int, wanted: int) -> UserError:
        return UserError(
            f"{self.records.run.path}/{rollouts_file(step)} has {recorded} completions, where the config has {wanted}: "
            "compare it with another copy of the run"
        )

    def _recorded(self, step: int) -> list[Group]:
        rows = self.records.rows(step)
        if rows is None:
            raise UserError(
                f"{self.records.run.path} has no {rollouts_file(step)}, without which the steps after it can't be "
                "reached: restore it from another copy of the run"
            )
        return groups_from_rows(rows, self.config, self.trainer.model.config.vocab_size)

    def _update(self, step: int, groups: list[Group]) -> StepRecord:
        metrics = self.steps.update(groups)
        rows = [row for i, group in enumerate(groups) for row in group_rows(step, i, group, group_state(group))]
        after = self.trainer.fingerprint()
        return StepRecord(step, plain_rows(rows), _finite(metrics), self.memory.weights, after)


class RebuiltSFT(Rebuilt):
    """An SFT run. Its steps are a function of the data, so retraining one is repeating it."""

    def build(self, model: Decoder, replay_only: bool) -> None:
        config = self.config
        with needed_here("data"):
            data = load_data(config, self.renderer, model)
        self.source, self.validation, self.sources = data.source, data.validation, self.sources | data.digests
        self.trainer = make_sft_trainer(config, model)
        self.evaluates = config.val is not None

    def begin(self, state: Mapping[str, Any] | None) -> None:
        progress = Progress(**state["progress"]) if state else Progress()
        trainer = RankedTrainer(ALONE, lambda: self.trainer, self.config.data.micro_batch_tokens)
        trainer.start()
        self.steps = SFTSteps(
            self.config, self.source, self.validation, trainer, progress, self.memory, self.memory.saver
        )

    def retrain(self, step: int) -> StepRecord:
        return self._step(step, validate=False)

    def repeat(self, step: int) -> StepRecord:
        due = self.config.val is not None and step % self.config.val.interval == 0
        return self._step(step, validate=due or self.records.was_evaluated(step))

    def evaluation(self) -> StepRecord:
        return StepRecord(self.trainer.version, None, _finite(self.steps.validate()), self.trainer.fingerprint())

    def _step(self, step: int, validate: bool) -> StepRecord:
        metrics = self.steps.step(validate)
        return StepRecord(step, None, _finite(metrics), self.memory.weights, self.trainer.fingerprint())


def why_not_resampled(config: RLConfig | SFTConfig, run: Run) -> str | None:
    """Say why the completions of a run can't be sampled again; None if they can."""
    if not isinstance(config, RLConfig):
        return None
    if (sampled_by := machine.sampled_by(run.info) or config.sampled_by) is not None:
        return f"completions were sampled by {sampled_by}, which can't be asked again"
    if (ranks := most_ranks(run.info)) > 1:
        return f"the weights that sampled are those of {ranks} ranks, which one process meets up to rounding"
    return None


@contextmanager
def needed_here(what: str) -> Iterator[None]:
    """Say of a UserError that task or data have to be where the run had them."""
    try:
        yield
    except NotTrusted:
        raise
    except UserError as error:
        raise UserError(
            f"to execute steps again the {what} of the run is needed where the run had it: {error}"
        ) from None


def _finite(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Convert metrics to what metrics.jsonl has, where what is not finite is null."""
    plain = {name: value.item() if hasattr(value, "item") else value for name, value in metrics.items()}
    return {name: value if math.isfinite(value) else None for name, value in plain.items()}


def groups_from_rows(rows: Sequence[Row], config: RLConfig, vocab_size: int) -> list[Group]:
    """Rebuild the groups of a step from its recorded completions.

    Advantages are computed anew from the recorded rewards; everything else is as recorded. Raises UserError if no step
    can have written these rows.
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
        return [group for name, own in by_task for group in with_advantages(list(own), tasks[name])]
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
