"""A calibration: three real steps of the run, in this process, and the plan with what they took.

The run is the one that `rl` or `sft` would start (`hone.composition`), in a folder of its own beside the output
directory, which goes afterwards. Seconds and bytes at other lengths than those of the steps are in proportion to the
plan's.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from hone.config.alarms import AlarmsConfig
from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.errors import UserError
from hone.planning.arithmetic import Lengths
from hone.planning.devices import memory_fields
from hone.planning.memory import needed
from hone.planning.report import Plan, duration, size, times_words
from hone.planning.time import Times, times
from hone.runs.budget import process_seconds
from hone.runs.files import TMP_PREFIX, read_lines
from hone.runs.signals import is_out_of_memory

STEPS = 3


class DoesNotFit(Exception):
    """Memory ran out, and which settings to lower, in one sentence."""


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
        rl = isinstance(plan.config, RLConfig)
        worst = f"with all {'completions' if rl else 'examples'} at their limit"
        untrained = ["no step trained, for all rewards of each prompt were equal: training is as the plan says"]
        untrained = [] if self.trained else untrained
        return f"Measured here in {duration(self.seconds)}, over {self.steps} step{'s' if self.steps > 1 else ''}", [
            f"memory: {size(self.memory)} at most, {size(self.memory_worst)} {worst}{planned}",
            f"lengths as they are now ({self.lengths.completion:,.0f} tokens): {times_words(self.usual)}",
            f"{worst} ({plan.lengths.longest_completion:,} tokens): {times_words(self.worst)}",
            *untrained,
        ]


def calibrate(plan: Plan) -> Calibration:
    """Take the steps, and scale the plan. UserError for what the run itself would refuse, and if it would not be one
    process that samples by itself; DoesNotFit if memory runs out.
    """
    config, shape, device = plan.config, plan.shape, plan.device
    rl = isinstance(config, RLConfig)
    if rl:
        _refuse_others(config)
    began = time.perf_counter()
    with _scratch(config.output_dir) as folder:
        try:
            start, lengths = (_take_rl_steps if rl else _take_sft_steps)(_alone(config, folder / "run"))
        except Exception as error:
            _refuse_out_of_memory(error, rl)
            raise
        lines = [line for line in read_lines(folder / "run" / "timings.jsonl") if "time/train" in line]
        metrics = read_lines(folder / "run" / "metrics.jsonl")
    if shape is None or plan.memory is None or plan.worst is None:
        raise UserError("--calibrate scales a plan, and this one knows no shape of the model: name a folder or hub id")
    steady = lines[1:] or lines  # the first one makes kernels
    trained = [line for line in steady if metrics[line["step"]].get("groups/trained", 1)]
    taken = {name: mean(line.get(f"time/{name}", 0.0) for line in steady) for name in ("sample", "grade", "train")}
    step = mean(line["time/step"] for line in steady)
    start += max(0.0, lines[0]["time/step"] - step)
    taken["other"] = max(0.0, step - sum(taken.values()))
    price, examples = plan.worst.usd_per_hour, plan.facts.examples
    planned = times(plan.evaluated, shape, device, lengths, 1, price, examples)
    taken["train"] = mean(line["time/train"] for line in trained) if trained else planned.train

    def scaled(estimate: Times) -> Times:
        """Return an estimate of the plan in proportion to what it says of the lengths that were measured."""
        ratio = {name: taken[name] / getattr(planned, name) for name in ("sample", "train") if getattr(planned, name)}
        seconds = {name: getattr(estimate, name) * factor for name, factor in ratio.items()}
        seconds["evaluate"] = estimate.evaluate * ratio["sample" if rl else "train"]
        return replace(estimate, **seconds, grade=taken["grade"], other=taken["other"], start=start)

    memory = _peak_bytes()
    worst = memory + max(0, plan.memory.total - needed(plan.evaluated, shape, device, lengths=lengths).total)
    return Calibration(
        steps=len(lines),
        seconds=time.perf_counter() - began,
        lengths=lengths,
        memory=memory,
        memory_worst=worst if trained else max(worst, plan.memory.total),
        usual=scaled(planned),
        worst=scaled(plan.worst),
        trained=bool(trained),
    )


def _refuse_others(config: RLConfig) -> None:
    """Raise UserError for a run of several processes, or one that samples from a server."""
    if config.mode not in (None, "colocated"):
        raise UserError(
            f"--calibrate measures a run in one process, and this one is of mode {config.mode}: add --mode colocated "
            "to measure its steps in one, or leave out --calibrate"
        )
    if config.sampled_by is not None:
        raise UserError(
            f"--calibrate measures hone's own engine, and this run samples from {config.sampled_by}: leave that out "
            "for the measurement, or leave out --calibrate"
        )


@contextmanager
def _scratch(output_dir: Path) -> Iterator[Path]:
    """Make a folder on the disk that the run will write to, beside its output directory; remove it at the end."""
    place = next(path for path in output_dir.absolute().parents if path.is_dir())
    try:
        folder = Path(tempfile.mkdtemp(prefix=f"{TMP_PREFIX}plan-", dir=place))
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix=f"{TMP_PREFIX}plan-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _alone(config: Any, folder: Path) -> Any:
    """Return the config of a run of a few steps that watches nothing and saves only what every run does."""
    steps = min(STEPS, config.max_steps)
    update: dict[str, Any] = {"output_dir": folder, "max_steps": steps, "display": "none", "predict": []}
    update |= dict.fromkeys(("resume", "budget", "wandb", "trackio", "ckpt"))
    update |= {"report": False, "detach": False, "alarms": AlarmsConfig(action="off")}
    if isinstance(config, RLConfig):
        update["orchestrator"] = config.orchestrator.model_copy(update={"eval": None})
    else:
        update["val"] = None
    return config.model_copy(update=update)


def _take_rl_steps(config: RLConfig) -> tuple[float, Lengths]:
    """Return the seconds until the first step, and the lengths of what was sampled."""
    from hone.composition.rl import RL

    trajectories = []
    with RL(config) as rl:
        start = process_seconds()
        while not rl.done:
            groups = rl.sample()
            trajectories += [t for group in groups for t in group.trajectories]
            rl.update(groups)
    _heed(rl.exit_code)
    prompts = [t.prompt_length for t in trajectories]
    completions = [len(t.token_ids) - t.prompt_length for t in trajectories]
    longest = max(completions)
    return start, Lengths(mean(prompts), mean(completions), max(prompts), longest, "measured", longest)


def _take_sft_steps(config: SFTConfig) -> tuple[float, Lengths]:
    """Return the seconds until the first step, and the lengths of the examples."""
    from hone.composition.sft import SFT

    metrics = {}
    with SFT(config) as sft:
        start = process_seconds()
        while not sft.done:
            metrics = sft.step()
    _heed(sft.exit_code)
    lengths = Lengths.of(config)
    if config.data.pack:
        return start, lengths
    return start, replace(lengths, completion=metrics["tokens/total"] / metrics["examples/total"], measured="measured")


def _heed(code: int) -> None:
    """End as the signal wants that stopped the steps."""
    if code:
        raise KeyboardInterrupt if code == 130 else SystemExit(code)


def _refuse_out_of_memory(error: BaseException | None, rl: bool) -> None:
    """Raise DoesNotFit if memory ran out."""
    while error is not None and not is_out_of_memory(error):
        error = error.__cause__ or error.__context__
    if error is not None:
        lower = "--trainer.micro-batch-tokens, --inference.kv-gib" if rl else "--data.micro-batch-tokens"
        reason = (str(error).strip() or "no memory").splitlines()[0]
        raise DoesNotFit(f"out of memory ({reason}): lower {lower}, set --precision bf16, or take a smaller model")


def _peak_bytes() -> int:
    """Return the most memory that torch reserved on the GPU or, without one, that this process had."""
    torch = sys.modules["torch"]
    if torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_reserved())
    return memory_fields(Path("/proc/self/status")).get("VmHWM:", 0) * 1024
