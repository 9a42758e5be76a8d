"""`hone view`: looking at runs in a browser."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from hone.config.base import BaseConfig


class ViewConfig(BaseConfig):
    """Show runs in a browser: curves, and the samples behind them. Reachable from this machine only."""

    positional = "root"

    root: Path = Path("outputs")
    """A run, or a folder that holds runs; also the first word of the command line."""
    port: int = Field(default=8600, ge=1, le=65535)
    """Port on 127.0.0.1."""
