"""The unbroken runs that the contracts compare with, each made once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import recipes
from recipes import Recipe

Cook = Callable[[str, str], Recipe]


@pytest.fixture(scope="session")
def warm_model(tmp_path_factory) -> Path:
    return recipes.warm_model(tmp_path_factory.mktemp("warm"))


@pytest.fixture(scope="session")
def cook(warm_model, guesser, tmp_path_factory) -> Cook:
    """(rl, pool, talk or sft, precision) -> its recipe, with the unbroken run."""
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
