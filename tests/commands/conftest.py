"""Recorded runs that the tests of replay, verify and diff share; each of those copies what it changes."""

from __future__ import annotations

import shutil
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


@pytest.fixture
def copied(rl_run, tmp_path) -> Path:
    """A copy of the RL run, to tamper with."""
    return shutil.copytree(rl_run, tmp_path / "copied")


@pytest.fixture(scope="session")
def sft_run(bench) -> Path:
    """Read only."""
    return bench.sft("sft")
