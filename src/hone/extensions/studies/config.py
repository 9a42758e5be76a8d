"""`hone study @ study.toml`: variants of a recipe over seeds, and a test of each difference."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from hone.config.base import BaseConfig, Meta
from hone.config.shared import DEFAULT_PRECISION, EnvConfig, GradingConfig, Precision
from hone.errors import UserError


class StageConfig(BaseConfig):
    """A stage of every cell: a config file of `hone sft` or `hone rl`, and settings that override it."""

    bare = "file"

    file: Path
    """The stage's config file."""
    settings: dict[str, Any] = {}
    """Settings that override the file, in the same notation."""


class CellConfig(BaseConfig):
    """One cell: settings that override both stages."""

    name: str
    """Name of the cell in tables and plots."""
    sft: dict[str, Any] = {}
    """Settings of SFT; `max_steps = 0` leaves the stage out."""
    rl: dict[str, Any] = {}
    """Settings of RL; `max_steps = 0` leaves the stage out."""
    eval_args: dict[str, Any] = {}
    """Task arguments in this cell's evaluation, added to `eval.env.args`, such as a system prompt."""

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not name.strip() or not name.isprintable():
            raise ValueError(f"{name!r} should be one line of printable text")
        return name


class GridConfig(BaseConfig):
    """Lists of values; every combination of values is a cell."""

    sft: dict[str, Any] = {}
    """Settings of SFT; each value is a list."""
    rl: dict[str, Any] = {}
    """Settings of RL; each value is a list."""


class StudyEvalConfig(BaseConfig):
    """The evaluation of all cells, on the same held-out examples; only their `eval_args` differ."""

    env: Annotated[EnvConfig | None, Meta("evaluation")] = None
    """Task of the evaluation; by default the task of RL or, without RL, of SFT's demonstrations."""
    num_examples: Annotated[int, Meta("evaluation")] = Field(default=256, ge=2)
    """Number of held-out examples."""
    rollouts_per_example: int = Field(default=1, ge=1)
    """Completions per example."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Most new tokens per completion; by default the largest limit of any cell's RL, else 256."""
    temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature; 0 is greedy."""
    metric: Annotated[Literal["reward", "correct"], Meta("evaluation")] = "reward"
    """Measure for comparing cells."""
    lenient: bool = False
    """Also grade incorrect completions leniently, as `hone report` does, to show how much of a difference is format."""
    precision: Precision = DEFAULT_PRECISION
    """`fp32`, `bf16_linear` (matrix products in bf16) or `bf16`, for all cells."""
    grading: GradingConfig = GradingConfig()
    """Execution of reward functions."""


class StudyBudgetConfig(BaseConfig):
    """Time limit for starting runs."""

    bare = "hours"

    hours: Annotated[float, Meta("machine")] = Field(gt=0)
    """Wall-clock hours until this command stops starting runs; started runs are still finished."""


class StudyConfig(BaseConfig):
    """Train variants over several seeds, evaluate all on the same examples, and test each difference from a baseline.

    The same command continues a stopped study; finished runs are not repeated.
    """

    headings = "Study; Evaluation; Machine"

    sft: Annotated[StageConfig | None, Meta("study")] = None
    """First stage of each cell. Cells with equal SFT settings share SFT runs."""
    rl: Annotated[StageConfig | None, Meta("study")] = None
    """Second stage of each cell; starts from the weights of the first stage, if any."""
    model: Annotated[str | None, Meta("study", 1)] = None
    """Model of the first stage; by default the model in the stage's file."""
    grid: Annotated[GridConfig, Meta("study")] = GridConfig()
    """Every combination of these values is a cell: `[grid.rl.trainer.optim]`, `lr = [1e-4, 3e-4]`."""
    cells: Annotated[list[CellConfig], Meta("study")] = []
    """List of cells, instead of a grid."""
    baseline: Annotated[str | None, Meta("study")] = None
    """Name of the cell to compare others with; by default the first cell."""
    seeds: Annotated[int, Meta("study")] = Field(default=3, ge=1)
    """Number of seeds (0, 1, …); each cell is trained once per seed."""
    eval: StudyEvalConfig = StudyEvalConfig()
    """The evaluation of all cells."""
    jobs: Annotated[int | None, Meta("machine")] = Field(default=None, ge=1)
    """Number of simultaneous runs; by default as many as the cores allow, or 1 on a GPU."""
    threads: Annotated[int, Meta("machine")] = Field(default=1, ge=1)
    """CPU threads of each run."""
    budget: StudyBudgetConfig | None = None
    """Time limit for starting runs."""
    output_dir: Annotated[Path, Meta("study", 1)] = Path("outputs/study")
    """Folder for runs and results: study.html, study.md, results.csv, figures."""

    @model_validator(mode="after")
    def _check(self) -> StudyConfig:
        if self.sft is None and self.rl is None:
            raise UserError("a study has no stage: set sft.file, rl.file, or both")
        if bool(self.cells) == bool(self.grid.sft or self.grid.rl):
            raise UserError("a study has either a grid or a list of cells: set one of the two")
        for kind in ("sft", "rl"):
            used = getattr(self.grid, kind) or any(getattr(cell, kind) for cell in self.cells)
            if used and getattr(self, kind) is None:
                raise UserError(f"cells set keys of {kind}, but the study has no such stage: set {kind}.file")
        return self
