"""A run whose sampler and trainer are too far apart: it ends saved, says why, and can go on. The limit is set below the
rounding that is always there.
"""

from __future__ import annotations

import json
import shutil

import pytest
import tampering
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
    said = ["sampler and trainer disagree at version 0 by", "the run stops beyond 1e-12"]
    said += ["--gap.action warn goes on", "Saved: halted/checkpoints/step_0; go on with: hone rl @ halted/config.toml"]
    fails(capsys, 2, *said)
    run = Run(halted)
    assert run.info["status"] == "failed" and "disagree at version 0" in run.info["failure"]
    (line,) = [json.loads(text) for text in (halted / "metrics.jsonl").read_text().splitlines()]
    assert line["step"] == 0 and line["canary/verdict"] == 2.0 and "lr" not in line
    (event,) = [event for event in run.events() if event["kind"] == "gap"]
    assert (event["step"], event["verdict"], event["of"]) == (0, "stop", "canary") and event["mean"] > 1e-12
    assert run.checkpoints.steps() == [0] and (halted / "weights" / "step_0").exists()

    again = ["rl", "@", str(halted / "config.toml"), "--output-dir", str(halted), "--resume"]
    model = ["--model.name", str(bench.folder / "model")]
    assert main([*again, *model, "--gap.stop", "1"]) == 2, "other limits give other verdicts in the metrics"
    assert "another gap.stop (1e-12, now 1.0)" in capsys.readouterr().err
    bench.hone("rl", "@", "halted/config.toml", "--resume", "--gap.action", "warn")
    for name in ("metrics.jsonl", "weights/step_6/model.safetensors"):
        assert (halted / name).read_bytes() == (warned / name).read_bytes()
    assert Run(halted).info["status"] == "done" and "inexact" not in {e["kind"] for e in Run(halted).events()}


def test_a_warning_is_said_once_and_every_line_has_the_verdict(bench, warned):
    events = [event for event in Run(warned).events() if event["kind"] == "gap"]
    assert [(event["step"], event["of"]) for event in events] == [(0, "canary"), (0, "samples")]
    (alarm,) = [event for event in Run(warned).events() if event["kind"] == "alarm" and event["name"] == "gap"]
    assert alarm["step"] == 0 and alarm["evidence"].startswith("sampler and trainer are") and alarm["value"] > 1e-12
    lines = [json.loads(text) for text in (warned / "metrics.jsonl").read_text().splitlines()]
    assert [line["canary/verdict"] for line in lines] == [2.0] * 7


def test_verify_measures_the_canary_again(rl_run, tmp_path, capsys):
    run = shutil.copytree(rl_run, tmp_path / "run")
    lines = [json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines()]
    assert all(0 < line["canary/gap/mean"] <= 1e-5 and line["canary/verdict"] == 0.0 for line in lines)
    assert len({line["canary/gap/mean"] for line in lines}) > 1
    shutil.rmtree(run / "checkpoints" / "step_6")
    for step in (5, 6):
        tampering.edit_metrics(run, step, "canary/gap/mean", 0.0, fit_hashes=True)
        assert main(["hone", "verify", str(run), "--steps", "6"][1:]) == 1
        assert f"executed again, step {step}, metrics: canary/gap/mean is 0.0 in the run" in capsys.readouterr().out
        tampering.edit_metrics(run, step, "canary/gap/mean", lines[step]["canary/gap/mean"], fit_hashes=True)


def test_a_run_without_evaluations_ends_with_a_canary_that_is_measured_again(bench, tmp_path, capsys):
    run = shutil.copytree(bench.rl("plain", "--orchestrator.eval", "None"), tmp_path / "run")
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert last.keys() == {"step", "canary/gap/mean", "canary/gap/max", "canary/verdict"} and last["step"] == 6
    tampering.edit_metrics(run, 6, "canary/gap/max", 0.0, fit_hashes=True)
    assert main(["verify", str(run), "--steps", "1"]) == 1
    assert "step 6, metrics: canary/gap/max is 0.0 in the run" in capsys.readouterr().out


def test_an_alarm_that_stops_leaves_the_reason_of_a_gap_that_stops_to_it(bench, capsys):
    capsys.readouterr()
    with pytest.raises(AssertionError):
        bench.rl("both", *BELOW, "--alarms", "stop")
    fails(capsys, 2, "sampler and trainer disagree at version 0 by", "Saved: both/checkpoints/step_0; go on with:")


def test_a_gap_whose_alarm_stops_the_run_does_not_stop_it_again(bench, capsys):
    with pytest.raises(AssertionError):
        bench.rl("stopped", "--gap.mean", "1e-12", "--alarms.gap", "stop")
    fails(capsys, 2, "stopped at step 0 by the alarm gap", "Saved: stopped/checkpoints/step_1; go on with:")
    bench.hone("rl", "@", "stopped/config.toml", "--resume")
    alarms = [event for event in Run(bench.folder / "stopped").events() if event["kind"] == "alarm"]
    assert [(alarm["name"], alarm["step"]) for alarm in alarms] == [("gap", 0)]
    assert Run(bench.folder / "stopped").info["status"] == "done"
