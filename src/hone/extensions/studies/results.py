"""The results of a study so far: each cell's numbers per seed, read from the runs' files, and comparisons."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from hone.config.shared import GradingConfig
from hone.errors import UserError
from hone.extensions.studies.analysis import Effect, at_equal_cost, effects
from hone.extensions.studies.cells import Cell, Stage, runs_of
from hone.extensions.studies.config import StudyConfig
from hone.extensions.studies.running import SECONDS, Tasks, values_of
from hone.runs.reader import Run
from hone.runs.summary import Summary
from hone.runs.view import read_lines

COSTS: tuple[str, ...] = ("examples", "tokens", "seconds")
"""Costs of stages. Examples are demonstrations or prompts, tokens are trained or sampled, seconds are CPU seconds."""
LENIENT_SECONDS = 600.0
"""Time limit for lenient reading of one evaluation."""
NOT_RUN = "not run yet"


@dataclass(frozen=True)
class SeedResult:
    """Results of a cell with one seed. `values` are by held-out example. `correct` and `lenient` are shares of right
    answers. `costs` are sums over all stages. `last` and `curve` are kind and training curve of the last stage.
    """

    seed: int
    values: dict[int, float]
    correct: float
    costs: dict[str, float]
    curve: list[float]
    last: str
    lenient: float | None = None

    @property
    def mean(self) -> float:
        return mean(self.values.values())


@dataclass(frozen=True)
class Row:
    """A cell: its finished seeds, their mean, and the cell's difference from the baseline."""

    cell: Cell
    seeds: list[SeedResult]
    mean: float | None
    effect: Effect | None


@dataclass(frozen=True)
class EqualCost:
    """A cell with RL, compared with SFT alone at equal cost. `sft_alone` is None if SFT was not tried at this cost."""

    cell: str
    cost: str
    value: float
    sft_alone: float | None


@dataclass(frozen=True)
class Results:
    """The finished runs of a study, compared with the cell `baseline`. `missing` maps unfinished runs to reasons."""

    study: StudyConfig
    rows: list[Row]
    baseline: str
    equal: list[EqualCost]
    missing: Mapping[str, str]


def results_of(
    study: StudyConfig, cells: list[Cell], tasks: Tasks, failed: Mapping[str, str], reads: bool = True
) -> Results:
    """Read and compare the finished runs. `failed` maps task ids to reasons; for `reads`, see `right_leniently`."""
    seconds = {line["id"]: line["processor"] for line in read_lines(study.output_dir / SECONDS)}
    measured = {}
    for cell in cells:
        found = [_seed_result(study, tasks, cell, stage, seconds, reads) for stage in cell.stages]
        measured[cell.name] = [one for one in found if one is not None]
    missing = {task.title: failed.get(task.id, NOT_RUN) for task in tasks.values() if not task.done}
    return compared(study, cells, measured, missing)


def compared(
    study: StudyConfig, cells: list[Cell], measured: Mapping[str, list[SeedResult]], missing: Mapping[str, str]
) -> Results:
    """Compare each cell with the baseline, over the seeds and examples that they share."""
    baseline = study.baseline or cells[0].name
    pairs = {cell.name: _paired(measured[baseline], measured[cell.name]) for cell in cells if cell.name != baseline}
    shared = [name for name, (_, other_SE) in pairs.items() if other_SE.size]
    found = dict(zip(shared, effects([pairs[name] for name in shared]), strict=True))
    rows = []
    for cell in cells:
        seeds = measured[cell.name]
        average = mean(one.mean for one in seeds) if seeds else None
        rows.append(Row(cell, seeds, average, found.get(cell.name)))
    return Results(study, rows, baseline, _equal(rows), missing)


def _seed_result(
    study: StudyConfig, tasks: Tasks, cell: Cell, stage: Stage, seconds: Mapping[str, float], reads: bool
) -> SeedResult | None:
    """Return a seed's results; None if the evaluation is not done, or if no completion could be graded."""
    task = tasks.evaluation(cell, stage)
    if not task.done or not (values := values_of(task.folder, study.eval.metric)):
        return None
    costs = dict.fromkeys(COSTS, 0.0)
    for one in runs_of(stage):
        for cost, amount in _costs(tasks.folder(one), one).items():
            costs[cost] += amount
        costs["seconds"] += seconds.get(one.id, 0.0)
    correct = mean(values_of(task.folder, "correct").values())
    lenient = right_leniently(task.folder, study.eval.grading, reads) if study.eval.lenient else None
    metric = "loss" if stage.kind == "sft" else "reward/mean"
    lines = Run(tasks.folder(stage)).metric_lines()
    curve = [float(line[metric]) for line in lines if line.get(metric) is not None]
    return SeedResult(stage.seed, values, correct, costs, curve, stage.kind, lenient)


