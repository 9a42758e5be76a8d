"""The trainer's checks before a session: its config and the checkpoint must fit the orchestrator's run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hone.config.base import BaseConfig, dotted, value_of, walk
from hone.config.rl import RLConfig
from hone.errors import UserError
from hone.extensions.split.transport import Session
from hone.model.files import TINY
from hone.runs.checkpoint import misfit, shapes
from hone.runs.settings import flat
from hone.runs.view import CONFIG
from hone.trainer.step import Trainer


def shared_values(config: RLConfig) -> dict[str, Any]:
    """Return the keys and values that must be equal for trainer and orchestrator, for `Session.shared`.

    A model in a local folder is named by its absolute path.
    """
    model = config.model.name
    values: dict[str, Any] = {}
    for key in walk(RLConfig):
        if key.meta.agreed == "always" or (key.meta.agreed == "tiny" and model == TINY):
            value = value_of(config, name := dotted(key.path))
            named = {name: value.model_dump() if isinstance(value, BaseConfig) else value}
            values |= named if key.optional else flat(named)
    if model != TINY and Path(model).exists():
        values["model.name"] = str(Path(model).resolve())
    return values


def check_agreement(config: RLConfig, session: Session, place: str) -> None:
    """Raise UserError if a shared key differs between the session and `config`. `place` names `config` in the error."""
    for key, ours in shared_values(config).items():
        theirs = session.shared.get(key, ours)
        if ours != theirs:
            raise UserError(
                f"{key} is {ours} in {place}, but {theirs} in the orchestrator's "
                f"({Path(session.output_dir) / CONFIG}): set the same value in both files, or give "
                f"--{key.replace('_', '-')}"
            )


def checkpoint_of(session: Session) -> Path | None:
    """Return the session's checkpoint folder; None for the initial model. Raises UserError if the folder is missing."""
    if session.checkpoint is None:
        return None
    folder = Path(session.checkpoint)
    if not folder.is_dir():
        raise UserError(
            f"the run resumes from {folder}, which this trainer does not see: mount the file system that the "
            "orchestrator writes to"
        )
    return folder


def check_checkpoint(folder: Path, trainer: Trainer) -> None:
    """Raise UserError if names, shapes or dtypes of a checkpoint's tensors differ from the trainer's model."""
    if problem := misfit(shapes(folder), trainer.model.trained):
        raise UserError(
            f"{folder} has another model than this trainer ({problem}): start the trainer with the model and the "
            "precision of the run"
        )
