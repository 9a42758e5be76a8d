"""`hone replay | verify | diff | regrade`: re-executing, comparing and re-scoring recorded runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, AliasChoices, Field, model_validator

from hone.config.base import BaseConfig
from hone.config.shared import ExecutedRun, GradingConfig
from hone.errors import UserError


class ReplayConfig(ExecutedRun):
    """Retrain an RL run from its recorded rollouts, and check that the weights are equal. Writes nothing into the run.

    Uses no environment and samples nothing: checks only the training, in a fraction of the run's time.
    """

    output_dir: Path | None = None
    """Write the last replayed weights into this folder, in Hugging Face layout."""
    model: str | None = None
    """The initial model, if it has moved since the run: a folder, or a hub id."""


class VerifyConfig(ExecutedRun):
    """Check a run's files against their hashes, and execute random steps of the run again.

    The result is written beside the run, as `<run>.verify.json`. Writes nothing into the run.
    """

    steps: int = Field(default=3, ge=0)
    """Number of random steps to execute again; 0 checks the files only."""
    seed: int | None = Field(default=None, ge=0)
    """Seed that chooses the steps, to repeat a verification; by default random."""
    model: str | None = None
    """The initial model, if it has moved since the run: a folder, or a hub id."""


class DiffConfig(BaseConfig):
    """Compare two runs: their configs, then the first step and quantity that differ.

    Exit code 0 if their records of common steps are equal, 1 if not, 3 if they have different numerics.
    """

    positional = "a b"

    a: str
    """A run's directory, or its id if it lies under `outputs`; also the first word of the command line."""
    b: str
    """Directory or id of the other run; also the second word of the command line."""


def _span(text: str | None) -> str | None:
    """Return `text` if it is a span of steps: `A:B`, `A:` or `:B`."""
    if text is not None:
        first, colon, last = text.partition(":")
        numbers = all(not end or end.isdecimal() for end in (first, last))
        if not colon or not numbers or (first and last and int(first) >= int(last)):
            raise UserError(f"{text!r} is no span of steps: write 60:80 for the steps 60 to 79, 60: or :80")
    return text


Span = Annotated[str | None, AfterValidator(_span)]
"""Steps A to B - 1, as `A:B`; either end may be left out."""


class GraderConfig(BaseConfig):
    """The task that grades."""

    bare = "id"

    id: str | None = None
    """Task id; by default the run's task, with its arguments overridden by `args`."""
    args: dict[str, Any] = {}
    """Keyword arguments of the task's `load_environment`, as JSON, or key by key (`--env.args.mode two_part`)."""
    template: dict[str, Any] | None = None
    """`answer` and `info` for the task, made from the recorded ones: `answer = "{info.target}"`."""


class JsonConfig(BaseConfig):
    """The result as JSON."""

    bare = "file"

    file: Path | None = None
    """Write the JSON into this file; by default, it is printed instead of the report."""


class RegradeConfig(ExecutedRun):
    """Grade a run's completions with another grader, to see if the model changed or only the parsing of its answers.

    Needs neither model nor GPU. Writes nothing into the run, which may still be running.
    """

    env: GraderConfig = GraderConfig()
    """The task that grades."""
    steps: Span = None
    """Only these steps: `60:80` is 60 to 79."""
    from_: Span = Field(default=None, validation_alias=AliasChoices("from_", "from"))
    """Steps before the change, `A:B`; by default the best-rewarded tenth or, if the last is as good, the first."""
    to: Span = None
    """Steps after the change; by default the last tenth."""
    grading: GradingConfig = GradingConfig()
    """Execution of reward functions."""
    as_json: JsonConfig | None = Field(default=None, validation_alias=AliasChoices("as_json", "json"))
    """The result as JSON, printed or written."""
    output: Path | None = None
    """Write the new scores into this Parquet file, a row for each completion."""

    @model_validator(mode="after")
    def _check_spans(self) -> RegradeConfig:
        if (self.from_ is None) != (self.to is None):
            given, lacking = ("from", "to") if self.to is None else ("to", "from")
            raise UserError(f"--{given} {self.from_ or self.to} needs --{lacking}: add --{lacking} A:B")
        return self
