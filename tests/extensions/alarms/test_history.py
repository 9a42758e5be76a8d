"""Windows over a run's metrics."""

import math

import pytest

from hone.extensions.alarms.history import History, Window


def history(values, window=2, name="m") -> History:
    made = History(window)
    for step, value in enumerate(values):
        made.append(step, {name: value} if value != "missing" else {"other": 1.0})
    return made


def test_windows_are_means_of_the_last_steps_with_their_standard_error():
    made = history([1.0, 3.0, 2.0, 2.0])
    assert not made.at("m", 0) and made.at("m", 1) == Window(2.0, pytest.approx(1.0))
    assert made.first("m").mean == 2.0 and made.now("m").mean == 2.0
    assert (made.series("m").lowest, made.series("m").highest) == (1, 2) and made.values("m") == [1.0, 3.0, 2.0, 2.0]


def test_what_a_step_does_not_have_is_unknown_and_half_a_window_is_enough():
    made = history(["missing", 4.0, None, 6.0, "missing", "missing"])
    assert [made.at("m", i).mean for i in range(1, 5)] == [4.0, 4.0, 6.0, 6.0] and not made.now("m")
    assert math.isnan(made.latest("m")) and not made.now("never") and made.series("never").highest == -1
    assert made.series("m").lowest == 1 and made.series("m").highest == 3


def test_a_window_that_happens_to_scatter_little_is_no_surer_than_the_steps_before():
    calm = history([0.0, 1.0] * 5 + [0.5, 0.5, 0.5])
    assert calm.now("m") == Window(0.5, pytest.approx(math.sqrt((9 + 0.25) / 12 / 2 / 2)))
    wild = history([0.5] * 10 + [0.0, 1.0])
    assert wild.now("m").error == pytest.approx(0.5), "nor is one that scatters more"
