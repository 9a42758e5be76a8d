"""W&B's own client and service with what goes wrong: no login, no server, a service that dies or hangs, a full disk."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from monitored import below, config, failures, steps, wait_for
from tracker_files import WandbFile

from hone.runs import Run
from hone.runs import monitors as background
from hone.runs.writer import RunWriter

OFFLINE = {"mode": "offline"}


@pytest.fixture(autouse=True)
def _wandb_stays_in_tmp(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def started(folder: Path) -> list[Path]:
    """The .wandb file, once there is one."""
    return list(folder.glob("wandb/*run-*/run-*.wandb"))


def test_no_login_is_told_once_and_delays_nothing(tmp_path, capsys):
    with RunWriter.start(config(tmp_path / "run", {"project": "P"}), "rl", []) as run:
        said = capsys.readouterr().out
        assert "W&B finds no login here" in said and "--wandb.mode offline" in said, "before the first step"
        assert failures(tmp_path / "run") == [], "the client, which takes a second to load, was waited for"
        steps(run)
    ((name, cause),) = failures(tmp_path / "run")
    assert name == "wandb" and "wandb login" in cause
    assert capsys.readouterr().out.count("; the run goes on without it.") == 1
    assert Run(tmp_path / "run").info["status"] == "done"


def test_a_server_that_never_answers_holds_up_the_end_for_the_deadline_only(tmp_path, monkeypatch):
    monkeypatch.setattr(background, "FINISH_SECONDS", 4.0)
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    before = below(os.getpid()).keys()  # of other tests: graders, a forkserver
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        with RunWriter.start(config(tmp_path / "run", {"project": "P"}), "rl", []) as run:
            steps(run)
            ended = time.monotonic()
        assert time.monotonic() - ended < 60  # W&B itself tries for a minute and more
    assert failures(tmp_path / "run") == [("wandb", "not done 4 s after the end of the run")]
    wait_for(lambda: not below(os.getpid()).keys() - before)


def test_when_the_run_is_killed_its_tracker_ends_and_says_failed(tmp_path):
    out = tmp_path / "run"
    code = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from monitored import config, monitors, steps\n"
        "from hone.runs.writer import RunWriter\n"
        f"run = RunWriter.start(config(Path({str(out)!r}), {OFFLINE!r}), 'rl', [])\n"
        "steps(run, 0, 2)\n"
        "while not monitors(run).idle: time.sleep(0.05)\n"
        "print('there', flush=True)\n"
        "time.sleep(600)\n"
    )
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path}
    )
    assert process.stdout is not None
    while "there" not in process.stdout.readline():
        assert process.poll() is None
    wait_for(lambda: started(out))
    children = below(process.pid)
    assert any("hone.runs.trackers" in command for command in children.values())
    process.kill()
    process.wait()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))
    file = WandbFile(out)
    assert file.exit_code == 1 and file.values("reward/mean") == [(0, 0.0), (1, 0.125)]
