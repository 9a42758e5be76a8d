"""Exactness of SFT: the same config gives the same bytes, also when the process is killed and resumed.

Pins, in fp32 and with bf16 linears: metrics.jsonl equal byte for byte; every file of weights/step_N equal by hash.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hone.cli import main

KILLED = """
import os, signal, sys
import hone.runs.checkpoint, hone.trainer.export
from hone.cli import main
from hone.trainer.step import Trainer

def kill_after(owner, name, due):
    original = getattr(owner, name)
    def wrapped(*args, **kwargs):
        result = original(*args, **kwargs)
        if due(*args):
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    setattr(owner, name, wrapped)

where, at = sys.argv[1], int(sys.argv[2])
if where == "step":
    kill_after(Trainer, "step", lambda trainer, batches: trainer.version == at)
elif where == "checkpoint":
    state = lambda path, text: path.name == "state.json" and f"step_{at}" in str(path)
    kill_after(hone.runs.checkpoint, "write_file", state)
elif where == "export":
    kill_after(hone.trainer.export, "save_model", lambda model, folder: f"step_{at}" in str(folder))
sys.exit(main(sys.argv[3:]))
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data") / "rows.jsonl"
    rows = [{"prompt": f"item {i}", "completion": f"{i * 7919 % 1000:03d}" * (1 + i % 4)} for i in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def flags(data, tiny_model_dir):
    """The command line of one run: packed rows or demonstrations, six steps, a checkpoint every two."""

    def of(out: Path, source: str, precision: str) -> list[str]:
        what = f"--data.path {data}" if source == "file" else "--data.env.id reverse-text"
        return (
            f"sft --model.name {tiny_model_dir} {what} --data.seq-len 128 --data.batch-size 3 --max-steps 6 "
            f"--data.micro-batch-tokens 200 --val.interval 4 --val.max-examples 8 --val.fraction 0.1 --optim.lr 1e-3 "
            f"--ckpt.interval 2 --precision {precision} --output-dir {out} --display none"
        ).split()

    return of


@pytest.fixture(scope="module")
def straight(flags, tmp_path_factory):
    """The run that is never killed, once per (source, precision)."""
    made: dict[tuple[str, str], Path] = {}

    def of(source: str, precision: str) -> Path:
        if (source, precision) not in made:
            out = tmp_path_factory.mktemp("straight")
            assert main(flags(out, source, precision)) == 0
            made[source, precision] = out
        return made[source, precision]

    return of


def hashes(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


def assert_equal_runs(first: Path, second: Path) -> None:
    assert (first / "metrics.jsonl").read_bytes() == (second / "metrics.jsonl").read_bytes()
    for step in (2, 4, 6):
        weights = hashes(first / "weights" / f"step_{step}")
        assert weights == hashes(second / "weights" / f"step_{step}") and "model.safetensors" in weights
        checkpoint = hashes(first / "checkpoints" / f"step_{step}")
        assert checkpoint == hashes(second / "checkpoints" / f"step_{step}") and "optimizer.safetensors" in checkpoint
    for out in (first, second):
        assert json.loads((out / "run.json").read_text())["exact"] is True


@pytest.mark.parametrize(("source", "precision"), [("file", "fp32"), ("env", "bf16_linear")])
def test_two_runs_are_equal_byte_for_byte(straight, flags, tmp_path, source, precision):
    assert main(flags(tmp_path / "again", source, precision)) == 0
    assert_equal_runs(straight(source, precision), tmp_path / "again")


@pytest.mark.parametrize(
    ("where", "at", "left", "source", "precision"),
    [
        ("step", 5, "step_2", "file", "fp32"),  # after the update of step 4, while its checkpoint is being written
        ("checkpoint", 4, "step_2", "env", "bf16_linear"),  # all of it written but the marker
        ("export", 4, "step_2", "file", "fp32"),
    ],
)
def test_a_killed_run_resumes_to_the_same_bytes(straight, flags, tmp_path, where, at, left, source, precision):
    out = tmp_path / "killed"
    arguments = flags(out, source, precision)
    killed = subprocess.run([sys.executable, "-c", KILLED, where, str(at), *arguments], capture_output=True, text=True)
    assert killed.returncode == -9, killed.stderr
    complete = {path.parent.name for path in (out / "checkpoints").glob("step_*/COMPLETE")}
    assert left in complete and "step_6" not in complete
    assert main([*arguments, "--resume"]) == 0
    assert_equal_runs(straight(source, precision), out)


def test_resuming_a_finished_run_changes_nothing(straight, flags, tmp_path):
    out = tmp_path / "copy"
    shutil.copytree(straight("file", "fp32"), out)
    assert main([*flags(out, "file", "fp32"), "--resume"]) == 0
    assert_equal_runs(straight("file", "fp32"), out)


def test_another_seed_gives_another_run(straight, flags, tmp_path):
    assert main([*flags(tmp_path / "other", "file", "fp32"), "--seed", "1"]) == 0
    first, second = straight("file", "fp32"), tmp_path / "other"
    assert (first / "metrics.jsonl").read_bytes() != (second / "metrics.jsonl").read_bytes()
