"""A loss and advantages of the user's own: by name, and handed over by a program."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hone.cli import main
from hone.errors import UserError
from hone.loops.rl import RL
from hone.runs import Run

SETTINGS = {
    "max_steps": 2,
    "seq_len": 64,
    "orchestrator.env.args": {"num_train_examples": 99},
    "orchestrator.batch_size": 8,
    "orchestrator.rollouts_per_example": 4,
    "orchestrator.sampling.max_tokens": 12,
    "trainer.optim.lr": 1e-3,
}
POWER = 2.0
SOURCE = """
def softer(logprobs, old_logprobs, advantages, lengths):
    return -(logprobs - old_logprobs).exp() * advantages / 2.0


def ranks(rewards, valid):
    return rewards.argsort(axis=1).argsort(axis=1) - (rewards.shape[1] - 1) / 2
"""


def in_a_program():
    """Functions that no import finds."""

    def softer(logprobs, old_logprobs, advantages, lengths):
        return -(logprobs - old_logprobs).exp() * advantages / POWER

    def ranks(rewards, valid):
        return rewards.argsort(axis=1).argsort(axis=1) - (rewards.shape[1] - 1) / 2

    return {"loss": softer, "advantages": ranks}


def averaged(logprobs, old_logprobs, advantages, lengths):
    return softened(logprobs, old_logprobs, advantages).mean()


def detached(logprobs, old_logprobs, advantages, lengths):
    return softened(logprobs, old_logprobs, advantages).detach()


def softened(logprobs, old_logprobs, advantages):
    return -(logprobs - old_logprobs).exp() * advantages


def wrong_shape(rewards, valid):
    return np.zeros(3)


@pytest.fixture(scope="module")
def settings(tiny_model_dir: Path) -> dict:
    return SETTINGS | {"model.name": str(tiny_model_dir)}


def run(settings: dict, out: Path, **own) -> Path:
    with RL(**settings, output_dir=out, **own) as rl:
        rl.train()
    return out


@pytest.mark.needs("reproduce")
def test_by_name_and_handed_over_they_train_alike_and_the_run_keeps_them(settings, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    named = run(settings, tmp_path / "named", loss="mine.py:softer", advantages="mine.py:ranks")
    given = run(settings, tmp_path / "given", **in_a_program())
    assert all((named / name).read_bytes() == (given / name).read_bytes() for name in ("metrics.jsonl", "hashes.jsonl"))
    assert set(Run(given).rollouts(0)["advantage"].to_pylist()) == {-1.5, -0.5, 0.5, 1.5}
    kept = (given / "algorithm.py").read_text()
    assert "POWER = 2.0" in kept and kept.count("def ") == 2
    assert {"loss", "advantages"} <= set(Run(given).info["sources"])
    assert main(["replay", str(given), "--trust-local-task"]) == 0, "the run brings the functions"
    assert main(["verify", str(named), "--steps", "1", "--trust-local-task"]) == 0
    assert main(["replay", str(given)]) == main(["verify", str(named), "--steps", "1"]) == 2


def test_what_is_no_function_or_gives_no_advantages_is_refused(settings, tmp_path):
    with pytest.raises(UserError, match="loss is not a named function"):
        RL(**settings, output_dir=tmp_path / "a", loss=lambda *_: None)
    with pytest.raises(UserError, match="has no function sofer"):
        RL(**settings, output_dir=tmp_path / "a", loss=f"{__file__}:sofer")
    with pytest.raises(UserError, match=r"\(2, 4\); it gave \(3,\)"):
        run(settings, tmp_path / "b", advantages=wrong_shape)
    for number, wrong in enumerate((averaged, detached)):
        with pytest.raises(UserError, match="a number for each token"):
            run(settings, tmp_path / f"c{number}", loss=wrong, advantages=in_a_program()["advantages"])
