"""A run whose sampler and trainer are too far apart: it ends saved, says why, and can go on. The limit is set below the
rounding that is always there.
"""

from __future__ import annotations

import json

import pytest
from refusals import fails

from hone.cli import main
from hone.runs import Run

BELOW = ("--gap.stop", "1e-12")


@pytest.fixture(scope="module")
def warned(bench):
    """Read only: it went on in spite of the gap."""
    return bench.rl("warned", *BELOW, "--gap.action", "warn")


def test_a_gap_that_stops_saves_the_run_which_can_then_go_on(bench, warned, capsys):
    capsys.readouterr()
    with pytest.raises(AssertionError):
        bench.rl("halted", *BELOW)
    halted = bench.folder / "halted"
    shown = ["sampler and trainer disagree at version 0 by", "the run stops beyond 1e-12"]
    shown += ["action warn it goes on", "Saved: halted/checkpoints/step_0; go on with: hone rl @ halted/config.toml"]
    fails(capsys, 2, *shown)
    run = Run(halted)
    assert run.info["status"] == "failed" and "disagree at version 0" in run.info["failure"]
    (line,) = [json.loads(text) for text in (halted / "metrics.jsonl").read_text().splitlines()]
    assert line["step"] == 0 and line["canary/verdict"] == 2.0 and "lr" not in line
    assert run.checkpoints.steps() == [0] and (halted / "weights" / "step_0").exists()

    again = ["rl", "@", str(halted / "config.toml"), "--output-dir", str(halted), "--resume"]
    model = ["--model.name", str(bench.folder / "model")]
    assert main([*again, *model, "--gap.stop", "1"]) == 2, "other limits give other verdicts in the metrics"
    assert "another gap.stop (1e-12, now 1.0)" in capsys.readouterr().err
    bench.hone("rl", "@", "halted/config.toml", "--resume", "--gap.action", "warn")
    for name in ("metrics.jsonl", "weights/step_6/model.safetensors"):
        assert (halted / name).read_bytes() == (warned / name).read_bytes()
    assert Run(halted).info["status"] == "done" and "inexact" not in {e["kind"] for e in Run(halted).events()}
