"""A resume that can't go on is refused in one sentence, with every file as it was."""

import pytest
import torch

from hone.config.rl import RLConfig
from hone.config.shared import ResumeConfig
from hone.errors import UserError
from hone.runs import Run
from hone.runs.writer import RunWriter


def config(folder, **settings) -> RLConfig:
    return RLConfig(**{"output_dir": folder, "max_steps": 8, "display": "plain"} | settings)


def start(folder, **settings) -> RunWriter:
    return RunWriter.start(config(folder, **settings), "rl", ["hone", "rl"])


def save(run: RunWriter, step: int) -> None:
    with run.weights_dir(step) as folder:
        (folder / "model.safetensors").write_text(f"version {step}")
    run.save_checkpoint(step, {"model": {"w": torch.full((2,), float(step))}}, {"step": step})


def steps(run: RunWriter, first: int, last: int) -> None:
    """A loop as hone's are, with a checkpoint at every other step."""
    for step in range(first, last):
        if step % 2 == 0 and step > first:
            save(run, step)
        run.rollouts(step, [{"step": step, "text": f"sample {step}"}])
        run.log_step(step, {"reward/mean": step / 7})


def state_of(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"w": torch.zeros(3)}, r"w has shape \[2\], not \[3\]"),
        ({"w": torch.zeros(2), "layers.2.q_norm": torch.zeros(2)}, r"layers\.2\.q_norm is missing"),
        ({"w": torch.zeros(2, dtype=torch.bfloat16)}, r"w is torch\.float32, not torch\.bfloat16"),
    ],
)
def test_a_checkpoint_of_another_model_changes_nothing(tmp_path, parameters, problem):
    with start(tmp_path) as run:
        steps(run, 0, 6)
    before = state_of(tmp_path)
    changed = config(tmp_path, resume=ResumeConfig(), seed=9, allow_drift=True)
    with pytest.raises(UserError, match=rf"checkpoint step_4 is of another model \({problem}\): resume with the model"):
        RunWriter.start(changed, "rl", [], parameters=parameters)
    assert state_of(tmp_path) == before
    RunWriter.start(config(tmp_path, resume=ResumeConfig()), "rl", [], parameters={"w": torch.zeros(2)}).finish("done")


def finished(folder):
    with start(folder) as run:
        steps(run, 0, 8)
        save(run, 8)
        run.log_step(8, {"eval/x/reward/mean": 0.5})


def test_resuming_a_finished_run_has_nothing_left_to_do(tmp_path, capsys):
    finished(tmp_path)
    before = state_of(tmp_path)
    for _ in range(2):
        with start(tmp_path, resume=ResumeConfig()) as run:
            assert run.nothing_left and run.start_step == 8
    assert f"Nothing left to do in {tmp_path}: all 8 steps are done." in capsys.readouterr().out
    assert state_of(tmp_path) == before
    with start(tmp_path, resume=ResumeConfig(), max_steps=9) as run:
        assert not run.nothing_left and run.start_step == 8


def test_a_resume_that_restores_nothing_is_a_fresh_run(tmp_path):
    with start(tmp_path) as run:
        steps(run, 0, 3)
    with start(tmp_path, resume=ResumeConfig(), seq_len=99, allow_drift=True) as run:
        steps(run, 2, 4)
    assert Run(tmp_path).info["exact"] is False
    with start(tmp_path, resume=ResumeConfig(step=0), seed=4) as run:
        assert run.restored is None
    info = Run(tmp_path).info
    assert info["exact"] is True and info["inexact"] == [] and info["seed"] == 4


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "metrics.jsonl").write_bytes(b'{"step": 0}\nxxx\n'), r"metrics\.jsonl, line 2, is damaged"),
        (lambda f: (f / "events.jsonl").write_bytes(b"xxx\n"), r"events\.jsonl, line 1, is damaged"),
        (
            lambda f: (f / "config.toml").write_text("a = 1\nb = x\n"),
            r"config\.toml is damaged \(.*line 2.*\): mend it",
        ),
        (lambda f: (f / "config.toml").write_bytes(b"\xff"), r"config\.toml is damaged"),
        (lambda f: (f / "run.json").write_text("{"), r"run\.json is damaged \(.*line 1.*\): mend it"),
    ],
)
def test_a_damaged_file_is_named_and_nothing_is_changed(tmp_path, damage, message):
    with start(tmp_path) as run:
        steps(run, 0, 6)
    damage(tmp_path)
    before = state_of(tmp_path)
    with pytest.raises(UserError, match=message):
        start(tmp_path, resume=ResumeConfig(step=2))
    assert state_of(tmp_path) == before
