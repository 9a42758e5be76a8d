"""`hone rl`: reinforcement learning, in this process or in one for each role. Imports nothing heavy to decide that."""

from __future__ import annotations

import contextlib
from pathlib import Path

from hone.config.rl import RLConfig
from hone.config.shared import transport_weights
from hone.errors import Halt, UserError
from hone.model.files import TINY
from hone.orchestrator.placement import visible_gpus
from hone.runs.outputs import SPOOL

SECONDS = 10.0
"""How long an answer of a server may take, before anything is loaded; a slower one is asked again when all is."""


def run(config: RLConfig) -> int:
    """Train in the mode of the config; return the exit code: 0, or 130/143 for a signal (the run is saved then)."""
    config = with_mode(config)
    if config.orchestrator.client.base_url is not None:
        check_server(config)
    if config.mode == "split":
        from hone.commands import rl_split

        return rl_split.run(config)
    from hone.commands.training import train_rl

    return train_rl(config).exit_code


def with_mode(config: RLConfig) -> RLConfig:
    """Return the config with the mode that it has on this machine's GPUs."""
    if config.mode is not None:
        return config
    automatic = config.model.device == "auto" and config.orchestrator.client.base_url is None
    return config.on_gpus(len(visible_gpus()) if automatic else 0)


def check_server(config: RLConfig) -> None:
    """Raise UserError if no server answers, or if it serves another model or takes no weights of this run."""
    from hone.inference.endpoint import Endpoint, api_key
    from hone.orchestrator.reach import reach

    client, model, parameters = config.orchestrator.client, config.model, None
    if model.name == TINY or Path(model.name).is_dir():
        from hone.planning.shape import Shape

        with contextlib.suppress(UserError, OSError):
            parameters = Shape.of(model.name, model.init).parameters
    key = api_key(client.api_key_var, "--orchestrator.client.api-key-var")
    endpoint = Endpoint(config.server_url, key, timeout=min(SECONDS, client.timeout))
    weights = config.output_dir / SPOOL
    if config.mode == "split":
        weights = transport_weights(config.transport_path) / "none"
    with contextlib.suppress(Halt):
        reach(endpoint, model.name, None, config.seq_len, weights, parameters)
