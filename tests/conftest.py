"""What every test stands on: one thread, no network, and a tiny model made from nothing."""

from __future__ import annotations

import os
from pathlib import Path

# Before torch is imported anywhere: OpenMP reads these once.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["WANDB_MODE"] = "offline"

import pytest


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder in Hugging Face layout with `hone/tiny` of seed 0 and its tokenizer. Read only: tests share it."""
    from hone.model.hf import load_model, save_model
    from hone.model.tokenizer import save_tokenizer

    folder = tmp_path_factory.mktemp("tiny-model")
    save_model(load_model("hone/tiny", seed=0), folder)
    save_tokenizer(folder)
    return folder
