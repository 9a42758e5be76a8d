"""What a run can't start without, and is not here: its model's folder, its task, its data; with what makes or gives it.

What is only to be fetched (a model or a data set of the hub) is not missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.config.sources import load_toml
from hone.environments.loading import configured
from hone.errors import UserError
from hone.model.files import TINY, is_hub_id

RECIPES = ("*.toml", "*/*.toml", "examples/*/*.toml")
"""Where a recipe is looked for that makes a model."""
_WEIGHTS = re.compile(r"(.+)/weights/step_\d+/?")


def missing(config: RLConfig | SFTConfig) -> list[str]:
    """A sentence for each."""
    return [*_model(config.model.name), *_task(config)]


def _model(name: str) -> Iterator[str]:
    if name == TINY or is_hub_id(name) or Path(name).exists():
        return
    run = _WEIGHTS.fullmatch(name)
    if run is None:
        yield f"there is no model folder {name}: `hone init-model {name}` makes a small one, --model.name says another"
        return
    recipe = _recipe_of(run[1])
    how = f"`{recipe}` makes it" if recipe else f"the run that writes to {run[1]} makes it"
    yield f"there is no model folder {name}: {how}"


def _recipe_of(output_dir: str) -> str | None:
    """The command whose run writes there, by a recipe near here; None where none says so."""
    for file in sorted(path for pattern in RECIPES for path in Path().glob(pattern)):
        try:
            table = load_toml(str(file))
        except UserError:  # another's, or half of one
            continue
        if table.get("output_dir") == output_dir:
            return f"{'rl' if 'orchestrator' in table else 'sft'} @ {file}"
    return None


def _task(config: RLConfig | SFTConfig) -> Iterator[str]:
    rl = isinstance(config, RLConfig)
    task = config.orchestrator.env if rl else config.data.env
    if task is not None:
        try:
            configured(task.id, task.args, task.template, f"{'orchestrator' if rl else 'data'}.env.template")
        except UserError as error:
            yield str(error)
    elif isinstance(config, SFTConfig) and config.data.path and not Path(config.data.path).expanduser().exists():
        yield f"there is no file {config.data.path}: --data.path says another"
