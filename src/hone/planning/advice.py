"""What to change before a run starts, one sentence each, with the remedy.

`surprises` are settings that do something else than whoever wrote them thinks; what a healthy recipe has on purpose (a
KL term, a temperature of 0.6, one problem again and again) is none. `remedies` are settings that make a run fit into
memory. `missing` is what a run can't start without.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hone.config.parse import load_toml
from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.environments.loading import configured
from hone.errors import UserError
from hone.model.files import TINY, is_hub_id
from hone.planning.arithmetic import Lengths, SFTArithmetic, StepArithmetic, checkpoints_kept
from hone.planning.data import Facts
from hone.planning.devices import DEVICES, Device
from hone.planning.memory import GIB, KV_GIB, checkpoint_bytes, micro_batch_limit, needed, weight_bytes
from hone.planning.shape import Shape

if TYPE_CHECKING:
    from hone.planning.report import Plan

Config = RLConfig | SFTConfig

LONG = 2 * 3600
"""Seconds of a run that nobody would like to do again."""
CUT = 0.02
"""Share of reference answers beyond the limit from which it is worth a word."""
CUSTOMARY = {
    ("RL", "large"): (2e-7, 1e-5, "1e-6"),
    ("RL", "small"): (5e-7, 1e-4, "1e-6 to 1e-5"),
    ("RL", "tiny"): (3e-5, 1e-3, "2e-4"),
    ("SFT", "large"): (1e-6, 1e-4, "2e-5"),
    ("SFT", "small"): (5e-6, 1e-3, "2e-5 to 1e-4"),
    ("SFT", "tiny"): (1e-4, 5e-3, "2e-3"),
}
"""Learning rates (from, to, what is usual) of full training: from 0.4B parameters on, below, and under 20M."""


def surprises(plan: Plan) -> list[str]:
    """Return all of them, the gravest kinds first."""
    config, arithmetic, facts = plan.config, plan.arithmetic, plan.facts
    if isinstance(config, RLConfig):
        assert isinstance(arithmetic, StepArithmetic)
        found = [*_lengths(config, facts), *_groups(config, arithmetic)]
        found += [*_pool(config, arithmetic, facts), *_evaluation(config, arithmetic, facts)]
    else:
        assert isinstance(arithmetic, SFTArithmetic)
        found = list(_sft_data(config, arithmetic))
    return [*found, *_training(config, plan.shape), *_checkpoints(plan), *_limits(plan)]


def _lengths(config: RLConfig, facts: Facts) -> Iterator[str]:
    """Yield where completions are cut, by what the task's own answers need."""
    most = config.orchestrator.sampling.max_tokens
    if facts.estimated or not facts.prompts or most is None:
        return
    references, longest = np.array(facts.references), max(facts.prompts)
    if len(references) and (cut := float(np.mean(references > facts.turns * most))) >= CUT:
        yield (
            f"orchestrator.sampling.max_tokens = {most} cuts {100 * cut:.0f} % of the task's own reference answers "
            f"(the longest looked at has {references.max()} tokens): raise it to {_rounded(references.max())} or more"
        )
    if longest + most > config.seq_len and facts.turns == 1:
        yield (
            f"seq_len = {config.seq_len} leaves {max(0, config.seq_len - longest)} tokens for a completion after the "
            f"longest prompt looked at ({longest}), fewer than max_tokens = {most}: raise seq_len to "
            f"{_rounded(longest + most)}"
        )


def _rounded(tokens: int) -> int:
    """Return a little more, as people write such numbers."""
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


def _pool(config: RLConfig, arithmetic: StepArithmetic, facts: Facts) -> Iterator[str]:
    """Yield how often a prompt comes again, and settings that need it to."""
    curriculum, epochs, pool = config.orchestrator.curriculum, arithmetic.epochs, arithmetic.pool
    if pool is None or epochs is None:
        return
    asked = config.orchestrator.max_examples
    if asked is not None and facts.pool is not None and asked > facts.pool:
        yield f"orchestrator.max_examples = {asked:,}, but the task has {facts.pool:,} training examples only"
    if facts.distinct and arithmetic.prompts > pool:
        yield (
            f"a step draws {arithmetic.prompts} prompts of a pool of {pool}, the same ones several times: that is one "
            "group of more rollouts; lower batch_size, or raise rollouts_per_example"
        )
    elif facts.distinct and epochs > 100:
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


def _evaluation(config: RLConfig, arithmetic: StepArithmetic, facts: Facts) -> Iterator[str]:
    evals, steps, held_out = config.orchestrator.eval, config.max_steps, facts.held_out
    if evals is None:
        yield (
            "no evaluation: the reward on training prompts will be the only sign; add --orchestrator.eval.num-examples "
            "128"
        )
        return
    if evals.interval > steps:
        yield (
            f"orchestrator.eval.interval = {evals.interval} is beyond max_steps = {steps}: only the start and the end "
            f"are evaluated; set it to {max(1, steps // 5)}"
        )
    evaluated = arithmetic.evaluations * arithmetic.eval_completions
    if evaluated > arithmetic.total and arithmetic.evaluations > 2:
        yield (
            f"evaluations sample {evaluated:,} completions, training {arithmetic.total:,}: raise "
            "orchestrator.eval.interval, or lower eval.num_examples"
        )
    if held_out is not None and evals.num_examples > held_out:
        yield f"orchestrator.eval.num_examples = {evals.num_examples}, but only {held_out} examples are held out"


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


