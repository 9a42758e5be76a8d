"""Where the processes of a run find each other: names of folders that configs and the transport agree on."""

from __future__ import annotations

from pathlib import Path

TRANSPORT = ".transport"
"""Folder in the run's own where the transport is, unless the config says where."""


def transport_weights(path: Path) -> Path:
    """The folder of a transport below which servers take weights."""
    return path / "weights"
