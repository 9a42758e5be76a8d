"""The model card of what `sft` and `rl` export."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hone.config.shared import RunConfig
from hone.model.card import model_card
from hone.model.presets import TINY


def weights_card(config: RunConfig, kind: str, step: int, task: str, facts: Mapping[str, object]) -> str:
    """Card of `weights/step_N`. It names no folder of this machine, so that equal runs write equal cards.

    The command is the one that repeats the run from its own `config.toml`.
    """
    name = config.model.name
    is_hub_id = name != TINY and not Path(name).exists()
    return model_card(
        title=f"{name.split('/')[-1] if is_hub_id else 'model'}-{kind}",
        method=kind,
        seed=config.seed,
        command=f"hone {kind} @ config.toml",
        base_model=name if is_hub_id else None,
        task=task,
        step=step,
        facts={**facts, "precision": config.precision},
        from_nothing=name == TINY,
    )
