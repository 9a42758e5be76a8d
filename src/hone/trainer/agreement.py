"""What a trainer makes sure of before it takes part in a session: that both roles mean the same run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hone.config.rl import RLConfig
from hone.errors import UserError
from hone.model.files import TINY
from hone.runs.checkpoint import misfit, shapes
from hone.trainer.step import Trainer
from hone.transport import Session

_DECIDE = ("model.", "max_steps", "precision")
"""Of the shared keys those that decide what a trainer computes; the others may be left out of its config."""


def shared_values(config: RLConfig) -> dict[str, Any]:
    """Return the keys, dotted, that orchestrator and trainer must have equal, for `Session.shared`.

    A model in a folder here goes by its whole path; `ckpt` says whether there are checkpoints.
    """
    name = config.model.name
    local = name != TINY and Path(name).exists()
    values: dict[str, Any] = {"model.name": str(Path(name).resolve()) if local else name}
    if name == TINY:
        values |= {f"model.init.{key}": value for key, value in config.model.init.model_dump().items()}
    for key in ("max_steps", "seq_len", "seed", "precision"):
        values[key] = getattr(config, key)
    values["ckpt"] = config.ckpt is not None
    for key, value in (config.ckpt.model_dump(mode="json") if config.ckpt else {}).items():
        values[f"ckpt.{key}"] = value
    return values


def check_agreement(config: RLConfig, session: Session, place: str) -> None:
    """Raise UserError if the session has another value for a shared key; `place` says where `config` comes from.

    A key that is left out here, and decides nothing here, is the session's.
    """
    for key, ours in shared_values(config).items():
        top = key.split(".")[0]
        decides = key.startswith(_DECIDE) or (key == "seed" and config.model.name == TINY)
        set_here = top in config.model_fields_set and not (top == "ckpt" and config.ckpt is None)
        if key not in session.shared or not (decides or set_here):
            continue
        theirs = session.shared[key]
        if ours != theirs:
            raise UserError(
                f"{key} is {_text(ours)} in {place}, but {_text(theirs)} in the orchestrator's "
                f"({Path(session.output_dir) / 'config.toml'}): start both with the same, in both files or by "
                f"--{key.replace('_', '-')}"
            )


def checkpoint_of(session: Session) -> Path | None:
    """Return the folder that the session goes on from; None for the initial model. Raises UserError if it is gone."""
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
    if problem := misfit(shapes(folder), dict(trainer.model.named_parameters())):
        raise UserError(
            f"{folder} is of another model than this trainer's ({problem}): start it with the model and the precision "
            "of the run"
        )


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "set" if value else "unset"
    return str(value)
