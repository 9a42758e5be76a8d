"""A monitor may raise, hang, or be slow: the run goes on, says so once, and its bytes are the same."""

from __future__ import annotations

import threading
import time

import pytest
from monitored import config, failures, raise_alarm, steps

from hone.runs import Run
from hone.runs import monitors as background
from hone.runs.writer import RunWriter


class Faulty:
    """A monitor in whose method `fails_in` `fault` is called."""

    name = "wandb"

    def __init__(self, fails_in, fault):
        self.fails_in, self.fault, self.calls = fails_in, fault, []
        self.reached, self.abandoned = threading.Event(), threading.Event()

    def _call(self, name):
        self.calls.append(name)
        if name != self.fails_in:
            return None
        self.reached.set()
        return self.fault(self)

    def start(self, folder, info, config):
        self.info = info
        return self._call("start")

    def log(self, step, metrics, timings):
        return self._call("log")

    def samples_of(self, step):
        return 1

    def samples(self, step, rows):
        return self._call("samples")

    def alarm(self, step, name, text, action):
        return self._call("alarm")

    def finish(self, status):
        return self._call("finish")

    def abandon(self):
        self.abandoned.set()


def raises(monitor):
    raise ConnectionError("no route to host\nmore")


def blocks(monitor):
    monitor.abandoned.wait()  # as a call to a process that is killed then
    raise OSError("killed")


def blocks_for_ever(monitor):
    threading.Event().wait()


def run_with(monitor, folder, monkeypatch, after_step=lambda: None):
    monkeypatch.setattr("hone.runs.monitors.make_monitors", lambda config: [monitor])
    with RunWriter.start(config(folder), "rl", []) as run:
        for step in range(3):
            steps(run, step, step + 1)
            after_step()
        raise_alarm(run, 2, "zero_std", "text", "warn")


@pytest.mark.parametrize("fails_in", ["start", "log", "samples", "alarm", "finish"])
def test_one_that_raises_is_reported_once_and_left_out(tmp_path, monkeypatch, capsys, fails_in):
    monitor = Faulty(fails_in, raises)
    run_with(monitor, tmp_path / "run", monkeypatch)
    order = ["start", "samples", "log", "samples", "log", "samples", "log", "alarm", "finish"]
    assert monitor.calls == order[: order.index(fails_in) + 1]
    assert monitor.abandoned.is_set()
    assert failures(tmp_path / "run") == [("wandb", "ConnectionError: no route to host")]
    said = "wandb failed (ConnectionError: no route to host); the run goes on without it."
    assert capsys.readouterr().out.count(said) == 1
    assert Run(tmp_path / "run").metrics().num_rows == 3 and Run(tmp_path / "run").info["status"] == "done"


@pytest.mark.parametrize("fault", [blocks, blocks_for_ever])
@pytest.mark.parametrize("fails_in", ["start", "log", "finish"])
def test_one_that_hangs_is_left_behind_at_the_end(tmp_path, monkeypatch, capsys, fails_in, fault):
    monkeypatch.setattr(background, "FINISH_SECONDS", 0.3)
    monitor, wait = Faulty(fails_in, fault), background.Background.wait

    def wait_for_the_hang(self, until):
        assert monitor.reached.wait(300)
        wait(self, time.monotonic() + background.FINISH_SECONDS)

    monkeypatch.setattr(background.Background, "wait", wait_for_the_hang)
    run_with(monitor, tmp_path / "run", monkeypatch)  # and comes to an end
    assert monitor.abandoned.is_set() and monitor.calls[-1] == fails_in
    assert [name for name, _ in failures(tmp_path / "run")] == ["wandb"]
    assert "s after the end of the run" in failures(tmp_path / "run")[0][1]
    assert capsys.readouterr().out.count("the run goes on without it") == 1
    assert Run(tmp_path / "run").info["status"] == "done"


def test_what_waits_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(background, "WAITING", 3)
    monitor = Faulty("start", blocks)
    run_with(monitor, tmp_path / "run", monkeypatch)
    assert failures(tmp_path / "run") == [("wandb", "3 messages behind")]


def test_the_bytes_of_a_run_do_not_depend_on_how_its_monitor_does(tmp_path, monkeypatch):
    monkeypatch.setattr(background, "FINISH_SECONDS", 0.1)
    faults = {"none": ("", raises), "raises": ("log", raises), "hangs": ("start", blocks_for_ever)}
    for name, fault in faults.items():
        run_with(Faulty(*fault), tmp_path / name, monkeypatch)
    for file in ("metrics.jsonl", "hashes.jsonl", *(f"rollouts/step_{step:06d}.parquet" for step in range(3))):
        assert len({(tmp_path / name / file).read_bytes() for name in faults}) == 1, file
