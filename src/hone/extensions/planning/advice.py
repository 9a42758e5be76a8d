"""Advice before a run starts: surprising settings, settings that save memory, and missing inputs."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hone.config.base import changed, flag
from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.config.shared import LoraConfig
from hone.environments.loading import configured
from hone.errors import UserError
from hone.extensions.planning.arithmetic import Lengths, Steps, retained_checkpoints
from hone.extensions.planning.data import Facts, tasks_of
from hone.extensions.planning.devices import DEVICES, Device
from hone.inference.memory import GIB, KV_GIB
from hone.loops.memory import Memory, fitted, ways_to_fill
from hone.model.config import DecoderConfig
from hone.model.fetch import is_fetched
from hone.model.files import TINY, is_hub_id
from hone.trainer.memory import checkpoint_bytes, longest, micro_batch_limit, trainer_of, weight_bytes

if TYPE_CHECKING:
    from hone.extensions.planning.report import Plan

LONG = 2 * 3600
"""Seconds beyond which a run should have checkpoints."""
CUT = 0.02
"""A note warns if at least this share of the reference answers exceeds max_tokens."""
KEPT_GIB = 4
"""A note warns if a step may store more GiB of token ids than this."""
CUSTOMARY = {
    ("RL", "large"): (2e-7, 1e-5, "1e-6"),
    ("RL", "small"): (5e-7, 1e-4, "1e-6 to 1e-5"),
    ("RL", "tiny"): (3e-5, 1e-3, "2e-4"),
    ("SFT", "large"): (1e-6, 1e-4, "2e-5"),
    ("SFT", "small"): (5e-6, 1e-3, "2e-5 to 1e-4"),
    ("SFT", "tiny"): (1e-4, 5e-3, "2e-3"),
}
"""Learning rates (lowest, highest, usual) without LoRA. Models are `large` from 0.4B parameters, `tiny` under 20M."""


def surprises(plan: Plan) -> Iterator[str]:
    config, shape, times = plan.config, plan.shape, plan.usual
    if isinstance(config, RLConfig):
        yield from _rollouts(config, plan.steps, plan.facts)
        kind, section, prefix, key, longest = "RL", config.trainer, "trainer.", "seq_len", config.seq_len
        intervals: dict[str, Any] = {"orchestrator.eval": config.orchestrator.eval}
    else:
        kind, section, prefix, key, longest = "SFT", config, "", "data.seq_len", config.data.seq_len
        intervals = {"val": config.val}
    if isinstance(config, RLConfig) and shape is not None:
        sampling, most = config.orchestrator.sampling, 4 * shape.vocab_size * plan.steps.sampled_at_most
        if sampling.cuts and not sampling.top_k and most > KEPT_GIB * GIB:
            yield (
                f"orchestrator.sampling has top_p or min_p without top_k, and may keep up to {shape.vocab_size:,} ids "
                f"of each token: at worst {most / GIB:,.0f} GiB a step, in memory and in rollouts/; add top_k = 100 or "
                "so"
            )
    steps, warmup, lr = config.max_steps, section.scheduler.warmup_steps, section.optim.lr
    if warmup > steps / 2:
        yield (
            f"scheduler.warmup_steps = {warmup} is more than half of the run's {steps} steps, so the learning rate "
            f"hardly reaches its peak: set it to {max(1, steps // 20)}"
        )
    if shape is not None:
        if longest > (context := shape.max_position_embeddings):
            yield f"{key} = {longest} exceeds the model's {shape.context}: lower it to {context}"
        count = shape.parameters
        low, high, usual = CUSTOMARY[kind, "large" if count >= 4e8 else "small" if count >= 2e7 else "tiny"]
        if config.model.lora:
            low, high = 10 * low, 10 * high
            usual = re.sub(r"e-(\d)", lambda power: f"e-{int(power[1]) - 1}", usual) + " with LoRA"
        if not low <= lr <= high:
            what = "will hardly move" if lr < low else "tends to destroy"
            named = f"{count / 1e6:,.{0 if count > 1e7 else 1}f}M"
            yield f"{prefix}optim.lr = {lr:g} {what} a model of {named} parameters: {usual} is usual in {kind}"
    for name, section in (intervals | {"ckpt": config.ckpt}).items():
        if section is not None and (section.interval or 0) > steps:
            yield (
                f"{name}.interval = {section.interval} is beyond max_steps = {steps}: nothing happens before the end; "
                f"set it to {max(1, steps // 5)}"
            )
    if config.ckpt is None and times is not None and times.total > LONG:
        yield (
            f"no checkpoints in a run of about {times.total / 3600:,.0f} hours: add --ckpt.interval "
            f"{max(1, int(1800 / times.step))} (every half hour)"
        )
    if config.ckpt is not None and shape is not None and plan.here:
        size, free = disk_needed(config, shape), free_disk(config.output_dir)
        if size > free:
            keep = "" if config.ckpt.keep_last else "; every checkpoint stays: add --ckpt.keep-last 2"
            yield f"checkpoints will take {size / GIB:,.0f} GiB, and the disk has {free / GIB:,.0f} GiB free{keep}"
    if config.budget is not None and times is not None:
        tokens = plan.steps.total * plan.lengths.sequence
        for name, need in {"hours": times.total / 3600, "usd": times.usd, "tokens": tokens}.items():
            limit = getattr(config.budget, name)
            if limit and need is not None and need > 1.1 * limit:
                yield (
                    f"budget.{name} = {limit:,g} ends the run after about {int(steps * limit / need):,} of {steps:,} "
                    f"steps; all steps need {need:,.3g}: lower max_steps, so that schedule and evaluations "
                    "fit"
                )


def _rollouts(config: RLConfig, steps: Steps, facts: Facts) -> Iterator[str]:
    orch, evals = config.orchestrator, config.orchestrator.eval
    most, group, temperature = orch.sampling.max_tokens, orch.rollouts_per_example, orch.sampling.temperature
    if most is not None and facts.prompts and not facts.estimated:
        references, longest = np.array(facts.references or [0]), max(facts.prompts)
        if (cut := float(np.mean(references > facts.turns * most))) >= CUT:
            yield (
                f"orchestrator.sampling.max_tokens = {most} cuts {100 * cut:.0f} % of the task's own reference answers "
                f"(the longest measured has {references.max()} tokens): raise it to {_rounded(references.max())} or "
                "more"
            )
        if longest + most > config.seq_len and facts.turns == 1:
            yield (
                f"seq_len = {config.seq_len} leaves {max(0, config.seq_len - longest)} tokens for a completion after "
                f"the longest measured prompt ({longest}), fewer than max_tokens = {most}: raise seq_len to "
                f"{_rounded(longest + most)}"
            )
    if group < 4 and not orch.advantage.compares_the_batch:
        yield (
            f"orchestrator.rollouts_per_example = {group}: most groups of so few completions have equal rewards and "
            "teach nothing; set 8 or 16"
        )
    if steps.prompts == 1 and group > 1:
        yield (
            f"orchestrator.batch_size = {orch.batch_size} counts completions, not prompts: with rollouts_per_example = "
            f"{group} a step has a single prompt; for {orch.batch_size} prompts set batch_size to "
            f"{orch.batch_size * group}"
        )
    if not 0.5 <= temperature <= 1.3:
        kind = "hardly explores" if temperature < 0.5 else "samples much noise"
        yield f"orchestrator.sampling.temperature = {temperature:g} {kind}: 1 is usual in training, 0.6 to 1.2 works"
    if evals is None:
        text = "no evaluation: the reward on training prompts will be the only measure"
        yield f"{text}; add --orchestrator.eval.num-examples 128"
    elif facts.held_out is not None and evals.num_examples > facts.held_out:
        yield f"orchestrator.eval.num_examples = {evals.num_examples}, but only {facts.held_out} examples are held out"


def _rounded(tokens: int) -> int:
    """Round up to three significant binary digits, and to a multiple of 8."""
    step = max(8, 1 << (int(tokens).bit_length() - 3))
    return -(-int(tokens) // step) * step


def disk_needed(config: RLConfig | SFTConfig, shape: DecoderConfig) -> int:
    """Return the most bytes that checkpoints and weights take on the disk, while one more checkpoint is written."""
    each = checkpoint_bytes(config, shape) if config.ckpt else 0
    return (retained_checkpoints(config) + 1) * (each + weight_bytes(shape, config.precision))


def free_disk(folder: Path) -> int:
    """Return the free bytes on the disk of a folder, or of its nearest existing parent."""
    there = folder.absolute()
    return shutil.disk_usage(next(path for path in (there, *there.parents) if path.exists())).free


def resolved(
    config: RLConfig | SFTConfig, shape: DecoderConfig, device: Device, lengths: Lengths, here: bool
) -> tuple[RLConfig | SFTConfig, str, Memory]:
    """Return the config as a run resolves it before reading data, settings chosen to save memory, and needed memory."""
    ranks = config.trainer.ranks if isinstance(config, RLConfig) else 1
    limits = *longest(config, lengths.turns), lengths.turns, ranks
    config, saving = fitted(config, shape, device.kind, device.available, *limits, here=here)
    ways = ways_to_fill(config, shape, device.kind, *lengths.for_memory(config), ranks)
    return config, saving, max(ways, key=lambda way: way.total)


def remedies(plan: Plan) -> Iterator[str]:
    """Yield a line for each flag that saves memory, the best first, then a line for the smallest GPU that is enough."""
    config, shape = plan.config, plan.shape
    assert shape is not None

    def total(values: dict[str, Any], card: Device = plan.device) -> int:
        return resolved(changed(config, values), shape, card, plan.lengths, plan.here)[2].total

    section = "trainer" if isinstance(config, RLConfig) else "data"
    ways: dict[str, dict[str, Any]] = {"--precision bf16": {"precision": "bf16"}}
    if trainer_of(config).optim.type == "adamw" and not config.model.lora:
        ways["--model.lora.rank 16"] = {"model.lora": LoraConfig()}
    if config.ckpt is not None and config.ckpt.background and plan.device.kind == "cpu":
        ways["--no-ckpt.background"] = {"ckpt.background": False}
    # A number is halved until the run fits, or it is as low as it may be.
    tokens = micro_batch_limit(plan.evaluated, plan.device.kind)
    numbers: dict[str, Any] = {f"{section}.micro_batch_tokens": (tokens, max(256, plan.lengths.longest))}
    if isinstance(config, RLConfig):
        if config.trainer.loss.kl_coef > 0:
            ways["--trainer.loss.kl-coef 0 (no reference model)"] = {"trainer.loss.kl_coef": 0.0}
        numbers["inference.kv_gib"] = (float(config.inference.kv_gib or KV_GIB), 0.25)
    for name, (value, least) in numbers.items():
        while value > least and total({name: value}) > plan.room:
            value = max(least, type(least)(value / 2))
        ways[f"{flag((name,))} {value}"] = {name: value}
    for size, words in sorted((total(values), words) for words, values in ways.items()):
        if size < 0.98 * total({}):
            fits = "fits" if size <= plan.room else f"still {(size - plan.room) / GIB:.1f} GiB too much"
            yield f"{words}: {size / GIB:.1f} GiB, {fits}"
    if larger := [card for card in DEVICES.values() if total({}, card) <= card.room]:
        card = min(larger, key=lambda card: (card.memory, card.usd_per_hour or 0))
        yield f"a card of {card.memory / GIB:.0f} GiB, such as the {card.name}: fits"


def missing(config: RLConfig | SFTConfig) -> dict[str, str]:
    """Return the missing inputs (`model`, `task`, `data`) with remedies. A hub id counts as present."""
    absent, name = {}, config.model.name
    if not (name == TINY or is_fetched(name) or is_hub_id(name) or Path(name).exists()):
        run, weights, _ = name.partition("/weights/step_")
        how = f"`hone init-model {name}` makes a small one, --model.name names another"
        how = f"the run that writes to {run} makes it" if weights else how
        absent["model"] = f"there is no model folder {name}: {how}"
    for key, task in tasks_of(config).items():
        try:
            configured(task.id, task.args, task.template, key)
        except UserError as error:
            absent["task"] = str(error)
    path = config.data.path if isinstance(config, SFTConfig) else None
    if path and not Path(path).expanduser().exists():
        absent["data"] = f"there is no file {path}: --data.path names another"
    return absent
