"""The page of predictions, and the calibration behind it."""

from __future__ import annotations

import pytest

from hone.runs.predictions import Prediction, Scored
from hone.viewer.predictions import calibration, overall


def scored(p: float, true: int, count: int) -> list[Scored]:
    return [Scored(Prediction("m", 1, ">", 0, p), i < true) for i in range(count)]


def test_calibration_by_tenths_of_the_probability() -> None:
    """30 of 40 at 0.9 came true: Wilson's interval (0.598, 0.858) leaves 0.9 out; 5 of 10 at 0.5 is what was said."""
    bins = calibration([*scored(0.9, 30, 40), *scored(0.5, 5, 10), *scored(0.05, 12, 20)])
    assert [(one.low, one.mean, one.true, one.count, one.verdict) for one in bins] == [
        (0.0, pytest.approx(0.05), 0.6, 20, "predicted too low"),
        (0.5, 0.5, 0.5, 10, ""),
        (0.9, pytest.approx(0.9), 0.75, 40, "predicted too high"),
    ]
    assert (bins[2].interval.low, bins[2].interval.high) == (
        pytest.approx(0.598, abs=5e-4),
        pytest.approx(0.858, abs=5e-4),
    )


def test_certainty_is_in_the_last_bin() -> None:
    (one,) = calibration(scored(1.0, 3, 3))
    assert (one.low, one.high) == (0.9, 1.0)


def test_the_score_over_all() -> None:
    assert overall([*scored(0.8, 1, 1), *scored(0.8, 0, 1)]) == (pytest.approx((0.04 + 0.64) / 2), 0.5)
