"""Writing the policy as a folder that transformers, vLLM and `hf upload` take as it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from hone.model.chat import ChatRenderer
from hone.model.decoder import Decoder
from hone.model.hf import save_model


def export_weights(
    folder: Path,
    model: Decoder,
    renderer: ChatRenderer,
    card: str,
    parameters: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Writes config, safetensors, tokenizer with its chat template, and the model card (README.md) into `folder`.

    `parameters` by name stand in for the model's own: a copy of an earlier version.
    """
    save_model(model, folder, parameters=parameters)
    renderer.save(folder)
    (folder / "README.md").write_text(card, encoding="utf-8")
