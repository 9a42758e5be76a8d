"""What the runs in several processes share."""

from __future__ import annotations

from pathlib import Path

import pytest
import recipes


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model after a short SFT. Read only."""
    return recipes.warm_model(tmp_path_factory.mktemp("warm"))
