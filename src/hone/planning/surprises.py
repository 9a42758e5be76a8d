"""Settings that do something else than whoever wrote them thinks: one sentence each, with the remedy.

Each function looks at one kind of setting and yields what it finds. What a healthy recipe has on purpose (a KL term, a
temperature of 0.6, one problem again and again) is none of this.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.planning.arithmetic import SFTArithmetic, StepArithmetic, checkpoints_kept
from hone.planning.data import Facts
from hone.planning.devices import Device
from hone.planning.memory import MICRO_BATCH_TOKENS, checkpoint_bytes, weight_bytes
from hone.planning.shape import Shape
from hone.planning.time import Times

LONG = 2 * 3600
"""Seconds of a run that nobody would like to do again."""
CUT = 0.02
"""Share of reference answers beyond the limit from which it is worth a word."""


@dataclass(frozen=True)
class Known:
    """What a plan knows when it looks for surprises; None for what it doesn't."""

    facts: Facts
    shape: Shape | None = None
    device: Device | None = None
    times: Times | None = None
    here: bool = True
    """Whether the run would be on this machine, so that its disk can be looked at."""


def surprises(config: RLConfig | SFTConfig, arithmetic: StepArithmetic | SFTArithmetic, known: Known) -> list[str]:
    """All of them, the gravest kinds first."""
    found: list[str] = []
    if isinstance(config, RLConfig):
        assert isinstance(arithmetic, StepArithmetic)
        found += [*_lengths(config, known), *_groups(config, arithmetic), *_pool(config, arithmetic, known)]
        found += _evaluation(config, arithmetic, known)
        optim, scheduler, micro = config.trainer.optim, config.trainer.scheduler, config.trainer.micro_batch_tokens
        longest, lr_key, kind = config.seq_len, "trainer.optim.lr", "RL"
    else:
        assert isinstance(arithmetic, SFTArithmetic)
        found += _sft_data(config, arithmetic)
        optim, scheduler, micro = config.optim, config.scheduler, config.data.micro_batch_tokens
        longest, lr_key, kind = config.data.seq_len, "optim.lr", "SFT"
    found += _context(config, longest, known)
    found += _schedule(config.max_steps, scheduler.warmup_steps)
    found += _learning_rate(optim.lr, lr_key, kind, known)
    found += _micro_batch(micro, longest, known)
    found += [*_checkpoints(config, known), *_budget(config, known), *_precision(config, known)]
    return found


def _lengths(config: RLConfig, known: Known) -> Iterator[str]:
    """Where completions are cut, by what the task's own answers need."""
    orch, facts = config.orchestrator, known.facts
    if facts.estimated or not facts.prompts:
        return
    most, turns = orch.sampling.max_tokens, facts.turns
    references = np.array(facts.references)
    if most is not None and len(references) and (cut := float(np.mean(references > turns * most))) >= CUT:
        yield (
            f"orchestrator.sampling.max_tokens = {most} cuts {100 * cut:.0f} % of the task's own reference answers "
            f"(the longest looked at has {references.max()} tokens): raise it to {_rounded(references.max())} or more"
        )
    longest = max(facts.prompts)
    if most is not None and longest + most > config.seq_len and turns == 1:
        left = config.seq_len - longest
        yield (
            f"seq_len = {config.seq_len} leaves {max(0, left)} tokens for a completion after the longest prompt looked "
            f"at ({longest}), fewer than max_tokens = {most}: raise seq_len to {_rounded(longest + most)}"
        )


