"""A cheap reward for models with random weights."""

from typing import Any


def letters(completion: Any) -> float:
    """Reward a completion by its letters: in hardly two of a group alike."""
    return sum(map(ord, completion[-1]["content"])) % 97 / 97
