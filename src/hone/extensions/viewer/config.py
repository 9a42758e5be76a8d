"""`hone view` and `hone report`."""

from __future__ import annotations

from pathlib import Path

from pydantic import AliasChoices, Field

from hone.config.base import BaseConfig
from hone.config.shared import ExecutedRun, GradingConfig


class ViewConfig(BaseConfig):
    """Show runs in a browser: curves and samples. Only this machine can open the pages."""

    positional = "root"

    root: Path = Path("outputs")
    """A run, or a folder with runs. It can be the first word of the command line."""
    port: int = Field(default=8600, ge=1, le=65535)
    """Port on 127.0.0.1."""


class ReportConfig(ExecutedRun):
    """Write the card of a run or an evaluation: settings, results and their uncertainty.

    The card is two files in the run's directory: report.html and report.json. The run may still be running, or killed.
    """

    output: Path | None = None
    """Write the files into this folder instead."""
    lenient: bool = True
    """If a completion is incorrect, also let the task grade answers found anywhere in it."""
    seconds: float = Field(default=60.0, gt=0)
    """Time limit of lenient grading, in seconds. The card counts the examples that were left out."""
    as_json: bool = Field(default=False, validation_alias=AliasChoices("as_json", "json"))
    """Print the card's facts as JSON, and write no file."""
    grading: GradingConfig = GradingConfig()
    """Execution of reward functions."""