def _rounded(tokens: int) -> int:
    """A little more, as people write such numbers."""
    step = max(8, 1 << (int(tokens).bit_length() - 3))
    return -(-int(tokens) // step) * step


def _groups(config: RLConfig, arithmetic: StepArithmetic) -> Iterator[str]:
    orch, group = config.orchestrator, arithmetic.rollouts
    if group < 4:
        yield (
            f"orchestrator.rollouts_per_example = {group}: a completion is compared with {group - 1} other"
            f"{'' if group == 2 else 's'}, so most groups have one and the same reward and teach nothing; set 8 or 16"
        )
    if arithmetic.prompts == 1:
        yield (
            f"orchestrator.batch_size = {orch.batch_size} counts completions, not prompts: with rollouts_per_example = "
            f"{group} a step has a single prompt; for {orch.batch_size} prompts set batch_size to "
            f"{orch.batch_size * group}"
        )
    temperature = orch.sampling.temperature
    if not 0.5 <= temperature <= 1.3:
        kind = "hardly explores" if temperature < 0.5 else "samples much noise"
        yield f"orchestrator.sampling.temperature = {temperature:g} {kind}: 1 is usual in training, 0.6 to 1.2 works"


def _pool(config: RLConfig, arithmetic: StepArithmetic, known: Known) -> Iterator[str]:
    """How often a prompt comes again, and settings that need it to."""
    curriculum, epochs, pool = config.orchestrator.curriculum, arithmetic.epochs, arithmetic.pool
    if pool is None or epochs is None:
        return
    asked = config.orchestrator.max_examples
    if asked is not None and known.facts.pool is not None and asked > known.facts.pool:
        yield f"orchestrator.max_examples = {asked:,}, but the task has {known.facts.pool:,} training examples only"
    if known.facts.distinct and arithmetic.prompts > pool:
        yield (
            f"a step draws {arithmetic.prompts} prompts of a pool of {pool}, the same ones several times: that is one "
            "group of more rollouts; lower batch_size, or raise rollouts_per_example"
        )
    elif known.facts.distinct and epochs > 100:
        yield (
            f"each of the {pool:,} prompts is seen {epochs:,.0f} times, and will be known by heart: add examples, or "
            "lower max_steps"
        )
    if curriculum.measures and epochs <= 1:
        what = "pool" if curriculum.pool is not None else "order = difficulty"
        yield (
            f"orchestrator.curriculum.{what} goes by what earlier draws of a prompt showed, but this run draws each "
            f"at most once ({arithmetic.draws:,} draws of {pool:,} prompts), so it does nothing: set max_examples lower"
        )
    elif curriculum.pool is not None and arithmetic.rollouts * curriculum.window < 8 and curriculum.pool.retire_at:
        yield (
            f"curriculum.pool.retire_at = {curriculum.pool.retire_at:g} judges a prompt by {arithmetic.rollouts} x "
            f"{curriculum.window} completions, which luck decides: raise curriculum.window to "
            f"{-(-8 // arithmetic.rollouts)}"
        )


def _evaluation(config: RLConfig, arithmetic: StepArithmetic, known: Known) -> Iterator[str]:
    settings = config.orchestrator.eval
    if settings is None:
        yield (
            "no evaluation: the reward on training prompts will be the only sign; add --orchestrator.eval.num-examples "
            "128"
        )
        return
    if settings.interval > config.max_steps:
        yield (
            f"orchestrator.eval.interval = {settings.interval} is beyond max_steps = {config.max_steps}: only the "
            f"start and the end are evaluated; set it to {max(1, config.max_steps // 5)}"
        )
    evaluated = arithmetic.evaluations * arithmetic.eval_completions
    if evaluated > arithmetic.total and arithmetic.evaluations > 2:
        yield (
            f"evaluations sample {evaluated:,} completions, training {arithmetic.total:,}: raise "
            "orchestrator.eval.interval, or lower eval.num_examples"
        )
    held_out = known.facts.held_out
    if held_out is not None and settings.num_examples > held_out:
        yield f"orchestrator.eval.num_examples = {settings.num_examples}, but only {held_out} examples are held out"


def _sft_data(config: SFTConfig, arithmetic: SFTArithmetic) -> Iterator[str]:
    if arithmetic.epochs is not None and arithmetic.epochs > 10 and arithmetic.examples:
        yield (
            f"each of the {arithmetic.examples:,} examples is seen {arithmetic.epochs:,.0f} times, and will be known "
            "by heart: lower max_steps"
        )
    if config.val is not None and config.val.interval > config.max_steps:
        yield (
            f"val.interval = {config.val.interval} is beyond max_steps = {config.max_steps}: only the end is "
            f"validated; set it to {max(1, config.max_steps // 5)}"
        )


def _context(config: RLConfig | SFTConfig, longest: int, known: Known) -> Iterator[str]:
    if known.shape is not None and longest > known.shape.context:
        key = "seq_len" if isinstance(config, RLConfig) else "data.seq_len"
        yield f"{key} = {longest} exceeds the model's context of {known.shape.context} tokens: lower it to that"


def _schedule(steps: int, warmup: int) -> Iterator[str]:
    if warmup >= steps:
        yield (
            f"scheduler.warmup_steps = {warmup} is no shorter than the run of {steps} steps: the learning rate never "
            f"comes to its peak; set it to {steps // 20}"
        )
    elif warmup > steps / 2:
        yield f"scheduler.warmup_steps = {warmup} is more than half of the run's {steps} steps: set it to {steps // 20}"


CUSTOMARY = {
    ("RL", "large"): (2e-7, 1e-5, "1e-6"),
    ("RL", "small"): (5e-7, 1e-4, "1e-6 to 1e-5"),
    ("RL", "tiny"): (3e-5, 1e-3, "2e-4"),
    ("SFT", "large"): (1e-6, 1e-4, "2e-5"),
    ("SFT", "small"): (5e-6, 1e-3, "2e-5 to 1e-4"),
    ("SFT", "tiny"): (1e-4, 5e-3, "2e-3"),
}
"""Learning rates (from, to, what is usual) of full training: from 0.4B parameters on, below, and under 20M."""


def _learning_rate(lr: float, key: str, kind: str, known: Known) -> Iterator[str]:
    if known.shape is None:
        return
    count = known.shape.parameters
    size = "large" if count >= 4e8 else "small" if count >= 2e7 else "tiny"
    low, high, usual = CUSTOMARY[kind, size]
    if not low <= lr <= high:
        what = "will hardly move" if lr < low else "tends to destroy"
        named = f"{count / 1e6:,.{0 if count > 1e7 else 1}f}M"
        yield f"{key} = {lr:g} {what} a model of {named} parameters: {usual} is usual in {kind}"


def _micro_batch(micro: int | None, longest: int, known: Known) -> Iterator[str]:
    if micro is None and known.device is None:
        return
    most = micro or MICRO_BATCH_TOKENS[known.device.kind if known.device else "cpu"]
    if most < longest and micro is not None:
        yield (
            f"micro_batch_tokens = {most} is less than the longest sequence ({longest}), which is never cut: memory is "
            f"that of {longest} tokens, and short sequences go one by one; set it to {longest} or more"
        )


def _checkpoints(config: RLConfig | SFTConfig, known: Known) -> Iterator[str]:
    ckpt = config.ckpt
    if ckpt is None:
        if known.times is not None and known.times.total > LONG:
            yield (
                f"no checkpoints in a run of about {known.times.total / 3600:,.0f} hours: add --ckpt.interval "
                f"{max(1, int(1800 / known.times.step))} (every half hour)"
            )
        return
    if ckpt.interval is not None and ckpt.interval > config.max_steps:
        yield (
            f"ckpt.interval = {ckpt.interval} is beyond max_steps = {config.max_steps}: there will be one checkpoint, "
            f"at the end; set it to {max(1, config.max_steps // 5)}"
        )
    if known.shape is None or not known.here:
        return
    each = checkpoint_bytes(known.shape, config.precision) + weight_bytes(known.shape, config.precision)
    needed, free = (checkpoints_kept(config) + 1) * each, _free_disk(config.output_dir)
    if free is not None and needed > free:
        keep = "" if ckpt.keep_last else ", for all are kept: add --ckpt.keep-last 2"
        yield f"checkpoints will take {needed / 2**30:,.0f} GiB, and the disk has {free / 2**30:,.0f} GiB free{keep}"


def _free_disk(folder: Path) -> int | None:
    """Bytes that the disk of a folder, or of the nearest that exists above it, has left."""
    for parent in (folder.absolute(), *folder.absolute().parents):
        if parent.exists():
            try:
                return shutil.disk_usage(parent).free
            except OSError:
                return None
    return None


def _budget(config: RLConfig | SFTConfig, known: Known) -> Iterator[str]:
    limits, times = config.budget, known.times
    if limits is None or times is None:
        return
    needs = [("hours", limits.hours, times.total / 3600)]
    needs += [("usd", limits.usd, times.usd)] if limits.usd else []
    needs += [("tokens", limits.tokens, times.tokens * times.steps)]
    for name, limit, need in needs:
        if limit is not None and need is not None and need > 1.1 * limit:
            after = int(config.max_steps * limit / need)
            yield (
                f"budget.{name} = {limit:,g} ends the run after about {after:,} of {config.max_steps:,} steps, for all "
                f"of which it needs {need:,.3g}: lower max_steps, so that schedule and evaluations fit"
            )


def _precision(config: RLConfig | SFTConfig, known: Known) -> Iterator[str]:
    device = known.device
    if config.precision == "fp32" and device is not None and device.kind == "cuda":
        yield (
            f"precision = fp32 leaves the tensor cores of the {device.name} unused, "
            f"{device.flops['bf16'] / device.flops['fp32']:.0f} times their speed: set bf16_linear"
        )
