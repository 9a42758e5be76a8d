"""`hone sft`: supervised fine-tuning, and what is said about it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hone.commands.forecast import forecast
from hone.commands.training import headline, last_lines, observers
from hone.composition.machine import device_of
from hone.composition.sft import SFT, data_name, follow
from hone.config.sft import SFTConfig
from hone.runs.predictions import check as check_predictions
from hone.trainer.parallel import ALONE, Ranks, joined


def run(config: SFTConfig) -> int:
    """Trains; returns the exit code: 0, or 130/143 when a signal ended the run (its state is saved then).

    Under torchrun every rank comes here. Rank 0 does all there is to do; the others take their part in its steps.
    """
    check_predictions(config)
    with joined(device_of(config.model.device)) as ranks:
        if not ranks.first:
            return follow(SFT(config, ranks=ranks))
        return train(watched(config, ranks)).exit_code


def watched(config: SFTConfig, ranks: Ranks = ALONE, dataset: Any = None) -> SFT:
    """The run, watched by all that a command attaches; on `dataset`, if that is not the config's."""
    return SFT(config, dataset=dataset, observers=observers(config, "sft", introduction), ranks=ranks)


def train(sft: SFT) -> SFT:
    """Trains to the end, and says what came of it."""
    with sft:
        sft.train()
    if sft.ending is not None:
        print(report(sft))
    return sft


def introduction(sft: SFT) -> Iterator[str]:
    """What is about to run, and the plan in short."""
    config, world = sft.config, sft.ranks.world
    unit = f"rows of {config.data.seq_len} tokens" if config.data.pack else "examples"
    yield (
        f"SFT: {headline(config, sft.model, world)} on {data_name(config)}\n"
        f"     {config.max_steps} steps x {config.data.batch_size} {unit}, into {config.output_dir}"
    )
    yield from forecast(config, sft.model.config, sft.renderer, alone=world == 1)


def report(sft: SFT) -> str:
    """The last lines: what happened, where it lies, what to do next."""
    lines, limit, newest = [], sft.data.limit, sft.steps.newest
    if limit.dropped or limit.truncated:
        lines.append(f"Too long ({limit.name}): {len(limit.dropped)} dropped, {len(limit.truncated)} truncated.")
    figures = "".join(f", {name} {newest[name]:.4f}" for name in ("loss", "val/loss") if name in newest)
    assert sft.ending is not None
    return "\n".join([*lines, last_lines(sft.config, sft.run, sft.version, sft.ending, figures, sft.config.data.env)])
