"""The learning curve: what is drawn are the run's numbers, and the same run gives the same bytes."""

import numpy as np
import pytest

from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.errors import UserError
from hone.runs.curve import reward_curve, smoothed
from hone.runs.writer import RunWriter


@pytest.fixture
def runs(tmp_path):
    sft = SFTConfig(output_dir=tmp_path / "sft", max_steps=20, display="none", data={"path": "x"})  # type: ignore[arg-type]
    with RunWriter.start(sft, "sft", []) as run:
        for step in range(20):
            run.log_step(step, {"loss": 3 / (1 + step)} | ({"val/loss": 3 / (1 + step)} if step % 5 == 0 else {}))
    with RunWriter.start(RLConfig(output_dir=tmp_path / "rl", max_steps=20, display="none"), "rl", []) as run:
        for step in range(20):
            held_out = {"reward/mean": 0.5, "ci95/low": 0.45, "ci95/high": 0.56}
            evals = {f"eval/reverse-text/{name}": value for name, value in held_out.items()} if step % 10 == 0 else {}
            run.log_step(step, {"reward/mean": 0.4 + step / 50} | evals)
    return tmp_path / "sft", tmp_path / "rl"


def test_smoothed_is_a_centred_mean():
    assert smoothed(np.array([0.0, 3.0, 6.0, 0.0]), 3).tolist() == [1.5, 3.0, 3.0, 3.0]
    assert smoothed(np.array([2.0]), 5).tolist() == [2.0]


def test_same_run_same_bytes(runs, tmp_path):
    pictures = [reward_curve(runs, tmp_path / name, "Reverse-text").read_bytes() for name in ("a.svg", "b.svg")]
    assert pictures[0] == pictures[1] and pictures[0].startswith(b"<?xml")
    assert b"<dc:date>" not in pictures[0]
    assert reward_curve(runs[1:], tmp_path / "c.svg").read_bytes() != pictures[0]


def test_what_is_drawn(runs, tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    figures, save = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k)))
    assert reward_curve(runs, tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    loss, reward = figures[0].axes
    assert np.allclose(loss.lines[0].get_ydata(), 3 / (1 + np.arange(20)))
    assert loss.lines[2].get_xdata().tolist() == [0, 5, 10, 15]
    assert np.allclose(reward.lines[0].get_ydata(), 0.4 + np.arange(20) / 50)
    assert reward.lines[0].get_alpha() < 0.5 and reward.lines[1].get_linewidth() > reward.lines[0].get_linewidth()
    (interval,) = [np.array(c.get_segments()) for c in reward.collections]
    assert interval[:, :, 0].tolist() == [[0, 0], [10, 10]] and np.allclose(interval[0, :, 1], [0.45, 0.56])
    assert [axes.get_ylabel() for axes in (loss, reward)] == ["loss (nats per token)", "reward"]
    assert reward.get_ylim() == (0, 1.04)


def test_nothing_to_draw(tmp_path):
    with pytest.raises(UserError, match="is not a run of hone"):
        reward_curve([tmp_path], tmp_path / "a.svg")
