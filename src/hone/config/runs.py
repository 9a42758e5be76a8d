"""`hone runs list | show | stop | continue | attach | ledger | rm`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from hone.config.base import BaseConfig
from hone.config.shared import OneRun


class RunsListConfig(BaseConfig):
    """List the training runs under a folder: state, latest numbers, and the command that continues each."""

    positional = "root"

    root: Path = Path("outputs")
    """Folder with runs; also the first word of the command line."""
    all: bool = False
    """Also list evaluations, and runs that a later run moved to `.previous/`."""
    ids: bool = False
    """Show the id of each run."""


class RunsShowConfig(OneRun):
    """Print one page on a run: its settings, state and files, and what to do next."""

    events: int = Field(default=5, ge=0)
    """Number of last events to print; alarms are printed separately."""


class RunsStopConfig(OneRun):
    """End a running run: it finishes its step, saves a checkpoint, and can be resumed."""

    now: bool = False
    """Kill the run at once (SIGKILL): steps after its last checkpoint are lost."""


class RunsContinueConfig(OneRun):
    """Continue a run that an alarm has paused."""


class RunsRmConfig(BaseConfig):
    """Delete a run or an evaluation with its checkpoints and weights. Other files in its folder stay."""

    positional = "run"

    run: str
    """Run directory, or id of a run under `outputs`; also the first word of the command line."""
    yes: bool = False
    """Do not ask for confirmation."""


class RunsAttachConfig(OneRun):
    """Show a running run until it ends; Ctrl-C leaves it running."""

    display: Literal["auto", "plain"] = "auto"
    """`auto`: live table on a terminal, plain lines elsewhere."""


class RunsLedgerConfig(OneRun):
    """List the final state of every draw of an RL run. A draw is an example taken in a step."""

    state: Literal["trained", "filtered", "failed", "retired", "surplus", "cut"] | None = None
    """Only draws in this state. `filtered`: equal rewards; `failed`: not graded; `retired` by a curriculum; `surplus`:
    not needed by a refill; `cut` by a refill of an older version of hone.
    """
    step: int | None = Field(default=None, ge=0)
    """Only the draws of this step."""
    limit: int | None = Field(default=None, ge=0)
    """Number of last rows to print (default: 40; with --jsonl all rows); 0 prints only the summary."""
    jsonl: bool = False
    """Print a line with a JSON object for each draw, without a summary."""
