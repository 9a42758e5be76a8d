"""The folder in which runs are made, and a run that others are compared with."""

from __future__ import annotations

from pathlib import Path

import pytest
from recorded import Bench


@pytest.fixture(scope="session")
def bench(tmp_path_factory, tiny_model_dir) -> Bench:
    return Bench(tmp_path_factory.mktemp("bench"), tiny_model_dir)


@pytest.fixture(scope="session")
def rl_run(bench) -> Path:
    """Read only."""
    return bench.rl("rl")
