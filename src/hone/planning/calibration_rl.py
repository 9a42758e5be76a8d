"""The measured part of a plan for RL: steps as the run takes them, and one of completions as long as they may be.

Takes the place of the steps of an open run. First a few decode steps and a small micro-batch tell
what a step will take. If several fit into the time, the run takes some steps, evaluation and save included;
then comes the longest step. If not, the longest comes first, and as much of it as fits: whole groups, or the first
tokens of all of them, and some of the micro-batches, but at least two, so that gradients, moments and activations are
there together, as in the run.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from hone import rng
from hone.composition.rl import RL
from hone.config.rl import RLConfig
from hone.environments import MultiTurnEnv
from hone.evaluation.loop import BATCH
from hone.inference.types import SamplingParams
from hone.orchestrator.groups import GroupSampler
from hone.orchestrator.local_trainer import LocalTrainer
from hone.orchestrator.recorder import RunRecorder
from hone.orchestrator.types import Evaluate, Request
from hone.planning.calibration_stages import (
    LARGEST_SAVE,
    LEAST_STEPS,
    SAMPLED,
    WORST,
    StageDisplay,
    Stages,
    TrialSaver,
    enough_steps,
    saved_bytes,
    step_timings,
    write_rate,
)
from hone.runs.budget import process_seconds
from hone.runs.files import read_lines
from hone.trainer.packing import Sequence as Packed
from hone.trainer.packing import split_micro_batches
from hone.trainer.step import Trainer
from hone.types import Example, PackedBatch, Trajectory

_PROBE = (2, 10)
"""Tokens of the two short samplings whose difference is what a token takes."""
_QUICK_SAVE = 2**30
"""Bytes that are saved although no whole step was taken."""
_PROMPTS = 2000
"""Prompts of the data that are looked at for the longest."""


@dataclass
class RLTrial:
    """Measures; `result` is what came of it, as JSON. See `hone.planning.calibration_result.Calibration`."""

    stages: Stages
    eval_examples: int = 0
    """Held-out examples of an evaluation of the run; the config that is measured may have fewer."""
    result: dict[str, Any] = field(default_factory=dict)
    writes: bool = True
    """Whether what the run saves is written."""

    def measure(self, rl: RL) -> None:
        """Measures with an open run, in the place of `RL.train`."""
        config, steps, stages = rl.config, rl.steps, self.stages
        sampler, recorder, evaluate = steps.sampler, steps.recorder, steps.evaluate
        assert sampler is not None and isinstance(recorder, RunRecorder) and isinstance(steps.trainer, LocalTrainer)
        trainer = steps.trainer.trainer
        stages.leave()
        self.result = {"start": process_seconds(), "steps": [], "parameters": trainer.model.num_parameters}
        self._note_sizes(config, sampler, trainer, recorder)
        longest = Longest(config, sampler, trainer, stages)
        self.result["worst"] = longest.facts
        self.result["publish"] = stages.timed("publish", lambda: steps.publish(trainer.version))[1]
        estimate = longest.probe()
        full = estimate.sample + estimate.train
        evaluation = self._evaluation_seconds(config, estimate.sample, longest.completions)

        def sampled(until: float) -> None:
            """Steps as the run takes them."""
            measures = evaluation < 0.3 * stages.left
            steps.evaluate = _first(evaluate) if measures else _none
            self._take_steps(rl, recorder, until)
            self.result["evaluated"] = measures and config.orchestrator.eval is not None

        self.result["sampled_first"] = first = (LEAST_STEPS + 1.3) * full + evaluation < stages.left
        if first:
            sampled(stages.deadline - 1.3 * full)
        longest.measure(max(stages.left, 1.0) if first else 0.6 * stages.left)
        if not first and longest.facts["seconds"] < 0.8 * stages.left:
            sampled(stages.deadline)
        if not self.result["steps"] and self.result["saved_bytes"] <= _QUICK_SAVE and self.writes:
            self.result["saved"] = stages.timed("checkpoint", lambda: recorder.saver.save(trainer.version, last=True))[
                1
            ]
        self.result |= {"peaks": stages.peaks, "gpu_peaks": stages.gpu_peaks}
        stages.tell(ended=True)
        rl.ending = "done"

    def _note_sizes(self, config: RLConfig, sampler: GroupSampler, trainer: Trainer, recorder: RunRecorder) -> None:
        """What of an evaluation and of a save is measured, and what the run's own will be."""
        if evals := config.orchestrator.eval:
            rows, each = len(sampler.env.split("eval")), evals.rollouts_per_example
            counts = {"all": self.eval_examples, "measured": evals.num_examples}
            self.result["eval_completions"] = {name: min(count, rows) * each for name, count in counts.items()}
        folder = recorder.run.folder
        size = saved_bytes(trainer, checkpoint=config.ckpt is not None)
        self.writes = size <= LARGEST_SAVE and 2 * size < shutil.disk_usage(folder).free
        self.result |= {"saved_bytes": size} | ({} if self.writes else {"write_rate": write_rate(folder)})

    def _take_steps(self, rl: RL, recorder: RunRecorder, until: float) -> None:
        """Takes steps until enough is known, or it is time."""
        run = recorder.run
        run.display = StageDisplay(self.stages)
        before = recorder.saver
        recorder.saver = TrialSaver(before, enough_steps(run.folder, rl.config.max_steps, until), self.writes)
        try:
            rl.train()
            rl.steps.finish()
        finally:
            recorder.saver.close()
            recorder.saver = before
            self.stages.leave()
        self.result |= {"steps": step_timings(run.folder), "new_tokens": mean_of(run.folder, "completion/length/mean")}
        self.result["trained"] = mean_of(run.folder, "groups/trained")

    def _evaluation_seconds(self, config: RLConfig, sample: float, completions: int) -> float:
        """Of one batch of an evaluation, at the rate of sampling."""
        if config.orchestrator.eval is None:
            return 0.0
        return sample * min(self.result["eval_completions"]["measured"], BATCH) / completions


