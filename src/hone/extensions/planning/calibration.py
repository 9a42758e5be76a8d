"""Calibrates a plan: takes two real steps of the run, and scales the plan to the measured time and memory.

The steps run in this process, in a temporary folder beside the output directory. The first step compiles kernels, so
only the second step is timed. Seconds and bytes for other lengths are scaled as in the plan.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from hone.config.base import changed
from hone.config.rl import RLConfig
from hone.errors import UserError, first_line
from hone.extensions.planning.arithmetic import Lengths
from hone.extensions.planning.report import Plan
from hone.extensions.planning.time import Times, times
from hone.hardware import memory_fields
from hone.loops.memory import Memory, memory
from hone.runs.budget import process_seconds
from hone.runs.files import TMP_PREFIX
from hone.runs.signals import is_out_of_memory
from hone.runs.view import RunView

STEPS = 2


class DoesNotFit(Exception):
    """Memory ran out; the message names settings to lower."""


def calibrate(plan: Plan) -> Plan:
    """Return the plan with the measured times and peak memory. If no step trained, training takes what was planned.

    Raises UserError if the run itself would raise it, or if the run is not one process with hone's engine; DoesNotFit
    if memory runs out.
    """
    config, shape = plan.config, plan.shape
    rl = isinstance(config, RLConfig)
    if shape is None or plan.memory is None or plan.worst is None:
        raise UserError("--calibrate needs the model's shape: name a model folder or hub id")
    if rl and (config.mode == "split" or config.sampled_by is not None):
        raise UserError(
            f"--calibrate measures a run of one process with hone's engine, but this run samples from "
            f"{config.sampled_by or 'another process'}: add --mode colocated, or leave out --calibrate"
        )
    place = next(path for path in config.output_dir.absolute().parents if path.is_dir())
    with tempfile.TemporaryDirectory(prefix=f"{TMP_PREFIX}plan-", dir=place, ignore_cleanup_errors=True) as folder:
        run = Path(folder) / "run"
        try:
            start, lengths = _take_steps(config, run)
        except Exception as error:
            cause: BaseException | None = error
            while cause is not None and not is_out_of_memory(cause):
                cause = cause.__cause__ or cause.__context__
            if cause is None:
                raise
            lower = "--trainer.micro-batch-tokens, --inference.kv-gib" if rl else "--data.micro-batch-tokens"
            raise DoesNotFit(
                f"out of memory ({first_line(cause)}): lower {lower}, set --precision bf16, or take a smaller model"
            ) from None
        lines = [line for line in RunView(run).timing_lines() if "time/train" in line]
        metrics = RunView(run).metric_lines()
    trained = [line for line in lines if metrics[line["step"]].get("groups/trained", 1)]
    taken = {name: lines[-1].get(f"time/{name}", 0.0) for name in ("sample", "grade", "train", "step")}
    other = max(0.0, taken["step"] - taken["sample"] - taken["grade"] - taken["train"])
    start += max(0.0, lines[0]["time/step"] - taken["step"])
    planned = times(plan.evaluated, shape, plan.device, lengths, plan.worst.usd_per_hour, plan.facts.pool)
    train = trained[-1]["time/train"] / planned.train if trained else 1.0
    sample = taken["sample"] / planned.sample if planned.sample else 1.0

    def scaled(estimate: Times) -> Times:
        seconds = {"sample": estimate.sample * sample, "train": estimate.train * train, "grade": taken["grade"]}
        return replace(
            estimate, **seconds, evaluate=estimate.evaluate * (sample if rl else train), other=other, start=start
        )

    measured = memory(plan.evaluated, shape, plan.device.kind, *lengths.for_memory(config))
    grown = max(0, plan.memory.total - measured.total)
    worst = max(_peak_bytes() + grown, 0 if trained else plan.memory.total)
    return replace(
        plan,
        lengths=replace(lengths, longest_completion=plan.lengths.longest_completion),
        memory=Memory({"process": worst}),
        usual=scaled(planned),
        worst=scaled(plan.worst),
        notes=[] if trained else ["no step trained, as all rewards of each prompt were equal: training is as planned"],
    )


def _take_steps(config: Any, folder: Path) -> tuple[float, Lengths]:
    """Take `STEPS` steps without observers; return the seconds before the first step, and sequence lengths."""
    from hone.loops.rl import RL
    from hone.loops.sft import SFT

    off: dict[str, Any] = dict.fromkeys(("resume", "stop", "budget", "wandb", "trackio", "ckpt"))
    off |= {"display": "none", "report": False, "detach": False}
    off |= {"output_dir": folder, "max_steps": min(STEPS, config.max_steps)}
    rl = isinstance(config, RLConfig)
    off |= {"orchestrator.eval" if rl else "val": None}
    segments, metrics = [], {}
    with (RL if rl else SFT)(changed(config, off)) as run:
        start = process_seconds()
        while not run.done:
            if isinstance(run, SFT):
                metrics = run.step()
                continue
            groups = run.sample()
            segments += [rollout.first for group in groups for rollout in group.rollouts]
            run.update(groups)
    if run.exit_code:  # a signal stopped the steps
        raise KeyboardInterrupt if run.exit_code == 130 else SystemExit(run.exit_code)
    if rl:
        prompts = [one.prompt_length for one in segments]
        new = [len(one) - one.prompt_length for one in segments]
        return start, Lengths(mean(prompts), mean(new), max(prompts), max(new), "measured", max(new))
    lengths = Lengths.of(config)
    if not config.data.pack:
        completion = metrics["tokens/total"] / metrics["examples/total"]
        lengths = replace(lengths, completion=completion, measured="measured")
    return start, lengths


def _peak_bytes() -> int:
    """Return the peak of bytes that torch reserved on the GPU or, without a GPU, that this process used."""
    torch = sys.modules["torch"]
    if torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_reserved())
    return memory_fields(Path("/proc/self/status")).get("VmHWM:", 0) * 1024
