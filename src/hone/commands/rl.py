"""`hone rl`: reinforcement learning, in this process or in one for each role. Imports nothing heavy to decide that."""

from __future__ import annotations

from hone.config.rl import RLConfig
from hone.orchestrator.placement import visible_gpus


def run(config: RLConfig) -> int:
    """Trains in the mode of the config; returns the exit code."""
    config = with_mode(config)
    if config.mode == "split":
        from hone.commands import rl_split

        return rl_split.run(config)
    from hone.commands import rl_colocated

    return rl_colocated.run(config)


def with_mode(config: RLConfig) -> RLConfig:
    """The config with a mode: without a word of the user, `split` on two or more GPUs, all but one the trainer's.

    Where it samples from a server that is named, or on a device that is named, one process is what was meant.
    """
    if config.mode is not None:
        return config
    gpus = visible_gpus() if config.model.device == "auto" and config.orchestrator.client.base_url is None else []
    if len(gpus) < 2:
        return config.model_copy(update={"mode": "colocated"})
    ranks = len(gpus) - 1 if "ranks" not in config.trainer.model_fields_set else config.trainer.ranks
    return config.model_copy(update={"mode": "split", "trainer": config.trainer.model_copy(update={"ranks": ranks})})
