"""A sandbox, and what it must keep from the code."""

from __future__ import annotations

from collections.abc import Iterator

import canaries as planting
import pytest

from hone.grading import Limits, Sandbox


@pytest.fixture(scope="session")
def sandbox() -> Sandbox:
    """With time enough for whatever is not meant to take too much of it, however busy the machine."""
    return Sandbox(Limits(cpu_seconds=60, clock_seconds=300))


@pytest.fixture(scope="session")
def canaries() -> Iterator[planting.Canaries]:
    with planting.planted() as made:
        yield made
