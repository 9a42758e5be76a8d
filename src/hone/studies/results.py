"""What a study has found so far: the figures of each cell and seed, from the files of its runs."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from hone.config.study import StudyConfig
from hone.runs.files import read_lines
from hone.runs.reader import Run
from hone.studies.analysis import Curve, Effect, at_equal_cost, effects, fit_curve
from hone.studies.cells import Cell, Stage, runs_of
from hone.studies.running import SECONDS, evaluation_of, rewards, tasks_of

COSTS: tuple[str, ...] = ("examples", "tokens", "seconds")
"""What stages cost: demonstrations and prompts, tokens that were trained or sampled, seconds of the processor."""


@dataclass(frozen=True)
class Measured:
    """One cell and seed: the value of each held-out example, what its stages cost, the training curve of the last."""

    seed: int
    values: dict[int, float]
    correct: float
    costs: dict[str, float]
    curve: list[float]
    last: str


@dataclass(frozen=True)
class Row:
    """A cell: what came of each seed that is done, its mean, and its difference from the baseline."""

    cell: Cell
    seeds: list[Measured]
    mean: float | None
    effect: Effect | None


@dataclass(frozen=True)
class Equal:
    """A cell with RL beside SFT alone at the same cost: None where SFT was not tried at that cost."""

    cell: str
    cost: str
    value: float
    sft_alone: float | None


@dataclass(frozen=True)
class Results:
    """All of it. `baseline` is the name of the cell that others are compared with."""

    study: StudyConfig
    rows: list[Row]
    baseline: str
    curve: Curve | None
    equal: list[Equal]
    missing: dict[str, str]


def results_of(study: StudyConfig, cells: list[Cell], failed: dict[str, str] | None = None) -> Results:
    """Read what is done. Cells are compared over the seeds and examples that they share with the baseline."""
    name = study.baseline or cells[0].name
    seconds = {line["id"]: line["processor"] for line in read_lines(study.output_dir / SECONDS)}
    measured = {cell.name: _measured(study, cells, cell, seconds) for cell in cells}
    pairs = {cell.name: _paired(measured[name], measured[cell.name]) for cell in cells if cell.name != name}
    compared = [cell for cell, (_, other) in pairs.items() if other.size]
    found = dict(zip(compared, effects([pairs[cell] for cell in compared]), strict=True))
    rows = []
    for cell in cells:
        own = measured[cell.name]
        average = mean(mean(one.values.values()) for one in own) if own else None
        rows.append(Row(cell, own, average, found.get(cell.name)))
    done = [(row.cell.settings[study.x], row.mean) for row in rows if study.x is not None and row.mean is not None]
    curve = fit_curve([x for x, _ in done], [y for _, y in done]) if done else None
    tasks = tasks_of(study, cells)
    missing = {task.title: (failed or {}).get(task.id, "not run yet") for task in tasks.values() if not task.done}
    return Results(study, rows, name, curve, _equal(rows), missing)


def _measured(study: StudyConfig, cells: list[Cell], cell: Cell, seconds: dict[str, float]) -> list[Measured]:
    found = []
    for stage in cell.stages:
        task = evaluation_of(study, cells, stage)
        if not task.done:
            continue
        costs = dict.fromkeys(COSTS, 0.0)
        for one in runs_of(stage):
            for cost, amount in _costs(study.output_dir / "runs" / one.id, one, seconds).items():
                costs[cost] += amount
        last = study.output_dir / "runs" / stage.id
        values, correct = rewards(task.folder, study.eval.metric), rewards(task.folder, "correct")
        found.append(Measured(stage.seed, values, mean(correct.values()), costs, _curve(last, stage), stage.kind))
    return found


def _costs(folder: Path, stage: Stage, seconds: dict[str, float]) -> dict[str, float]:
    lines = Run(folder).metrics().to_pydict()
    tokens = max((value for value in lines.get("tokens/total", []) if value is not None), default=0)
    if stage.kind == "sft":
        examples = max((value for value in lines.get("examples/total", []) if value is not None), default=0)
    else:
        states = [lines.get(f"groups/{state}", []) for state in ("trained", "filtered", "failed")]
        examples = sum(value for column in states for value in column if value is not None)
    return {"examples": float(examples), "tokens": float(tokens), "seconds": seconds.get(stage.id, 0.0)}


def _curve(folder: Path, stage: Stage) -> list[float]:
    """Return the training curve: the reward of RL, the loss of SFT."""
    lines = Run(folder).metrics().to_pydict()
    values = lines.get("loss" if stage.kind == "sft" else "reward/mean", [])
    return [float(value) for value in values if value is not None]


def _paired(one: list[Measured], other: list[Measured]) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of both, [seeds, examples], for the seeds and examples that both have."""
    mine, theirs = {m.seed: m.values for m in one}, {m.seed: m.values for m in other}
    seeds = [seed for seed in mine if seed in theirs]
    shared = set.intersection(*(set(found[seed]) for found in (mine, theirs) for seed in seeds)) if seeds else set()
    pick = [[found[seed][index] for index in sorted(shared)] for found in (mine, theirs) for seed in seeds]
    array = np.array(pick, dtype=np.float64).reshape(2, len(seeds), len(shared))
    return array[0], array[1]


def _equal(rows: list[Row]) -> list[Equal]:
    """Compare each cell that ends with RL with the cells of SFT alone that otherwise have the same settings."""
    done = [row for row in rows if row.mean is not None]
    found = []
    for row in (row for row in done if row.seeds[0].last == "rl"):
        alone = [other for other in done if other.seeds[0].last == "sft" and _teaching(other) == _teaching(row)]
        for cost in COSTS if len(alone) > 1 else ():
            spent = [mean(one.costs[cost] for one in other.seeds) for other in alone]
            own = mean(one.costs[cost] for one in row.seeds)
            assert row.mean is not None
            value = at_equal_cost(spent, [other.mean or 0.0 for other in alone], own)
            found.append(Equal(row.cell.name, cost, row.mean, value))
    return found


def _teaching(row: Row) -> dict[str, Any]:
    """Return what a cell's SFT imitates: its settings of SFT, but for their amount."""
    return {key: value for key, value in row.cell.settings.items() if key[:4] == "sft." and key != "sft.max_steps"}


def to_csv(results: Results) -> str:
    """Return a row for each cell and seed. It has no times: a repetition on the same kind of CPU gives the same."""
    keys = list(dict.fromkeys(key for row in results.rows for key in row.cell.settings))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["cell", *keys, "seed", results.study.eval.metric, "correct", "held_out", "examples", "tokens"])
    for row in results.rows:
        for one in row.seeds:
            value: list[Any] = [row.cell.name, *(row.cell.settings.get(key, "") for key in keys), one.seed]
            value += [f"{mean(one.values.values()):.6f}", f"{one.correct:.6f}", len(one.values)]
            writer.writerow([*value, *(f"{one.costs[cost]:.0f}" for cost in COSTS[:2])])
    return out.getvalue()
