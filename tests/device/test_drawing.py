"""Tokens drawn from logits on the fake GPU."""

from __future__ import annotations

import pytest

from .conftest import report

pytestmark = pytest.mark.device


def test_draws_are_those_of_the_cpu_and_no_more_is_sorted_than_must_be() -> None:
    """With deterministic kernels; sorted, or looked through for the likeliest, are plain ones and three ways to cut."""
    assert report("drawing.py") == {"draws": [0, 0, 0], "sorts": [[0, 0], [0, 1], [1, 0], [0, 1]]}