def _training(config: Config, shape: Shape | None) -> Iterator[str]:
    """Yield what is odd about the length of sequences, the schedule, the learning rate and micro-batches."""
    if isinstance(config, RLConfig):
        kind, section, micro, prefix = "RL", config.trainer, config.trainer.micro_batch_tokens, "trainer."
        longest, key = config.seq_len, "seq_len"
    else:
        kind, section, micro, prefix = "SFT", config, config.data.micro_batch_tokens, ""
        longest, key = config.data.seq_len, "data.seq_len"
    steps, warmup, lr = config.max_steps, section.scheduler.warmup_steps, section.optim.lr
    if shape is not None and longest > shape.context:
        yield f"{key} = {longest} exceeds the model's context of {shape.context} tokens: lower it to that"
    if warmup >= steps:
        yield (
            f"scheduler.warmup_steps = {warmup} is no shorter than the run of {steps} steps: the learning rate never "
            f"comes to its peak; set it to {steps // 20}"
        )
    elif warmup > steps / 2:
        yield f"scheduler.warmup_steps = {warmup} is more than half of the run's {steps} steps: set it to {steps // 20}"
    if shape is not None:
        count = shape.parameters
        size = "large" if count >= 4e8 else "small" if count >= 2e7 else "tiny"
        low, high, usual = CUSTOMARY[kind, size]
        if not low <= lr <= high:
            what = "will hardly move" if lr < low else "tends to destroy"
            named = f"{count / 1e6:,.{0 if count > 1e7 else 1}f}M"
            yield f"{prefix}optim.lr = {lr:g} {what} a model of {named} parameters: {usual} is usual in {kind}"
    if micro is not None and micro < longest:
        yield (
            f"micro_batch_tokens = {micro} is less than the longest sequence ({longest}), which is never cut: memory "
            f"is that of {longest} tokens, and short sequences go one by one; set it to {longest} or more"
        )


def _checkpoints(plan: Plan) -> Iterator[str]:
    config, ckpt, steps, times = plan.config, plan.config.ckpt, plan.config.max_steps, plan.usual
    if ckpt is None:
        if times is not None and times.total > LONG:
            yield (
                f"no checkpoints in a run of about {times.total / 3600:,.0f} hours: add --ckpt.interval "
                f"{max(1, int(1800 / times.step))} (every half hour)"
            )
        return
    if ckpt.interval is not None and ckpt.interval > steps:
        yield (
            f"ckpt.interval = {ckpt.interval} is beyond max_steps = {steps}: there will be one checkpoint, at the end; "
            f"set it to {max(1, steps // 5)}"
        )
    if plan.shape is None or not plan.here:
        return
    each = checkpoint_bytes(plan.shape, config.precision) + weight_bytes(plan.shape, config.precision)
    size, free = (checkpoints_kept(config) + 1) * each, free_disk(config.output_dir)
    if size > free:
        keep = "" if ckpt.keep_last else ", for all are kept: add --ckpt.keep-last 2"
        yield f"checkpoints will take {size / GIB:,.0f} GiB, and the disk has {free / GIB:,.0f} GiB free{keep}"


def free_disk(folder: Path) -> int:
    """Return the bytes that are free on the disk of a folder, or of the nearest that exists above it."""
    there = folder.absolute()
    return shutil.disk_usage(next(path for path in (there, *there.parents) if path.exists())).free


def _limits(plan: Plan) -> Iterator[str]:
    """Yield a budget that ends the run early, and a precision that leaves a GPU idle."""
    config, limits, times, device = plan.config, plan.config.budget, plan.usual, plan.device
    if limits is not None and times is not None:
        needs = {"hours": times.total / 3600, "usd": times.usd, "tokens": times.tokens * times.steps}
        for name, need in needs.items():
            limit = getattr(limits, name)
            if limit and need is not None and need > 1.1 * limit:
                yield (
                    f"budget.{name} = {limit:,g} ends the run after about {int(config.max_steps * limit / need):,} of "
                    f"{config.max_steps:,} steps, for all of which it needs {need:,.3g}: lower max_steps, so that "
                    "schedule and evaluations fit"
                )
    if config.precision == "fp32" and device.kind == "cuda":
        yield (
            f"precision = fp32 leaves the tensor cores of the {device.name} unused, "
            f"{device.flops['bf16'] / device.flops['fp32']:.0f} times their speed: set bf16_linear"
        )