def right_leniently(folder: Path, grading: GradingConfig, reads: bool = True) -> float | None:
    """Return the share of an evaluation's completions that are right if read leniently; None if not all could be read.

    The evaluation's card stores the result. If `reads` is false, only a stored result is used.
    """
    from hone.extensions.viewer.card.facts import facts_of
    from hone.extensions.viewer.card.files import stored, write_card
    from hone.extensions.viewer.card.lenient import read_recorded
    from hone.extensions.viewer.card.measures import Evaluated, Leniency

    def read(run: Summary, evaluated: Sequence[Evaluated]) -> Leniency:
        before = stored(run, evaluated)
        if not reads or (not before.why_not and len(before.examples) == before.asked):
            return before
        return read_recorded(run, evaluated, grading, LENIENT_SECONDS)

    try:
        card = facts_of(folder, read)
        write_card(card, folder)
    except (UserError, OSError):  # the study reports its other results
        return None
    all_read = card.lenient and len(card.leniency.examples) == card.leniency.asked
    return card.lenient["lenient"].after.mean if all_read else None


def _costs(folder: Path, stage: Stage) -> dict[str, float]:
    lines = Run(folder).metric_lines()

    def known(name: str) -> list[float]:
        return [line[name] for line in lines if line.get(name) is not None]

    states = ("trained", "filtered", "failed")
    prompts = sum(sum(known(f"groups/{state}")) for state in states)
    examples = max(known("examples/total"), default=0) if stage.kind == "sft" else prompts
    return {"examples": float(examples), "tokens": float(max(known("tokens/total"), default=0))}


def _paired(one: list[SeedResult], other: list[SeedResult]) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of `one` and of `other` as arrays [seeds, examples], for common seeds and examples."""
    mine, theirs = ({result.seed: result.values for result in results} for results in (one, other))
    seeds = [seed for seed in mine if seed in theirs]
    examples = (
        sorted(set.intersection(*(set(side[seed]) for side in (mine, theirs) for seed in seeds))) if seeds else []
    )
    values = [[side[seed][example] for example in examples] for side in (mine, theirs) for seed in seeds]
    both_2SE = np.array(values, dtype=np.float64).reshape(2, len(seeds), len(examples))
    return both_2SE[0], both_2SE[1]


def _equal(rows: list[Row]) -> list[EqualCost]:
    """Compare each cell, if its last stage is RL, to the SFT-only cells with the same SFT settings."""
    done = [(row, row.mean) for row in rows if row.mean is not None]
    found = []
    for row, value in done:
        if row.seeds[0].last != "rl":
            continue
        alone = [(r, v) for r, v in done if r.seeds[0].last == "sft" and _imitated(r) == _imitated(row)]
        for cost in COSTS if len(alone) > 1 else ():
            here, *spent = (mean(one.costs[cost] for one in r.seeds) for r in (row, *(r for r, _ in alone)))
            found.append(EqualCost(row.cell.name, cost, value, at_equal_cost(spent, [v for _, v in alone], here)))
    return found


def _imitated(row: Row) -> dict[str, Any]:
    return {key: value for key, value in row.cell.settings.items() if key[:4] == "sft." and key != "sft.max_steps"}


def to_csv(results: Results) -> str:
    """Return CSV with a row per cell and seed, without times: a repetition on an equal CPU gives the same text."""
    keys = list(dict.fromkeys(key for row in results.rows for key in row.cell.settings))
    shares = ["right", "lenient"] if results.study.eval.lenient else ["right"]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["cell", *keys, "seed", results.study.eval.metric, *shares, "held_out", *COSTS[:2]])
    for row in results.rows:
        for one in row.seeds:
            settings = [row.cell.settings.get(key, "") for key in keys]
            right = [f"{share:.6f}" if share is not None else "" for share in (one.correct, one.lenient)][: len(shares)]
            figures = [f"{one.mean:.6f}", *right, len(one.values)]
            writer.writerow([row.cell.name, *settings, one.seed, *figures, *(f"{one.costs[c]:.0f}" for c in COSTS[:2])])
    return out.getvalue()
