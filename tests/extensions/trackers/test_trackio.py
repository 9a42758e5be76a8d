"""Trackio through its real client: what its database has, and that nothing leaves the machine."""

from __future__ import annotations

import os

import pytest
from monitored import config, failures, raise_alarm, start, steps
from tracker_files import TrackioFile

from hone.runs import Run

pytest.importorskip("trackio", reason="pip install 'trackio>=0.43'")
P = {"project": "P"}


@pytest.fixture(autouse=True)
def _trackio_stays_in_tmp(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("TRACKIO_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))


def test_everything_of_a_run_is_in_the_database_that_trackio_shows(tmp_path, capfd):
    out = tmp_path / "run"
    with start(config(out, trackio=P | {"name": "N", "group": "sweep"})) as run:
        steps(run)
        raise_alarm(run, 2, "zero_std", "90 % of the groups have one reward", "stop")
    file = TrackioFile(tmp_path / "trackio", "P")
    assert file.values("N", "reward/mean") == [(0, 0.0), (1, 0.125), (2, 0.25)]
    assert file.values("N", "tokens/s") == [(0, 1000.0), (1, 1001.0), (2, 1002.0)]
    assert file.values("N", "eval/x/correct") == []
    ((*alert, text),) = file.alerts
    assert alert == ["N", 2, "zero_std at step 2"] and "90 % of the groups have one reward" in text
    assert file.configs["N"]["max_steps"] == 3 and file.configs["N"]["_Group"] == "sweep"
    assert Run(out).info["trackio"] == {"project": "P", "name": "N"} and Run(out).info["wandb_id"] is None
    tables = file.values("N", "samples")
    assert [step for step, _ in tables] == [0, 2]
    assert tables[1][1]["_value"][0]["prompt"] == "user: Reverse: abc"
    printed = capfd.readouterr()
    assert printed.out.count("Trackio: trackio show --project P\n") == 1 and "* " not in printed.out
    assert failures(out) == []
