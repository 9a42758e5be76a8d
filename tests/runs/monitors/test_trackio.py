"""Trackio through its real client: what its database has, and that nothing leaves the machine."""

from __future__ import annotations

import os

import pytest
from monitored import config, failures, raise_alarm, steps
from tracker_files import TrackioFile

from hone.config.shared import ResumeConfig
from hone.runs import Run
from hone.runs.writer import RunWriter

pytest.importorskip("trackio", reason="pip install 'trackio>=0.43'")
P = {"project": "P"}


@pytest.fixture(autouse=True)
def _trackio_stays_in_tmp(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("TRACKIO_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))


def test_everything_of_a_run_is_in_the_database_that_trackio_shows(tmp_path, capfd):
    out = tmp_path / "run"
    with RunWriter.start(config(out, trackio=P | {"name": "N", "group": "sweep"}), "rl", []) as run:
        steps(run)
        raise_alarm(run, 2, "zero_std", "90 % of the groups have one reward", "stop")
    file = TrackioFile(tmp_path / "trackio", "P")
    assert file.values("N", "reward/mean") == [(0, 0.0), (1, 0.125), (2, 0.25)]
    assert file.values("N", "tokens/s") == [(0, 1000.0), (1, 1001.0), (2, 1002.0)]
    assert file.values("N", "eval/x/correct") == []
    text = "90 % of the groups have one reward. What helps: more variance. The run is saved and stops."
    assert file.alerts == [("N", 2, "zero_std at step 2", text)]
    assert file.configs["N"]["max_steps"] == 3 and file.configs["N"]["_Group"] == "sweep"
    assert file.configs["N"]["hone_run"] == Run(out).info["id"]
    assert Run(out).info["trackio"] == {"project": "P", "name": "N"} and Run(out).info["wandb_id"] is None
    tables = file.values("N", "samples")
    assert [step for step, _ in tables] == [0, 2]
    assert tables[1][1]["_value"][0] == {
        "step": 2,
        "prompt": "user: Reverse: abc",
        "completion": "correct 0",
        "reward": 1.0,
        "components": "format 0.1",
        "outcome": "correct",
        "advantage": -0.25,
    }
    printed = capfd.readouterr()
    assert printed.out.count("Trackio: trackio show --project P\n") == 1 and "* " not in printed.out
    assert failures(out) == []


def test_a_resume_goes_on_in_the_same_trackio_run_whatever_the_others_are_called(tmp_path):
    """Two runs of one name: the second is told apart by its id, and each resume finds its own."""
    for folder in ("a", "b"):
        with RunWriter.start(config(tmp_path / folder, trackio=P | {"name": "N"}), "rl", []) as run:
            steps(run, 0, 1)
            run.finish("stopped")
    for folder in ("a", "b"):
        resumed = config(tmp_path / folder, trackio=P | {"name": "N"}, resume=ResumeConfig())
        with RunWriter.start(resumed, "rl", []) as run:
            steps(run, 0, 2)
    file = TrackioFile(tmp_path / "trackio", "P")
    other = f"N-{Run(tmp_path / 'b').info['id']}"
    assert {name for name, _, _ in file.rows} == set(file.configs) == {"N", other}
    for name in ("N", other):
        assert file.values(name, "reward/mean") == [(0, 0.0), (0, 0.0), (1, 0.125)]
        assert len({run_id for run, run_id in file.ids if run == name}) == 1


def test_what_trackio_only_warns_of_is_a_failure(tmp_path):
    """Its folder is a file: it can store nothing, says so in a warning, and goes on as if nothing were."""
    (tmp_path / "trackio").write_text("not a folder")
    with RunWriter.start(config(tmp_path / "run", trackio=P), "rl", []) as run:
        steps(run)
    ((name, cause),) = failures(tmp_path / "run")
    assert name == "trackio" and "Error" in cause
    assert Run(tmp_path / "run").info["status"] == "done"
