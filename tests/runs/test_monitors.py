"""W&B through its real client, offline; and monitors that fail."""

import pytest

from hone.config.rl import RLConfig
from hone.config.shared import ResumeConfig, WandbConfig
from hone.errors import UserError
from hone.runs import Run, monitors
from hone.runs.writer import RunWriter


@pytest.fixture(autouse=True)
def _wandb_stays_in_tmp(tmp_path, monkeypatch):
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)


def config(folder, **settings) -> RLConfig:
    wandb = WandbConfig(project="reverse", name="tiny", mode="offline")
    return RLConfig(output_dir=folder, max_steps=3, display="plain", wandb=wandb, **settings)


def test_offline_writes_into_the_run_directory(tmp_path, capfd):
    out = tmp_path / "run"
    with RunWriter.start(config(out), "rl", []) as run:
        run.log_step(0, {"reward/mean": 0.421875, "eval/x/exact": None}, {"tokens/s": 1234.0})
    (file,) = (out / "wandb").glob("offline-run-*/run-*.wandb")
    content = file.read_bytes()
    for text in (b"reward/mean", b"0.421875", b"time/step", b"1234", b"reverse", b"tiny", b"batch_size"):
        assert text in content, text
    assert b"eval/x/exact" not in content
    info = Run(out).info
    assert info["wandb_id"] == info["id"] and info["id"] in file.name
    assert [e["kind"] for e in Run(out).events()] == ["start"]
    printed = capfd.readouterr()
    assert "wandb" not in printed.out + printed.err


def test_a_resume_goes_on_as_the_same_wandb_run(tmp_path):
    out = tmp_path / "run"
    RunWriter.start(config(out), "rl", []).finish("stopped")
    first = Run(out).info["wandb_id"]
    RunWriter.start(config(out, resume=ResumeConfig()), "rl", []).finish("done")
    assert Run(out).info["wandb_id"] == first
    assert {f.name for f in out.glob("wandb/offline-run-*/run-*.wandb")} == {f"run-{first}.wandb"}


class Failing:
    name = "wandb"

    def __init__(self, fails_in: str):
        self.fails_in, self.calls = fails_in, []

    def _call(self, name):
        self.calls.append(name)
        if name == self.fails_in:
            raise ConnectionError("no route to host\nmore")

    def start(self, folder, info, config):
        self._call("start")

    def log(self, step, metrics, timings):
        self._call("log")

    def finish(self, status):
        self._call("finish")


@pytest.mark.parametrize(
    ("fails_in", "calls"),
    [("start", ["start"]), ("log", ["start", "log"]), ("finish", ["start", "log", "log", "log", "finish"])],
)
def test_a_monitor_that_fails_never_stops_the_run_and_is_reported_once(tmp_path, monkeypatch, capsys, fails_in, calls):
    monitor = Failing(fails_in)
    monkeypatch.setattr("hone.runs.writer.make_monitors", lambda config: [monitor])
    with RunWriter.start(config(tmp_path), "rl", []) as run:
        for step in range(3):
            run.log_step(step, {"reward/mean": 0.5})
    assert monitor.calls == calls
    assert Run(tmp_path).metrics().num_rows == 3 and Run(tmp_path).info["status"] == "done"
    (event,) = [e for e in Run(tmp_path).events() if e["kind"] == "monitor_failed"]
    assert event["cause"] == "ConnectionError: no route to host"
    assert capsys.readouterr().out.count("wandb failed (ConnectionError: no route to host); the run goes on") == 1


def test_a_missing_package_is_told_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(monitors.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r'pip install "hone-rl\[wandb\]"'):
        RunWriter.start(config(tmp_path / "run"), "rl", [])
    assert not (tmp_path / "run").exists()