@dataclass
class Estimate:
    """Seconds that the longest step will take, as far as short probes can tell."""

    sample: float
    train: float


class Longest:
    """A step with the longest prompts of the data and completions as long as they may be.

    `facts` are told to the parent: sizes, seconds, and how much of the step was really done.
    """

    def __init__(self, config: RLConfig, sampler: GroupSampler, trainer: Trainer, stages: Stages) -> None:
        self.config, self.sampler, self.trainer, self.stages = config, sampler, trainer, stages
        self.examples = [sampler.rows[index] for index in longest_prompts(config, sampler)]
        self.requests = longest_requests(config, sampler, self.examples)
        self.rollouts = config.orchestrator.rollouts_per_example
        self.groups = len(self.requests) // self.rollouts
        self.completions = len(self.requests)
        self.used = self.groups
        self.new = max(request.max_tokens for request in self.requests)
        self.sampling = SamplingParams(temperature=config.orchestrator.sampling.temperature, ignore_eos=True)
        self._prefill = self._token = 0.0
        self._train_rate = 0.0
        self.facts: dict[str, Any] = {
            "completions": self.completions,
            "prompt_tokens": max(len(request.prompt_ids) for request in self.requests),
            "new_tokens": self.new,
            "seq_len": config.seq_len,
        }

    def probe(self) -> Estimate:
        """What the step will take: two short samplings, and a small micro-batch, twice (the first makes kernels)."""
        one = self.requests[: self.rollouts]
        for _ in range(2):
            seconds = self._sample(one, _PROBE[0])[1]
        self.used = max(1, min(self.groups, int(0.1 * self.stages.left / seconds)))
        used = self.requests[: self.used * self.rollouts]
        short, longer = (self._sample(used, tokens)[1] for tokens in _PROBE)
        tokens = max(1, min(self.new, _PROBE[1]) - min(self.new, _PROBE[0]))
        self._token = max(0.0, longer - short) / tokens
        self._prefill = short
        small = self._micro_batches(one[:1])[:1]
        for _ in range(2):
            seconds = self._train(small)
        self._train_rate = seconds / len(small[0])
        every = self._micro_batches(self.requests)
        scale = self.groups / self.used
        return Estimate(scale * (self._prefill + self._token * self.new), self._train_rate * sum(map(len, every)))

    def measure(self, seconds: float) -> None:
        """The step, or as much of it as takes about so many seconds."""
        stages = self.stages
        stages.part = WORST
        tokens = self.new
        if self._prefill + self._token * self.new > 0.5 * seconds and self._token:
            tokens = min(self.new, max(_PROBE[1], int((0.5 * seconds - self._prefill) / self._token)))
        used = self.requests[: self.used * self.rollouts]
        trajectories, sample = self._sample(used, tokens)
        decoded = (sample - self._prefill) / max(1, tokens)
        rest = max(0, self.new - tokens) * max(decoded, self._token)
        grade = self._grade(trajectories)
        every = self._micro_batches(self.requests)
        total = sum(map(len, every))
        within = max(0.4 * seconds, stages.left - 1)
        count = 0
        while count < len(every) and (count < 2 or sum(map(len, every[: count + 1])) * self._train_rate < within):
            count += 1
        done = sum(map(len, every[:count]))
        trained = self._train(every[:count], tokens=done, micro_batch=max(map(len, every)), sequence=self._longest)
        scale = self.groups / self.used
        self.facts |= {
            "sample": (sample + rest) * scale,
            "grade": grade * scale,
            "train": trained * total / done,
            "share": {"groups": self.used / self.groups, "tokens": tokens / self.new, "train": done / total},
            "micro_batches": len(every),
            "micro_batch": max(map(len, every)),
        }
        self.facts["seconds"] = sum(self.facts[name] for name in ("sample", "grade", "train"))
        stages.part = SAMPLED

    @property
    def _longest(self) -> int:
        return max(len(request.prompt_ids) + request.max_tokens for request in self.requests)

    def _sample(self, requests: Sequence[Request], tokens: int) -> tuple[list[Trajectory], float]:
        short = [replace(request, max_tokens=min(tokens, request.max_tokens)) for request in requests]
        sizes = {"completions": len(short), "prompt": max(len(r.prompt_ids) for r in short), "tokens": tokens}
        return self.stages.timed("sample", lambda: self.sampler.policy.sample(short, self.sampling), **sizes)

    def _grade(self, trajectories: list[Trajectory]) -> float:
        """Seconds of grading them; of a task of several turns nothing is said, for these were of one."""
        if isinstance(self.sampler.env, MultiTurnEnv):
            return 0.0
        groups = len(trajectories) // self.rollouts
        examples = self.examples[:groups]
        grade = self.sampler.grade
        return self.stages.timed(
            "grade", lambda: grade(examples, range(groups), trajectories), completions=len(trajectories)
        )[1]

    def _micro_batches(self, requests: Sequence[Request]) -> list[PackedBatch]:
        """Completions as long as they may be, of random tokens; advantages of 0, so that they change no weight."""
        stream = rng.stream(self.config.seed, "calibration")
        vocabulary = self.trainer.model.config.vocab_size
        sequences = []
        for index, request in enumerate(requests):
            ids = np.array([*request.prompt_ids, *stream.integers(vocabulary, size=request.max_tokens)], dtype=np.int64)
            mask = np.arange(len(ids)) >= len(request.prompt_ids)
            sequences.append(Packed(ids, mask, group=index // self.rollouts, sample=index % self.rollouts))
        limit = self.config.trainer.micro_batch_tokens
        return split_micro_batches(sequences, limit, self.trainer.model.device, share_prompts=True)

    def _train(self, micro_batches: list[PackedBatch], **sizes: int) -> float:
        version = self.trainer.version
        try:
            return self.stages.timed("train", lambda: self.trainer.step(micro_batches), **sizes)[1]
        finally:
            self.trainer.version = version


def longest_prompts(config: RLConfig, sampler: GroupSampler) -> list[int]:
    """Rows whose prompts are the longest of those that the run will use, one for each group; of many a part is looked
    at, of generated ones the first.
    """
    drawn = sampler.curriculum.first(config.max_steps * sampler.prompts)
    drawn = drawn[:64] if sampler.rows.generated else drawn[:: max(1, len(drawn) // _PROMPTS)]
    tools, renderer = sampler.env.tool_schemas, sampler.maker.renderer
    by_length = sorted(drawn, key=lambda index: -len(renderer.prompt_ids(sampler.rows[index].prompt, tools)))
    return [by_length[i % len(by_length)] for i in range(sampler.prompts)]


def longest_requests(config: RLConfig, sampler: GroupSampler, examples: Sequence[Example]) -> list[Request]:
    """A step's requests for these examples. A conversation is one completion that fills `seq_len`."""
    requests = sampler.maker.requests(examples, range(len(examples)), 0)
    if not isinstance(sampler.env, MultiTurnEnv):
        return requests
    return [replace(request, max_tokens=config.seq_len - len(request.prompt_ids)) for request in requests]


def mean_of(folder: Path, name: str) -> float | None:
    """Mean of a metric over the steps that were taken; None if there were none."""
    values = [line[name] for line in read_lines(folder / "metrics.jsonl") if "lr" in line]
    return float(np.mean(values)) if values else None


def _none(version: int, last: bool) -> dict[str, float]:
    """In the place of the evaluation."""
    return {}


def _first(evaluate: Evaluate) -> Evaluate:
    """The evaluation at the beginning only."""
    return lambda version, last: {} if last else evaluate(version, False) if version == 0 else {}


def one_batch(config: RLConfig) -> RLConfig:
    """The config with an evaluation of one batch, of which a longer one's time follows."""
    if (evals := config.orchestrator.eval) is None:
        return config
    few = evals.model_copy(
        update={"num_examples": min(evals.num_examples, max(1, BATCH // evals.rollouts_per_example))}
    )
    return config.model_copy(update={"orchestrator": config.orchestrator.model_copy(update={"eval": few})})
