"""`hone rl`: reinforcement learning, in this process or in one for each role. Imports nothing heavy to decide that."""

from __future__ import annotations

from hone.config.rl import RLConfig


def run(config: RLConfig) -> int:
    """Trains in the mode of the config; returns the exit code."""
    if config.mode == "split":
        from hone.commands import rl_split

        return rl_split.run(config)
    from hone.commands import rl_colocated

    return rl_colocated.run(config)
