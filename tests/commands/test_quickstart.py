"""`hone quickstart` is interrupted, and goes on: what it trained is kept, and what it began ends as it would have."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import until

from hone.runs import Run

FILES = Path(__file__).resolve().parents[2] / "examples" / "reverse_text"
QUICK = [sys.executable, "-m", "hone.cli", "quickstart", "--output-dir", "q", "--num-examples", "4"]


@pytest.fixture
def recipes(tmp_path: Path) -> Path:
    """A folder whose recipes have few steps: they are the user's to change."""
    (folder := tmp_path / "examples" / "reverse_text").mkdir(parents=True)
    for name, before, after in (("tiny_sft.toml", "= 900", "= 3"), ("tiny.toml", "= 150", "= 30")):
        text = (FILES / name).read_text()
        assert f"max_steps {before}" in text
        (folder / name).write_text(text.replace(f"max_steps {before}", f"max_steps {after}").replace("900", "3"))
    return tmp_path


def test_a_quickstart_that_was_interrupted_goes_on_where_it_was(recipes: Path) -> None:
    rl, sft, metrics = recipes / "q/rl", recipes / "q/sft", recipes / "q/rl/metrics.jsonl"
    with subprocess.Popen(QUICK, cwd=recipes, stdout=subprocess.PIPE, text=True) as first:
        until(lambda: metrics.exists() and len(metrics.read_bytes().splitlines()) > 2, "RL trains")
        first.send_signal(signal.SIGINT)
        said = first.communicate()[0]
    assert first.returncode == 130, said
    assert said.endswith("To go on: hone quickstart --num-examples 4 --output-dir q\n"), said
    begun, trained = Run(rl).info["id"], Run(sft).info["id"]
    (saved,) = (path.name for path in (rl / "checkpoints").iterdir() if path.name.startswith("step_"))

    second = subprocess.run(QUICK, cwd=recipes, capture_output=True, text=True)
    assert second.returncode == 0, second.stdout + second.stderr
    assert "Nothing left to do in q/sft" in second.stdout and f"Resuming q/rl at step {saved[5:]}" in second.stdout
    assert Run(sft).info["id"] == trained and Run(rl).info["id"] == begun and Run(rl).info["status"] == "done"
    assert [row["model"] for row in json.loads((recipes / "q/summary.json").read_text())["rows"]] == [
        "after SFT",
        "after SFT + RL",
    ]
