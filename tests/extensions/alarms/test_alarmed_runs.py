"""Alarms on real runs: what they save, pause and stop, and that none of it changes a number."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from refusals import fails

from hone.cli import main
from hone.runs import Run
from hone.runs.summary import status_text, summarize

CUT = ("--alarms.window", "2", "--orchestrator.sampling.max-tokens", "2")
CUT += ("--alarms", "off", "--alarms.truncation.action", "warn", "--alarms.truncation.threshold", "1e-6")
"""Nearly all completions of two tokens are cut: the alarm is raised at step 1."""
PAUSING = ("rl", "@", "warned-of-cuts/config.toml", "--alarms.truncation.action", "pause")
PREDICT = ("--predict", "reward/mean@0 >= 0 p=0.9", "--predict", "reward/mean@5 >= 0 p=0.9")
"""One can be decided at the stop, one is open."""
DEADLINE = 600
"""Seconds after which a run counts as hung."""


@pytest.fixture(scope="module")
def warned(bench):
    """Read only."""
    return bench.rl("warned-of-cuts", *CUT)


def kinds(run) -> list[str]:
    return [event["kind"] for event in Run(run).events() if event["kind"] in ("alarm", "checkpoint", "paused")]


def same(one, other) -> bool:
    names = ("metrics.jsonl", "hashes.jsonl", "weights/step_6/model.safetensors")
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in names)


def test_a_stop_is_saved_and_goes_on_where_it_was(bench, warned, capsys):
    with pytest.raises(AssertionError):
        bench.rl("stopped", *CUT, "--alarms.truncation.action", "stop", *PREDICT, "--report", "true")
    shown = [
        "stopped at step 1 by the alarm truncation (--alarms.truncation warn goes on)",
        "stopped/checkpoints/step_2",
    ]
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and all(words in captured.err for words in shown)
    assert "Predictions: 1 of 2 decided" in captured.out
    run = bench.folder / "stopped"
    info = Run(run).info
    assert (info["status"], info["stopped_by"]) == ("stopped", "truncation") and "failure" not in info
    assert Run(run).checkpoints.steps() == [2] and "failed" not in [event["kind"] for event in Run(run).events()]
    words = "stopped by the alarm truncation after 2 of 6 steps, and saved"
    assert words in status_text(summarize(run)) and words in (run / "report.html").read_text()
    bench.hone("rl", "@", "stopped/config.toml", "--resume")
    assert same(run, warned), "an alarm that stands does not stop the run again"
    assert kinds(run).count("alarm") == 1


def wait_for_the_pause(run: Path, process: subprocess.Popen) -> None:
    """Until all that a pause begins with is written: the mark, the status, and last of all the event."""
    deadline = time.monotonic() + DEADLINE
    while not ((run / "paused.json").exists() and summarize(run).status == "paused" and "paused" in kinds(run)):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.1)


def test_a_pause_waits_to_be_continued(bench, warned, capsys):
    pausing = subprocess.Popen(
        [sys.executable, "-m", "hone.cli", *PAUSING, "--output-dir", "pausing", "--display", "plain"],
        cwd=bench.folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    run = bench.folder / "pausing"
    try:
        wait_for_the_pause(run, pausing)
        assert main(["runs", "list", str(bench.folder)]) == 0 and "paused" in capsys.readouterr().out
        assert main(["runs", "show", str(run)]) == 0
        shown = capsys.readouterr().out
        assert "paused by an alarm before step 3 of 6" in shown and f"hone runs continue {run}" in shown
        assert Run(run).checkpoints.steps() == [2]
        assert main(["runs", "continue", str(run)]) == 0
        assert "goes on with step 3 of 6" in capsys.readouterr().out
        out, _ = pausing.communicate(timeout=DEADLINE)
    finally:
        pausing.kill()
    assert pausing.returncode == 0 and "Paused before step 3 by the alarm truncation; the run is saved." in out
    assert same(run, warned) and Run(run).info["status"] == "done" and kinds(run).count("paused") == 1
    assert main(["runs", "continue", str(run)]) == 2
    fails(capsys, 2, "done, 6 of 6 steps: it is not paused")
