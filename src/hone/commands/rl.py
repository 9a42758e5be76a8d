"""`hone rl`: reinforcement learning, in this process or in one for each role. Imports nothing heavy to decide that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hone.commands.ask_server import check_server
from hone.config.rl import RLConfig
from hone.orchestrator.placement import visible_gpus

if TYPE_CHECKING:
    from hone.composition.rl import RL


def run(config: RLConfig) -> int:
    """Trains in the mode of the config; returns the exit code: 0, or 130/143 for a signal (the run is saved then)."""
    config = with_mode(config)
    if config.orchestrator.client.base_url is not None:
        check_server(config)
    if config.mode == "split":
        from hone.commands import rl_split

        return rl_split.run(config)
    return train(watched(config)).exit_code


def with_mode(config: RLConfig) -> RLConfig:
    """The config with the mode that it has on this machine's GPUs."""
    if config.mode is not None:
        return config
    automatic = config.model.device == "auto" and config.orchestrator.client.base_url is None
    return config.on_gpus(len(visible_gpus()) if automatic else 0)


def watched(config: RLConfig, refuses: bool = True, **task: Any) -> RL:
    """The run, watched by all that a command attaches; with `refuses` a task that fails its audit is not trained on.

    `task` is what `RL` takes besides: `dataset`, `reward_funcs`, …
    """
    from hone.commands.preflight import Audit
    from hone.commands.training import observers
    from hone.composition.rl import RL

    return RL(config, observers=observers(config, "rl", introduction, Audit(refuses)), **task)


def train(rl: RL) -> RL:
    """Trains to the end, and says what came of it."""
    from hone.commands.training import last_lines

    with rl:
        rl.train()
    if rl.ending is not None:
        print(last_lines(rl.config, rl.run, rl.version, rl.ending, "", rl.config.orchestrator.env))
    return rl


def introduction(rl: RL) -> Iterator[str]:
    """What is about to run, and the plan in short."""
    from hone.commands.forecast import forecast
    from hone.commands.training import headline

    config, orch = rl.config, rl.config.orchestrator
    prompts = orch.batch_size // orch.rollouts_per_example
    yield (
        f"RL: {headline(config, rl.model)} on {orch.env.id}\n"
        f"    {config.max_steps} steps x {prompts} prompts x {orch.rollouts_per_example} completions = "
        f"{config.max_steps * orch.batch_size:,} completions, into {config.output_dir}"
    )
    if config.trainer.ranks > 1:
        yield f"trainer.ranks = {config.trainer.ranks} is of no effect in one process: ranks need --mode split."
    yield from forecast(config, rl.decoder, rl.renderer, rl.env)
