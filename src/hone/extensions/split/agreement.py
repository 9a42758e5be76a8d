"""The trainer's checks before a session: both roles must have the same run."""

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
    """Return the dotted keys that decide what a trainer computes, for `Session.shared`: both roles must agree on them.

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
    """Raise UserError if the session has another value for a shared key; `place` says where `config` comes from."""
    for key, ours in shared_values(config).items():
        theirs = session.shared.get(key, ours)
        if ours != theirs:
            raise UserError(
                f"{key} is {ours} in {place}, but {theirs} in the orchestrator's "
                f"({Path(session.output_dir) / CONFIG}): start both with the same, in both files or by "
                f"--{key.replace('_', '-')}"
            )


def checkpoint_of(session: Session) -> Path | None:
    """Return the folder that the session continues from; None for the initial model. Raises UserError if it is gone."""
    if session.checkpoint is None:
        return None
    folder = Path(session.checkpoint)
    if not folder.is_dir():
        raise UserError(
            f"the run goes on from {folder}, which this trainer does not see: give it the file system that the "
            "orchestrator writes to"
        )
    return folder


def check_checkpoint(folder: Path, trainer: Trainer) -> None:
    """Raise UserError if a checkpoint is of another model than the trainer's. Reads no tensor."""
    if problem := misfit(shapes(folder), trainer.model.trained):
        raise UserError(
            f"{folder} is of another model than this trainer's ({problem}): start it with the model and the precision "
            "of the run"
        )
