"""A calibration: three real steps of the run, in this process, and the plan scaled to what they took.

The run is the one that `rl` or `sft` would start, in a temporary folder beside the output directory. Seconds and bytes
at other lengths than those of the steps are in proportion to the plan's.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from hone.config.alarms import AlarmsConfig
from hone.config.rl import RLConfig
from hone.errors import UserError
from hone.planning.arithmetic import Lengths
from hone.planning.devices import memory_fields
from hone.planning.doctor import size
from hone.planning.memory import memory
from hone.planning.report import Plan, times_words
from hone.planning.time import Times, times
from hone.runs.budget import process_seconds
from hone.runs.files import TMP_PREFIX, read_lines
from hone.runs.progress import short_seconds
from hone.runs.signals import is_out_of_memory

STEPS = 3


class DoesNotFit(Exception):
    """Memory ran out; names the settings to lower, in one sentence."""


@dataclass(frozen=True)
class Calibration:
    """What `steps` took: completions had these `lengths`, and the process, or torch on the GPU, `memory` bytes at most.

    `usual` are the times of the whole run as its completions are now; `worst` and `memory_worst` if all run to their
    limit. If no step `trained`, training is as the plan says. `seconds` are those of the calibration.
    """

    steps: int
    seconds: float
    lengths: Lengths
    memory: int
    memory_worst: int
    usual: Times
    worst: Times
    trained: bool

    def record(self) -> dict[str, Any]:
        """Return all of it as JSON."""
        return asdict(self) | {"usual": self.usual.record(), "worst": self.worst.record()}

    def words(self, plan: Plan) -> tuple[str, list[str]]:
        """Return the heading and the lines of it, beside the plan that it checks."""
        planned = f" (the plan above says {size(plan.memory.total)})" if plan.memory else ""
        worst = f"with all {'completions' if isinstance(plan.config, RLConfig) else 'examples'} at their limit"
        lines = [
            f"memory: {size(self.memory)} at most, {size(self.memory_worst)} {worst}{planned}",
            f"lengths as they are now ({self.lengths.completion:,.0f} tokens): {times_words(self.usual)}",
            f"{worst} ({plan.lengths.longest_completion:,} tokens): {times_words(self.worst)}",
        ]
        if not self.trained:
            lines.append("no step trained, for all rewards of each prompt were equal: training is as the plan says")
        return f"Measured here in {short_seconds(self.seconds)}, over {self.steps} step{'s' * (self.steps > 1)}", lines


def calibrate(plan: Plan) -> Calibration:
    """Take the steps, and scale the plan.

    Raises UserError if the run itself would, and if it would not be one process that samples by itself; DoesNotFit if
    memory runs out.
    """
    config, shape = plan.config, plan.shape
    rl = isinstance(config, RLConfig)
    if shape is None or plan.memory is None or plan.worst is None:
        raise UserError("--calibrate scales a plan, which needs the model's shape: name a folder or hub id")
    if rl and (config.mode == "split" or config.sampled_by is not None):
        raise UserError(
            f"--calibrate measures a run of one process and hone's own engine, and this one samples from "
            f"{config.sampled_by or 'another process'}: add --mode colocated, or leave out --calibrate"
        )
    began = time.perf_counter()
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
            reason = (str(cause).strip() or "no memory").splitlines()[0]
            raise DoesNotFit(
                f"out of memory ({reason}): lower {lower}, set --precision bf16, or take a smaller model"
            ) from None
        lines = [line for line in read_lines(run / "timings.jsonl") if "time/train" in line]
        metrics = read_lines(run / "metrics.jsonl")
    steady = lines[1:] or lines  # the first one makes kernels
    trained = [line for line in steady if metrics[line["step"]].get("groups/trained", 1)]
    taken = {name: mean(line.get(f"time/{name}", 0.0) for line in steady) for name in ("sample", "grade", "train")}
    step = mean(line["time/step"] for line in steady)
    start += max(0.0, lines[0]["time/step"] - step)
    taken["other"] = max(0.0, step - sum(taken.values()))
    planned = times(plan.evaluated, shape, plan.device, lengths, plan.worst.usd_per_hour, plan.facts.pool)
    taken["train"] = mean(line["time/train"] for line in trained) if trained else planned.train

    def scaled(estimate: Times) -> Times:
        """Return an estimate of the plan in proportion to what it says of the lengths that were measured."""
        ratio = {name: taken[name] / getattr(planned, name) for name in ("sample", "train") if getattr(planned, name)}
        seconds = {name: getattr(estimate, name) * factor for name, factor in ratio.items()}
        seconds["evaluate"] = estimate.evaluate * ratio["sample" if rl else "train"]
        return replace(estimate, **seconds, grade=taken["grade"], other=taken["other"], start=start)

    peak = _peak_bytes()
    worst = peak + max(0, plan.memory.total - memory(plan.evaluated, shape, plan.device, lengths).total)
    return Calibration(
        steps=len(lines),
        seconds=time.perf_counter() - began,
        lengths=lengths,
        memory=peak,
        memory_worst=worst if trained else max(worst, plan.memory.total),
        usual=scaled(planned),
        worst=scaled(plan.worst),
        trained=bool(trained),
    )


def _take_steps(config: Any, folder: Path) -> tuple[float, Lengths]:
    """Take a few steps that nothing watches; return the seconds until the first, and the lengths of the sequences."""
    from hone.composition.rl import RL
    from hone.composition.sft import SFT

    off: dict[str, Any] = dict.fromkeys(("resume", "budget", "wandb", "trackio", "ckpt"))
    off |= {"display": "none", "predict": [], "report": False, "detach": False, "alarms": AlarmsConfig(action="off")}
    off |= {"output_dir": folder, "max_steps": min(STEPS, config.max_steps)}
    if isinstance(config, RLConfig):
        trajectories = []
        off["orchestrator"] = config.orchestrator.model_copy(update={"eval": None})
        with RL(config.model_copy(update=off)) as run:
            start = process_seconds()
            while not run.done:
                groups = run.sample()
                trajectories += [trajectory for group in groups for trajectory in group.trajectories]
                run.update(groups)
        prompts = [t.prompt_length for t in trajectories]
        new = [len(t.token_ids) - t.prompt_length for t in trajectories]
        lengths = Lengths(mean(prompts), mean(new), max(prompts), max(new), "measured", max(new))
    else:
        metrics, lengths = {}, Lengths.of(config)
        with SFT(config.model_copy(update=off | {"val": None})) as run:
            start = process_seconds()
            while not run.done:
                metrics = run.step()
        if not config.data.pack:
            completion = metrics["tokens/total"] / metrics["examples/total"]
            lengths = replace(lengths, completion=completion, measured="measured")
    if run.exit_code:  # a signal stopped the steps
        raise KeyboardInterrupt if run.exit_code == 130 else SystemExit(run.exit_code)
    return start, lengths


def _peak_bytes() -> int:
    """Return the most memory that torch reserved on the GPU or, without one, that this process had."""
    torch = sys.modules["torch"]
    if torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_reserved())
    return memory_fields(Path("/proc/self/status")).get("VmHWM:", 0) * 1024
