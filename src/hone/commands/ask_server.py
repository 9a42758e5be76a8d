"""Asking a server whether a run can use it, before `hone rl` loads anything. Imports nothing heavy."""

from __future__ import annotations

import contextlib
import shlex
import socket
from pathlib import Path
from urllib.parse import urlsplit

from hone.config.rl import RLConfig
from hone.config.shared import transport_weights
from hone.errors import Halt, UserError
from hone.model.files import TINY
from hone.runs.outputs import SPOOL

SECONDS = 10.0
"""How long one answer may take. A server that is slower is asked again when all is loaded."""


def check_server(config: RLConfig) -> None:
    """Raise UserError if no server answers on this machine, or if it serves another model or takes no weights of ours.

    The message has the command that starts one for the run.
    """
    url = config.server_url
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((host, port), timeout=SECONDS).close()
    except OSError as error:
        if host not in ("localhost", "::1") and not host.startswith("127."):
            return  # a proxy may be in between
        split = "add `--inference @ FILE.toml` to have one started with the run"
        here = "leave out --orchestrator.client.base-url to sample in this process"
        raise UserError(
            f"no server answers at {url} ({error.strerror or error}): start one with `{_command(config, port)}`, or "
            f"{split if config.mode == 'split' else here}"
        ) from None
    from hone.inference.endpoint import Endpoint, api_key
    from hone.orchestrator.reach import reach

    client = config.orchestrator.client
    key = api_key(client.api_key_var, "--orchestrator.client.api-key-var")
    endpoint = Endpoint(url, key, timeout=min(SECONDS, client.timeout))
    try:
        reach(endpoint, config.model.name, None, config.seq_len, _weights_folder(config), _parameters(config))
    except Halt:
        return
    except UserError as error:
        raise UserError(f"{error} (a server for this run: `{_command(config, port)}`)") from None


def _weights_folder(config: RLConfig) -> Path:
    """Return a folder below the one from which the server takes the run's weights."""
    return transport_weights(config.transport_path) / "none" if config.mode == "split" else config.output_dir / SPOOL


def _parameters(config: RLConfig) -> int | None:
    """Count the parameters of a model by its config; return None if that is not on this machine."""
    if config.model.name != TINY and not Path(config.model.name).is_dir():
        return None
    from hone.planning.shape import Shape

    with contextlib.suppress(UserError, OSError):
        return Shape.of(config.model.name, config.model.init).parameters
    return None


def _command(config: RLConfig, port: int) -> str:
    """Return the command that starts a server for the run."""
    words = ["inference", "--model.name", config.model.name]
    if config.mode != "split":
        folders = (config.output_dir, *config.output_dir.parents)
        words += ["--weights-root", str(next(folder for folder in folders if folder.is_dir()))]
    elif config.transport.path is not None:
        words += ["--transport.path", str(config.transport.path)]
    else:
        words += ["--output-dir", str(config.output_dir)]
    words += ["--port", str(port)] if port != 8000 else []
    words += ["--precision", config.precision] if config.precision != "bf16_linear" else []
    key = config.orchestrator.client.api_key_var
    return shlex.join([*words, *(["--api-key-var", key] if key else [])])
