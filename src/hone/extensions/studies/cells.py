"""The cells of a study and their stages; cells may share a stage."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hone.config.base import changed
from hone.config.dump import plain, to_toml
from hone.config.parse import from_settings
from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.config.shared import EnvConfig
from hone.errors import UserError
from hone.extensions.studies.config import CellConfig, StudyConfig
from hone.pages import visible
from hone.runs.provenance import NUMERICS

CONFIGS: dict[str, type[SFTConfig] | type[RLConfig]] = {"sft": SFTConfig, "rl": RLConfig}
OWN = ("seed", "threads", "output_dir", "display", "resume", "detach", "budget")
"""Settings of stages that only the study sets."""
NEUTRAL: dict[str, Any] = {"output_dir": Path("outputs"), "display": "plain", "resume": None, "budget": None}
NEUTRAL |= {"detach": False}
"""Values that override settings of a stage's file. `output_dir` is set when a run starts."""
MODEL = {"model", "model.name"}
"""Keys that set a stage's initial model."""


@dataclass(frozen=True)
class Stage:
    """One run of SFT or RL with a seed. It starts from the last weights of the stage `after`.

    `id` is a digest of config, seed and the stage before, and names the run's folder, so cells share equal stages. The
    digest does not cover the content of files that the config names (a task's code, data, a model).
    """

    kind: str
    config: SFTConfig | RLConfig
    seed: int
    after: Stage | None
    id: str

    @classmethod
    def of(cls, kind: str, config: SFTConfig | RLConfig, seed: int, after: Stage | None) -> Stage:
        facts = [NUMERICS, kind, to_toml(config), seed, after and after.id]
        return cls(kind, config, seed, after, f"{kind}-{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]}")


@dataclass(frozen=True)
class Cell:
    """A variant: its settings, the last stage for each seed, and its task arguments in the evaluation."""

    name: str
    settings: dict[str, Any]
    stages: tuple[Stage, ...]
    eval_args: dict[str, Any]


def cells_of(study: StudyConfig) -> list[Cell]:
    """Return the cells, in the study's order. Raises UserError for invalid settings of a stage."""
    cells = list(study.cells)
    if not cells:
        cells = [CellConfig(name=name, sft=sft, rl=rl) for name, sft, rl in _combinations(study)]
    names = [cell.name for cell in cells]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"two cells are called {twice[0]!r}: give different names, or different values in the grid")
    made = [_cell(study, cell) for cell in cells]
    if study.baseline is not None and study.baseline not in [cell.name for cell in made]:
        raise UserError(f"baseline = {study.baseline!r} is no cell: cells are {', '.join(repr(c.name) for c in made)}")
    return made


def _cell(study: StudyConfig, cell: CellConfig) -> Cell:
    settings = {f"{kind}.{key}": value for kind in CONFIGS for key, value in leaves(getattr(cell, kind))}
    settings |= {f"eval.env.args.{key}": value for key, value in cell.eval_args.items()}
    configs = {kind: _config(study, cell, kind) for kind in CONFIGS if getattr(study, kind) is not None}
    used = {kind: config for kind, config in configs.items() if config is not None}
    if not used:
        raise UserError(f"cell {cell.name!r} has max_steps = 0 in all stages: leave out the cell")
    stages = []
    for seed in range(study.seeds):
        stage: Stage | None = None
        for kind, config in used.items():
            forced = NEUTRAL | {"seed": seed, "threads": study.threads}
            if stage is None and study.model is not None and not settings.keys() & {f"{kind}.{key}" for key in MODEL}:
                forced |= {"model.name": study.model}
            stage = Stage.of(kind, changed(config, forced), seed, stage)
        assert stage is not None
        stages.append(stage)
    return Cell(cell.name, settings, tuple(stages), cell.eval_args)


def _config(study: StudyConfig, cell: CellConfig, kind: str) -> SFTConfig | RLConfig | None:
    """Return a stage's config; None if the cell leaves out the stage."""
    stage, overrides = getattr(study, kind), dict(leaves(getattr(cell, kind)))
    settings = dict(leaves(stage.settings)) | overrides
    if settings.get("max_steps") == 0:
        return None
    for key in settings:
        if key.split(".")[0] in OWN:
            raise UserError(f"cell {cell.name!r}: {kind}.{key} is set by the study: leave it out")
    if kind == "rl" and settings.keys() & MODEL and study.sft is not None and _config(study, cell, "sft") is not None:
        raise UserError(f"cell {cell.name!r}: RL starts from SFT's weights: leave out rl.model.name")
    try:
        return from_settings(CONFIGS[kind], stage.file, settings)
    except UserError as error:
        raise UserError(f"cell {cell.name!r}, {kind}: {error}") from None


def one_line(text: str) -> str:
    """Return the text in one line, with control characters escaped."""
    return visible(text.replace("\n", "\\n").replace("\t", "\\t"))


def task_of(study: StudyConfig, cells: list[Cell]) -> EnvConfig:
    """Return the task that evaluates all cells. Raises UserError if neither `eval.env` nor the cells name one task."""
    if study.eval.env is not None:
        return study.eval.env
    configs = [one.config for cell in cells for stage in cell.stages for one in runs_of(stage)]
    of_rl = [config.orchestrator for config in configs if isinstance(config, RLConfig)]
    tasks = [one.env for one in of_rl] or [config.data.env for config in configs if isinstance(config, SFTConfig)]
    found = {json.dumps(plain(_held_out(task)), sort_keys=True): _held_out(task) for task in tasks if task is not None}
    if len(found) != 1 or any(len(one.envs) > 1 for one in of_rl):
        raise UserError("the cells have no task, or several tasks: set eval.env to the task for the evaluation")
    return next(iter(found.values()))


def _held_out(env: EnvConfig) -> EnvConfig:
    """Return the task without `demo_noise`, an argument for demonstrations."""
    task = EnvConfig.model_validate({name: getattr(env, name) for name in EnvConfig.model_fields})
    return changed(task, {"args": {name: v for name, v in task.args.items() if name != "demo_noise"}})


def runs_of(stage: Stage | None) -> Iterator[Stage]:
    """Yield the stages before `stage`, in order, and `stage`."""
    if stage is not None:
        yield from runs_of(stage.after)
        yield stage


def leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _combinations(study: StudyConfig) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield (name, settings of SFT, settings of RL) for every combination in the grid."""
    axes = [(kind, key, values) for kind in CONFIGS for key, values in leaves(getattr(study.grid, kind))]
    for kind, key, values in axes:
        if not isinstance(values, list) or not values:
            raise UserError(f"grid.{kind}.{key} is {values!r}, but should be a list of values")
    for chosen in itertools.product(*(values for _, _, values in axes)):
        settings: dict[str, dict[str, Any]] = {"sft": {}, "rl": {}}
        for (kind, key, _), value in zip(axes, chosen, strict=True):
            settings[kind][key] = value
        words = [f"{label(f'{kind}.{key}', axes)} {value}" for (kind, key, _), value in zip(axes, chosen, strict=True)]
        yield one_line(", ".join(words)), settings["sft"], settings["rl"]


def label(name: str, axes: list[tuple[str, str, Any]]) -> str:
    """Return the shortest last part of a dotted name that names no other axis: `lr` for `rl.trainer.optim.lr`."""
    names = [f"{kind}.{key}".split(".") for kind, key, _ in axes]
    parts = name.split(".")
    for count in range(1, len(parts)):
        if [one[-count:] for one in names].count(parts[-count:]) == 1:
            return ".".join(parts[-count:])
    return name
