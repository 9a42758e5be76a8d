"""The unbroken runs that the contracts compare with, each made once."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import recipes
from recipes import Recipe

Cook = Callable[[str, str], Recipe]


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
    """(rl, cut, pool, refill, mix, talk, lora or sft, precision) -> its recipe, with the unbroken run."""
    cooked: dict[tuple[str, str], Recipe] = {}

    def of(kind: str, precision: str) -> Recipe:
        if (kind, precision) not in cooked:
            model = guesser if kind == "talk" else warm_model
            args = recipes.sft(precision) if kind == "sft" else getattr(recipes, kind)(model, precision)
            cooked[kind, precision] = Recipe.cook(args, tmp_path_factory.mktemp(f"{kind}-{precision}"))
        return cooked[kind, precision]

    return of


@pytest.fixture(scope="session")
def rl(cook) -> Recipe:
    return cook("rl", "fp32")


@pytest.fixture(scope="session")
def sft(cook) -> Recipe:
    return cook("sft", "bf16_linear")
