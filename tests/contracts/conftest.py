"""The unbroken runs that the contracts compare with, each made once."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import recipes
from recipes import Recipe

Cook = Callable[..., Recipe]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep one in HONE_EVERY cases of each long contract: the first, and each so many after it, as they stand here."""
    every, seen = int(os.environ.get("HONE_EVERY", "1")), Counter()
    left_out = []
    for item in items:
        if item.path.parent == Path(__file__).parent and item.get_closest_marker("long"):
            test = item.nodeid.partition("[")[0]
            if seen[test] % every:
                left_out.append(item)
            seen[test] += 1
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def cook(warm_model, guesser, tmp_path_factory) -> Cook:
    """(a kind of `recipes.KINDS`, precision, further flags) -> its recipe, with the unbroken run."""

    @cache
    def cooked(kind: str, precision: str, *more: str) -> Recipe:
        args = recipes.argv(kind, guesser if kind == "talk" else warm_model, precision)
        return Recipe.cook([*args, *more], tmp_path_factory.mktemp(f"{kind}-{precision}"))

    return lambda kind, precision="fp32", *more: cooked(kind, precision, *more)


@pytest.fixture(scope="session")
def rl(cook) -> Recipe:
    return cook("rl")


@pytest.fixture(scope="session")
def sft(cook) -> Recipe:
    return cook("sft", "bf16_linear")
