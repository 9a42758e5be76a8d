"""The main job, for real, from the wheel alone: `make test-wheel` installs it into an environment of its own.

`hone quickstart` makes a model from nothing, warms it up, reinforces and evaluates it, in an empty folder. One seed, no
shortened run (about two minutes on one core); five seeds are recorded in benchmarks/results/quickstart.json.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hone.runs import Run

ROOT = Path(__file__).resolve().parents[1]
HONE = Path(os.environ.get("HONE_BIN", Path(sys.executable).parent)) / "hone"


def hone(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run([str(HONE), *words], cwd=folder, env=env, capture_output=True, text=True)


@pytest.mark.wheel
def test_quickstart_learns_past_its_teacher(tmp_path):
    done = hone(tmp_path, "quickstart", "--output-dir", "q", "--num-examples", "256")
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "q" / "summary.json").read_text())
    before, after = summary["rows"]
    assert 0.30 <= before["sampled"]["reward/mean"] <= 0.60
    assert after["sampled"]["reward/mean"] >= 0.85 and after["sampled"]["correct"] >= 0.4
    assert after["sampled"]["ci95/low"] > before["sampled"]["ci95/high"]
    assert after["greedy"]["reward/mean"] >= after["sampled"]["reward/mean"] - 0.02
    assert summary["peak_memory_gib"] * 2**30 <= 1.5e9
    run = Run(tmp_path / "q" / "rl")
    assert run.info["status"] == "done" and run.info["exact"]
    assert max(run.metrics()["logprob_gap/max"].drop_null().to_pylist()) <= 5e-2
    assert "after SFT + RL" in done.stdout and "hone quickstart --controls" in done.stdout
    assert "<svg" in (tmp_path / "q" / "rl" / "report.html").read_text()


def test_examples_lists_recipes_copies_them_as_they_are_and_overwrites_nothing(tmp_path):
    listed = hone(tmp_path, "examples").stdout
    folders = sorted(path.name for path in (ROOT / "examples").iterdir() if path.is_dir())
    assert [line.split()[0] for line in listed.split("\n\n")[0].splitlines()] == folders
    copied = hone(tmp_path, "examples", "reverse-text").stdout.split()
    for path in copied:
        assert (tmp_path / path).read_bytes() == (ROOT / path).read_bytes()
    assert len(copied) == sum(path.is_file() for path in (ROOT / "examples/reverse_text").rglob("*"))
    (tmp_path / "examples/reverse_text/tiny.toml").write_text("mine")
    again, unknown = hone(tmp_path, "examples", "reverse_text"), hone(tmp_path, "examples", "chess")
    assert (again.returncode, unknown.returncode) == (2, 2)
    assert "move it away" in again.stderr and "reverse_text" in unknown.stderr
    assert (tmp_path / "examples/reverse_text/tiny.toml").read_text() == "mine"
