"""Writes the policy into a folder, for transformers, for `hf upload`, or for a server to load."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from hone.model.chat import ChatRenderer
from hone.model.decoder import Decoder
from hone.model.hf import MAX_SHARD_BYTES, reserve_files, save_model
from hone.trainer.parallel import whole
from hone.trainer.step import Trainer

GATHERED_BYTES = 10**9
"""Largest file of sharded weights, so that rank 0 gathers at most this many bytes at once."""


def save_weights(folder: Path, model: Decoder, parameters: Mapping[str, torch.Tensor] | None = None) -> None:
    """Write config, safetensors and any adapter into `folder`. `parameters` replace the model's parameters by name."""
    save_model(model, folder, parameters=parameters)
    if model.lora is not None:
        _save_adapter(model, folder, parameters)


def _save_adapter(model: Decoder, folder: Path, *arguments: Any, **how: Any) -> None:
    from hone.model.lora import ADAPTER, save_adapter

    save_adapter(model, folder / ADAPTER, *arguments, **how)


def add_tokenizer(folder: Path, renderer: ChatRenderer, card: str) -> None:
    renderer.save(folder)
    (folder / "README.md").write_text(card, encoding="utf-8")


def save_policy(trainer: Trainer, folder: Path, max_bytes: int | None = None, reserved: bool = False) -> None:
    """Write the trainer's model and any adapter into `folder`. All ranks must call this; rank 0 writes.

    Sharded weights are gathered for one file (`max_bytes`) at a time. `reserved`: fill the files of `reserve_policy`.
    """
    ranks = trainer.ranks
    save_model(trainer.model, folder, max_bytes or _limit(trainer), whole=whole, write=ranks.first, reserved=reserved)
    if trainer.model.lora is not None:
        _save_adapter(trainer.model, folder, whole=whole, write=ranks.first)
    ranks.barrier()


def reserve_policy(trainer: Trainer, folder: Path) -> None:
    """Make the model's files in `folder` (on `/dev/shm`) at full size. Raises OSError if there is no room."""
    reserve_files(trainer.model, folder, _limit(trainer))


def _limit(trainer: Trainer) -> int:
    return MAX_SHARD_BYTES if trainer.ranks.alone else GATHERED_BYTES


class Spool:
    """Stores the last two versions of `model` for a server, which may still read the older version.

    Weights go to the folder `memory`. Once `memory` is full, `no_room` is called, and weights go to `folder`. If
    `adapter_alone` is true, only the adapter is written, into `folder`. `dtype`: of the weights; default: the model's.
    """

    def __init__(
        self,
        folder: Path,
        model: Decoder,
        memory: Path | None = None,
        no_room: Callable[[], None] = lambda: None,
        adapter_alone: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.folder, self.model, self.memory, self.no_room = folder, model, memory, no_room
        self.adapter_alone, self.dtype = adapter_alone, dtype
        self._versions: list[Path] = []

    def put(self, version: int) -> Path:
        if self.memory is not None and not self.adapter_alone:
            try:
                return self._put(self.memory, version, reserved=True)
            except OSError:
                shutil.rmtree(self.memory / "new", ignore_errors=True)
                self.memory = None
                self.no_room()
        return self._put(self.folder, version)

    def _put(self, root: Path, version: int, reserved: bool = False) -> Path:
        folder, fresh = root / f"step_{version}", root / "new"
        for old in self._versions[:-1]:
            if reserved and not fresh.exists():
                old.rename(fresh)  # to be written over
            shutil.rmtree(old, ignore_errors=True)
        if reserved:
            reserve_files(self.model, fresh, dtype=self.dtype)
        if self.adapter_alone:
            fresh.mkdir(parents=True, exist_ok=True)
            _save_adapter(self.model, fresh)
        else:
            save_model(self.model, fresh, dtype=self.dtype, reserved=reserved)
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)
        self._versions = [*(path for path in self._versions[-1:] if path != folder), folder]
        return folder
