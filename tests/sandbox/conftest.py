"""A sandbox, and what it must keep from the code."""

from __future__ import annotations

from collections.abc import Iterator

import canaries as planting
import pytest

from hone.grading import Sandbox


@pytest.fixture(scope="session")
def sandbox() -> Sandbox:
    return Sandbox()


@pytest.fixture(scope="session")
def canaries() -> Iterator[planting.Canaries]:
    with planting.planted() as made:
        yield made
