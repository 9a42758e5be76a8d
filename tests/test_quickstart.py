"""The main job, for real: `scripts/quickstart.py` makes a model from nothing, warms it up, reinforces and evaluates it.

One seed, no shortened run (about two minutes on one core); five seeds are recorded in
benchmarks/results/quickstart.json.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from hone.runs import Run

ROOT = Path(__file__).resolve().parents[1]


def test_quickstart_learns_past_its_teacher(tmp_path):
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "scripts/quickstart.py"), "--out", str(tmp_path / "q"), "--examples", "256"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "q" / "summary.json").read_text())
    before, after = summary["rows"]
    assert 0.30 <= before["sampled"]["reward/mean"] <= 0.60
    assert after["sampled"]["reward/mean"] >= 0.85 and after["sampled"]["exact"] >= 0.4
    assert after["sampled"]["ci95/low"] > before["sampled"]["ci95/high"]
    assert after["greedy"]["reward/mean"] >= after["sampled"]["reward/mean"] - 0.02
    assert summary["peak_memory_gib"] * 2**30 <= 1.5e9
    run = Run(tmp_path / "q" / "rl")
    assert run.info["status"] == "done" and run.info["exact"]
    assert max(run.metrics()["logprob_gap/max"].drop_null().to_pylist()) <= 5e-2
    assert "after SFT + RL" in done.stdout and "make quickstart-controls" in done.stdout
    assert (tmp_path / "q" / "reward.svg").read_text().startswith("<?xml")
