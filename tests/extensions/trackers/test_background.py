"""A client may raise, hang, or be slow: the run goes on, says so once, and its bytes are the same."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from monitored import config, failures, start, steps
from processes import until

from hone.extensions.trackers import monitors as background
from hone.runs import Run

FAKE = """
import os, time

def act(place):
    if place == os.environ["FAILS_IN"]:
        if os.environ["FAULT"] == "raises":
            raise ConnectionError("no route to host\\nmore")
        with open("reached.part", "w") as file:
            file.write(str(os.getpid()))
        os.rename("reached.part", "reached")
        time.sleep(600)

class Run:
    offline, url = False, None
    def define_metric(self, *args, **kwargs): pass
    def log(self, values, **kwargs): act("samples" if "samples" in values else "log")
    def finish(self, **kwargs): act("finish")

def init(**kwargs):
    act("start")
    return Run()

Settings = Table = dict
"""


@pytest.fixture
def run_with(tmp_path, monkeypatch):
    """A run with a client whose method `fails_in` raises or hangs; returns its folder."""
    (tmp_path / "wandb.py").write_text(FAKE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")

    def run_with(fails_in, fault, name="run"):
        monkeypatch.setenv("FAILS_IN", fails_in)
        monkeypatch.setenv("FAULT", fault)
        with start(config(tmp_path / name, {"project": "P"})) as run:
            steps(run)
            until(lambda: fault != "hangs" or (tmp_path / "reached").exists() or failures(tmp_path / name))
        return tmp_path / name

    return run_with


@pytest.mark.parametrize("fails_in", ["start", "samples"])
def test_one_that_raises_is_reported_once_and_left_out(run_with, capsys, fails_in):
    folder = run_with(fails_in, "raises")
    ((name, cause),) = failures(folder)
    assert name == "wandb" and cause.startswith("ConnectionError: no route to host; see ")
    assert capsys.readouterr().out.count("; the run goes on without it.") == 1
    assert Run(folder).metrics().num_rows == 3 and Run(folder).info["status"] == "done"


def test_one_that_hangs_is_killed_at_the_end_and_the_bytes_of_the_run_are_the_same(run_with, monkeypatch):
    good = run_with("", "", "good")
    assert failures(good) == []
    monkeypatch.setattr(background, "FINISH_SECONDS", 0.1)
    began = time.monotonic()
    hanging = run_with("log", "hangs")
    assert time.monotonic() - began < 300, "the client sleeps for 600 s"
    pid = (hanging.parent / "reached").read_text()
    until(lambda: not Path(f"/proc/{pid}").exists())
    assert failures(hanging) == [("wandb", "not done 0 s after the end of the run")]
    for file in ("metrics.jsonl", "hashes.jsonl", *(f"rollouts/step_{step:06d}.parquet" for step in range(3))):
        assert (good / file).read_bytes() == (hanging / file).read_bytes(), file
