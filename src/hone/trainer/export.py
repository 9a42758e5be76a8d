"""Writing the policy: as a folder that transformers, vLLM and `hf upload` take as it is, and on its way to a server."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch

from hone.model.chat import ChatRenderer
from hone.model.decoder import Decoder
from hone.model.hf import MAX_SHARD_BYTES, save_model
from hone.trainer.parallel import whole
from hone.trainer.step import Trainer

GATHERED_BYTES = 10**9
"""Largest file of weights in shards: so much of them rank 0 holds whole at once."""


def export_weights(
    folder: Path,
    model: Decoder,
    renderer: ChatRenderer,
    card: str,
    parameters: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Write config, safetensors, tokenizer with its chat template, and the model card (README.md) into `folder`.

    `parameters` by name stand in for the model's own: a copy of an earlier version.
    """
    save_model(model, folder, parameters=parameters)
    add_tokenizer(folder, renderer, card)


def add_tokenizer(folder: Path, renderer: ChatRenderer, card: str) -> None:
    """Write what belongs to weights in `folder`: the tokenizer with its chat template, and the model card."""
    renderer.save(folder)
    (folder / "README.md").write_text(card, encoding="utf-8")


def save_policy(folder: Path, trainer: Trainer, max_bytes: int | None = None) -> None:
    """Write the trainer's model into `folder` as `save_model` does; all ranks together, rank 0 writes.

    Weights in shards are gathered file by file, of at most `max_bytes`, and forgotten; nobody holds them all.
    """
    ranks = trainer.ranks
    limit = max_bytes or (MAX_SHARD_BYTES if ranks.alone else GATHERED_BYTES)
    save_model(trainer.model, folder, limit, whole=whole, write=ranks.first)
    ranks.barrier()


class Spool:
    """Weights on their way to a server: versions of `model` in `folder`, of which the last two stay."""

    def __init__(self, folder: Path, model: Decoder) -> None:
        self.folder, self.model = folder, model
        self._versions: list[Path] = []

    def put(self, version: int) -> Path:
        """Write the model as it is now; returns the folder. A server that still reads the one before finds it."""
        folder, fresh = self.folder / f"step_{version}", self.folder / "new"
        save_model(self.model, fresh)
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)
        self._versions = [*(path for path in self._versions if path != folder), folder]
        for old in self._versions[:-2]:
            shutil.rmtree(old)
        self._versions = self._versions[-2:]
        return folder