def remedies(plan: Plan) -> list[str]:
    """Return a line for each setting that helps alone, those that make it fit first; then the smallest card."""
    config, device, lengths, room, shape = plan.evaluated, plan.device, plan.lengths, plan.room, plan.shape
    assert shape is not None

    def total(changed: Config, lengths: Lengths = lengths, device: Device = device) -> int:
        return needed(changed, shape, device, plan.ranks, plan.gpus, lengths).total

    now, lines = total(config), []
    changes = _changes(config, device, lengths, room, total)
    tried = [(total(changed, shorter), flag) for flag, changed, shorter in changes]
    for size, flag in sorted(tried):
        if size < 0.98 * now:
            fits = "fits" if size <= room else f"still {(size - room) / GIB:.1f} GiB too much"
            lines.append(f"{flag}: {size / GIB:.1f} GiB, {fits}")
    if larger := [card for card in DEVICES.values() if total(config, device=card) <= card.memory]:
        card = min(larger, key=lambda card: (card.memory, card.usd_per_hour or 0))
        lines.append(f"a card of {card.memory / GIB:.0f} GiB, such as the {card.name}: fits as it is")
    return lines


def _changes(
    config: Config, device: Device, lengths: Lengths, room: int, total: Callable[[Config, Lengths], int]
) -> Iterator[tuple[str, Config, Lengths]]:
    """Yield (flag, the config with it, its lengths), each alone, as far as it helps or as it may go."""
    rl = config if isinstance(config, RLConfig) else None
    if config.precision != "bf16":
        yield "--precision bf16", _with(config, precision="bf16"), lengths
    section, least = "trainer" if rl else "data", max(256, lengths.longest)
    for tokens in _halves(micro_batch_limit(config, device), least):
        changed = _with(config, **{section: {"micro_batch_tokens": tokens}})
        if tokens == least or total(changed, lengths) <= room:
            yield f"--{section}.micro-batch-tokens {tokens}", changed, lengths
            break
    if config.ckpt is not None and config.ckpt.background and device.kind == "cpu":
        yield "--no-ckpt.background", _with(config, ckpt={"background": False}), lengths
    if rl is None:
        return
    if rl.trainer.loss.kl_coef > 0:
        yield "--trainer.loss.kl-coef 0 (no reference model)", _with(rl, trainer={"loss": {"kl_coef": 0.0}}), lengths
    for quarters in _halves(int((rl.inference.kv_gib or KV_GIB) * 4), 1):
        changed = _with(rl, inference={"kv_gib": quarters / 4})
        if quarters == 1 or total(changed, lengths) <= room:
            yield f"--inference.kv-gib {quarters / 4:g} (sampling in more waves)", changed, lengths
            break
    for part in (2, 4):
        longest = max(1, lengths.longest_prompt // part), max(1, lengths.longest_completion // part)
        shorter = Lengths(lengths.prompt / part, lengths.completion / part, *longest)
        if part == 4 or total(rl, shorter) <= room:
            yield f"--seq-len {rl.seq_len // part} with max_tokens in proportion", rl, shorter
            break


def _halves(value: int, least: int) -> Iterator[int]:
    """Yield value / 2, / 4, … down to `least`."""
    while value > least:
        value = max(least, value // 2)
        yield value


def _with(config: Any, **changes: Any) -> Any:
    """Return the config with these keys changed; a dict changes keys of a section."""
    update = {
        name: _with(getattr(config, name), **value) if isinstance(value, dict) else value
        for name, value in changes.items()
    }
    return config.model_copy(update=update)


RECIPES = ("*.toml", "*/*.toml", "examples/*/*.toml")
"""Where a recipe is looked for that makes a model."""


def missing(config: Config) -> list[str]:
    """Return what the run can't start without and is not here (model folder, task, file), with what gives it.

    What is only to be fetched from the hub is not missing.
    """
    lines, name = [], config.model.name
    if not (name == TINY or is_hub_id(name) or Path(name).exists()):
        how = f"`hone init-model {name}` makes a small one, --model.name says another"
        if run := re.fullmatch(r"(.+)/weights/step_\d+/?", name):
            recipe = _recipe(run[1])
            how = f"`{recipe}` makes it" if recipe else f"the run that writes to {run[1]} makes it"
        lines.append(f"there is no model folder {name}: {how}")
    rl = isinstance(config, RLConfig)
    task = config.orchestrator.env if rl else config.data.env
    if task is not None:
        try:
            configured(task.id, task.args, task.template, f"{'orchestrator' if rl else 'data'}.env.template")
        except UserError as error:
            lines.append(str(error))
    elif not rl and config.data.path and not Path(config.data.path).expanduser().exists():
        lines.append(f"there is no file {config.data.path}: --data.path says another")
    return lines


def _recipe(output_dir: str) -> str | None:
    """Return the command whose run writes there, by a recipe near here; None where none says so."""
    for file in sorted(path for pattern in RECIPES for path in Path().glob(pattern)):
        try:
            table = load_toml(str(file))
        except UserError:  # another's, or half of one
            continue
        if table.get("output_dir") == output_dir:
            return f"{'rl' if 'orchestrator' in table else 'sft'} @ {file}"
    return None
