"""`hone report RUN`: the run card."""

from __future__ import annotations

from pathlib import Path

from pydantic import AliasChoices, Field

from hone.config.shared import GradingConfig, OneRun


class ReportConfig(OneRun):
    """Write the card of a run, or of an evaluation: what it was, what came of it, how sure that is.

    Two files in its directory: report.html and report.json. A run at work or killed has one, too.
    """

    output: Path | None = None
    """Write the files into this folder instead, such as for a run that can't be written."""
    lenient: bool = True
    """Read completions that the task did not call correct leniently, with its own grader; `--no-lenient` does not."""
    seconds: float = Field(default=60.0, gt=0)
    """Grading for that ends after so many seconds; examples that were not read by then are left out, and counted."""
    as_json: bool = Field(default=False, validation_alias=AliasChoices("as_json", "json"))
    """Print the facts as JSON, and write no file."""
    grading: GradingConfig = GradingConfig()
    """How reward functions are run."""
    trust_local_task: bool = False
    """Read leniently with a task file of the current folder although it is not the one that the run was made with."""
