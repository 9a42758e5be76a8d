"""`hone rl`: reinforcement learning in this process, or in one process per role. Imports nothing heavy."""

from __future__ import annotations

import contextlib

from hone.config.base import changed
from hone.config.rl import RLConfig
from hone.config.shared import transport_weights
from hone.errors import Halt, UserError
from hone.extension import gathered, lacking, load
from hone.hardware import visible_gpus
from hone.runs.display import say
from hone.runs.outputs import with_own_folder
from hone.runs.view import SPOOL

SECONDS = 10.0
"""Seconds to wait for a server's answer before the model is loaded; a slower server is checked after that."""


def run(config: RLConfig) -> int:
    """Train in the config's mode; return the exit code: 0, or 130/143 after a signal (the run is saved)."""
    chosen, config = config.mode, with_mode(with_own_folder(config, f"rl-{config.task_name}"))
    for one in gathered("OBSERVERS", {}).values():
        if observer := one.early and load(one.module, one.function)(config, False):
            observer.check_config(config)
    if chosen is None and config.mode == "colocated" and config.display != "none" and (count := _gpus(config)) > 1:
        others = f"--mode split samples on one and trains on {count - 1}, --inference.replicas N samples on N"
        if count > 2 and not _can_have_ranks(config):
            others = f"--inference.replicas {count - 1} samples on {count - 1} and trains on the last"
        say(f"One of {count} GPUs is used: {others}")
    runner = gathered("MODES", {}).get(config.mode or "")
    if runner is None and config.mode != "colocated":
        why = lacking("MODES", str(config.mode)) or "it comes with an extension that is not installed"
        raise UserError(
            f"mode {config.mode} can't run: {why}. Install it, or train in one process, with one rank and one server"
        )
    if config.orchestrator.client.base_url is not None:
        check_server(config)
    if runner is not None:
        return runner(config)
    from hone.commands.training import train_rl

    return train_rl(config).exit_code


def with_mode(config: RLConfig, here: bool = True) -> RLConfig:
    """Set the mode: one process, unless the config sets a mode, several ranks or several servers.

    In mode split, also set `trainer.ranks` if it is unset: one rank for each GPU that no server uses, if model and
    optimiser work with several ranks. `here`: count the GPUs of this machine.
    """
    several, ranks = config.trainer.ranks > 1 or len(config.server_urls) > 1, config.trainer.ranks
    mode = config.mode or ("split" if several else "colocated")
    if mode == "split" and "ranks" not in config.trainer.model_fields_set:
        gpus = here * _gpus(config) - config.inference.replicas * config.inference.gpus
        ranks = gpus if gpus > 1 and _can_have_ranks(config) else 1
    return changed(config, {"mode": mode, "trainer.ranks": ranks})


def _can_have_ranks(config: RLConfig) -> bool:
    from hone.model.shape import shape_of

    try:
        config.trainer.optim.check_ranks(2)
        model = config.model
        return shape_of(model.name, model.init, model.implementation).implementation == "hone"
    except UserError:  # the optimiser needs one rank, or the model is missing (reported when it is loaded)
        return False


def _gpus(config: RLConfig) -> int:
    """Count the run's GPUs; 0 if the config names a device or a server."""
    automatic = config.model.device == "auto" and config.orchestrator.client.base_url is None
    return len(visible_gpus()) if automatic else 0


def check_server(config: RLConfig) -> None:
    """Raise UserError, before anything is loaded, if no server answers at a URL, or it refuses this run's weights."""
    from hone.client import Endpoint, api_key
    from hone.loops.reach import connect_to_server

    client, weights = config.orchestrator.client, config.output_dir / SPOOL
    if config.mode == "split":
        weights = transport_weights(config.transport_path) / "none"
    key = api_key(client.api_key_var, "--orchestrator.client.api-key-var")
    for url in client.urls:
        with contextlib.suppress(Halt):
            endpoint = Endpoint(url, key, timeout=min(SECONDS, client.timeout))
            connect_to_server(endpoint, config.model.name, None, config.seq_len, weights, None)
