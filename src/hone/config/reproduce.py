"""`hone replay | verify | diff`: re-executing and comparing recorded runs."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from hone.config.base import BaseConfig


class ReplayConfig(BaseConfig):
    """Retrain an RL run from its recorded rollouts, and check that the same weights come out. Writes nothing into it.

    No environment and no sampling: this checks the training half of a run, in a fraction of its time.
    """

    positional: ClassVar[str | None] = "run"

    run: str = "outputs"
    """Its directory, or its id if it lies under `outputs`; also the first word of the command line."""
    to_step: int | None = Field(default=None, ge=1)
    """End with this version; by default the last one."""
    output_dir: Path | None = None
    """Write the weights that were reached into this folder, in Hugging Face layout."""
    model: str | None = None
    """Where the initial model is now, if not where the run found it: a folder, or a hub id."""


class VerifyConfig(BaseConfig):
    """Check a run's files against their hashes, and execute random steps of it again.

    The result is written beside the run, as `<run>.verify.json`; nothing is written into it.
    """

    positional: ClassVar[str | None] = "run"

    run: str = "outputs"
    """Its directory, or its id if it lies under `outputs`; also the first word of the command line."""
    steps: int = Field(default=3, ge=0)
    """How many steps to execute again, chosen by chance; 0 checks the files only."""
    seed: int | None = Field(default=None, ge=0)
    """Seed of the choice, to repeat a verification; by default one that nobody could foresee."""
    model: str | None = None
    """Where the initial model is now, if not where the run found it: a folder, or a hub id."""


class DiffConfig(BaseConfig):
    """Compare two runs: their configs, then the first step and the first quantity in which they part.

    Exit code 0 if what they recorded of the steps they share is equal, 1 if it isn't.
    """

    positional: ClassVar[tuple[str, ...]] = ("a", "b")

    a: str
    """A run's directory, or its id if it lies under `outputs`; also the first word of the command line."""
    b: str
    """The same of another run; also the second word of the command line."""
