"""`hone rl`: reinforcement learning, in this process or in one for each role. Imports nothing heavy to decide that."""

from __future__ import annotations

import contextlib

from hone.config.rl import RLConfig
from hone.config.shared import transport_weights
from hone.errors import Halt
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
        from hone.commands.split import run_split

        return run_split(config)
    from hone.commands.training import train_rl

    return train_rl(config).exit_code


def with_mode(config: RLConfig) -> RLConfig:
    """Return the config with the mode that it has on this machine's GPUs: `split` on two or more, all but one of them
    the trainer's. Where a mode, a server or a device is named, that is what was meant.
    """
    if config.mode is not None:
        return config
    automatic = config.model.device == "auto" and config.orchestrator.client.base_url is None
    count = len(visible_gpus()) if automatic else 0
    if count < 2:
        return config.model_copy(update={"mode": "colocated"})
    trainer = config.trainer
    ranks = trainer.ranks if "ranks" in trainer.model_fields_set else count - 1
    return config.model_copy(update={"mode": "split", "trainer": trainer.model_copy(update={"ranks": ranks})})


def check_server(config: RLConfig) -> None:
    """Raise UserError, before anything is loaded, if no server answers, or if it takes no weights of this run."""
    from hone.inference.endpoint import Endpoint, api_key
    from hone.orchestrator.reach import reach

    client, weights = config.orchestrator.client, config.output_dir / SPOOL
    if config.mode == "split":
        weights = transport_weights(config.transport_path) / "none"
    key = api_key(client.api_key_var, "--orchestrator.client.api-key-var")
    endpoint = Endpoint(config.server_url, key, timeout=min(SECONDS, client.timeout))
    with contextlib.suppress(Halt):
        reach(endpoint, config.model.name, None, config.seq_len, weights, None)
