"""`hone replay`: retraining from recorded rollouts reaches the same weights, or names where it does not."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

import pytest
import tampering
from refusals import fails

from hone.cli import main
from hone.runs import Run


@pytest.fixture
def replay(tmp_path):
    """Calls `hone replay` in an empty folder: no task, no model; returns the exit code."""

    def call(run: Path, *flags: str, cwd: Path = tmp_path) -> int:
        with contextlib.chdir(cwd):
            return main(["replay", str(run), *flags])

    return call


def test_a_replay_reaches_the_weights_of_the_run(bench, rl_run, replay, tmp_path, capsys):
    before = tampering.snapshot(rl_run)
    assert replay(rl_run, "--output-dir", str(tmp_path / "replayed"), cwd=bench.folder) == 0
    assert tampering.snapshot(rl_run) == before
    reached = Run(rl_run).hashes()[-1]["weights"]
    printed = capsys.readouterr().out
    assert "replayed      6 steps" in printed and "equal: " in printed and f"fingerprint {reached}" in printed
    assert "checkpoints/step_2, weights/step_2, checkpoints/step_4, weights/step_4, checkpoints/step_6" in printed
    for name in ("model.safetensors", "config.json", "README.md"):
        assert (tmp_path / "replayed" / name).read_bytes() == (rl_run / "weights" / "step_6" / name).read_bytes()


def swap_rewards(rows: list[dict]) -> None:
    rows[0]["reward"], rows[0]["components"] = 1 - rows[0]["reward"], [("parity", 1 - rows[0]["reward"])]


def test_changed_rollouts_are_named(copied, replay, capsys):
    tampering.edit_rollouts(copied, 3, swap_rewards)
    before = tampering.snapshot(copied)
    assert replay(copied) == 1
    assert tampering.snapshot(copied) == before
    printed = capsys.readouterr().out
    assert "differs: step 3, rollouts: the SHA-256 of rollouts/step_000003.parquet is" in printed
    assert f"next          hone verify {copied}" in printed


def test_a_checkpoint_on_the_way_that_does_not_fit_is_named(copied, replay, capsys):
    optimizer = copied / "checkpoints" / "step_4" / "optimizer.safetensors"
    tampering.edit_tensor(optimizer, "exp_avg/embed", fit_marker=True)
    assert replay(copied) == 1
    assert "differs: exp_avg/embed in checkpoints/step_4/optimizer.safetensors differs" in capsys.readouterr().out


def test_what_can_not_be_replayed_says_why(bench, rl_run, sft_run, replay, copied, tmp_path, capsys):
    fails(capsys, replay(sft_run), "has no rollouts to replay", f"hone verify {sft_run}")
    fails(capsys, replay(copied, "--output-dir", str(copied / "weights" / "mine")), "where nothing may be written")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    fails(capsys, replay(copied, "--output-dir", str(tmp_path / "full")), "holds other files")
    (copied / "rollouts" / "step_000003.parquet").unlink()
    fails(capsys, replay(copied), "no rollouts of step 3", "another copy of the run")
    shutil.rmtree(copied / "checkpoints")
    fails(capsys, replay(copied), "has no intact checkpoint before version 6", "initial model model can't be loaded (")


@pytest.mark.parametrize(("step", "code"), [(3, 3), (4, 1)])
def test_only_what_made_the_run_inexact_before_excuses_a_difference(step, code, copied, replay, capsys):
    info = json.loads((copied / "run.json").read_text())
    info |= {"exact": False, "inexact": [{"step": step, "cause": "a deadline fired"}]}
    (copied / "run.json").write_text(json.dumps(info))
    tampering.edit_rollouts(copied, 3, swap_rewards, fit_hashes=True)
    assert replay(copied) == code
    assert ("a deadline fired (from step 3 on)" in capsys.readouterr().out) == (step == 3)
