import pytest
import torch

from hone.config.shared import SchedulerConfig
from hone.trainer.schedule import lr_at


def lrs(steps: int, **kwargs) -> list[float]:
    return [lr_at(s, 1.0, SchedulerConfig(**kwargs), steps) for s in range(steps)]


def test_linear_reaches_the_floor_at_the_last_update():
    assert lrs(5, type="linear", min_ratio=0.2) == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])


@pytest.mark.parametrize("warmup", [0, 3])
def test_without_a_floor_the_decay_is_that_of_transformers(warmup: int):
    from torch.optim import SGD
    from transformers import get_cosine_schedule_with_warmup, get_linear_schedule_with_warmup, get_wsd_schedule

    made = {
        "linear": lambda optimizer: get_linear_schedule_with_warmup(optimizer, warmup, 20),
        "cosine": lambda optimizer: get_cosine_schedule_with_warmup(optimizer, warmup, 20),
        "wsd": lambda optimizer: get_wsd_schedule(optimizer, warmup, 4, num_training_steps=20, decay_type="linear"),
    }
    for kind, make in made.items():
        theirs = rates_of(make(SGD([torch.zeros(1, requires_grad=True)], lr=1.0)), 20)
        assert lrs(20, type=kind, warmup_steps=warmup)[warmup:] == pytest.approx(theirs[warmup:], abs=1e-12), kind


def rates_of(scheduler, steps: int) -> list[float]:
    """Return the learning rate of each step of a schedule of torch."""
    found = []
    for _ in range(steps):
        found.append(scheduler.get_last_lr()[0])
        scheduler.optimizer.step(), scheduler.step()
    return found


def test_cosine_halfway_is_the_mean_of_peak_and_floor():
    assert lrs(5, type="cosine", min_ratio=0.1) == pytest.approx([1.0, 0.8681980515, 0.55, 0.2318019485, 0.1])


def test_wsd_keeps_the_peak_and_falls_over_the_last_steps():
    floor = {"type": "wsd", "min_ratio": 0.2, "decay_ratio": 0.4}
    assert lrs(10, warmup_steps=2, **floor) == pytest.approx([0.5, 1, 1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2])
    assert lrs(3, type="wsd", decay_ratio=0.01, min_ratio=0.2) == pytest.approx([1.0, 1.0, 0.2]), "at least one step"
    # A warm-up that reaches into the decay leaves it what is left; one decay of all steps is linear.
    assert lrs(10, warmup_steps=8, **floor) == pytest.approx(lrs(10, warmup_steps=8, type="linear", min_ratio=0.2))
    assert lrs(10, type="wsd", decay_ratio=1.0) == lrs(10, type="linear")


def test_a_warmup_as_long_as_the_run_leaves_no_decay():
    for kind in ("linear", "cosine", "wsd"):
        assert lrs(3, warmup_steps=2, type=kind) == [0.5, 1.0, 1.0]
    assert lrs(3, warmup_steps=10, type="linear") == pytest.approx([0.1, 0.2, 0.3])
