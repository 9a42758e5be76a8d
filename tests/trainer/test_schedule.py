import pytest

from hone.config.shared import SchedulerConfig
from hone.trainer.schedule import lr_at


def lrs(steps: int, **kwargs) -> list[float]:
    return [lr_at(s, 1.0, SchedulerConfig(**kwargs), steps) for s in range(steps)]


def test_warmup_then_constant():
    assert lrs(6, warmup_steps=4) == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 1.0])


def test_linear_reaches_the_floor_at_the_last_update():
    assert lrs(5, type="linear", min_ratio=0.2) == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])
    assert lrs(6, type="linear", warmup_steps=2) == pytest.approx([0.5, 1.0, 1.0, 2 / 3, 1 / 3, 0.0])


def test_cosine_halfway_is_the_mean_of_peak_and_floor():
    assert lrs(5, type="cosine", min_ratio=0.1) == pytest.approx([1.0, 0.8681980515, 0.55, 0.2318019485, 0.1])


def test_a_warmup_longer_than_the_run_stays_a_warmup():
    assert lrs(3, warmup_steps=10, type="linear") == pytest.approx([0.1, 0.2, 0.3])
