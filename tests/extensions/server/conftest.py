"""The server that these tests share, and weights for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import until
from real_server import Served, random_model, serving

from hone.model.hf import save_model
from hone.model.tokenizer import save_tokenizer


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    """Shared by tests that leave it as it was: nothing in flight, version 0."""
    with serving() as server:
        yield server


@pytest.fixture(autouse=True)
def _nothing_left_in_flight(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "served" in request.fixturenames:
        service = request.getfixturevalue("served").service
        until(lambda: not service.running and not service.engine.busy, "the engine is idle")


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with weights of the served shape in it: step_1."""
    root = tmp_path_factory.mktemp("run") / "weights"
    save_model(random_model(seed=1), root / "step_1")
    save_tokenizer(root / "step_1")
    return root
