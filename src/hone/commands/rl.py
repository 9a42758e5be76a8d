"""`hone rl`: reinforcement learning, in this process or in one for each role. Imports nothing heavy to decide that."""

from __future__ import annotations

from hone.commands.ask_server import check_server
from hone.config.rl import RLConfig
from hone.orchestrator.placement import visible_gpus


def run(config: RLConfig) -> int:
    """Trains in the mode of the config; returns the exit code."""
    config = with_mode(config)
    if config.orchestrator.client.base_url is not None:
        check_server(config)
    if config.mode == "split":
        from hone.commands import rl_split

        return rl_split.run(config)
    from hone.commands import rl_colocated

    return rl_colocated.run(config)


def with_mode(config: RLConfig) -> RLConfig:
    """The config with the mode that it has on this machine's GPUs."""
    if config.mode is not None:
        return config
    automatic = config.model.device == "auto" and config.orchestrator.client.base_url is None
    return config.on_gpus(len(visible_gpus()) if automatic else 0)
