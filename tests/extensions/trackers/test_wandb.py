"""W&B through its real client: what it wrote offline, read with its own records; no login; a killed run."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from monitored import config, failures, raise_alarm, start, steps
from processes import until
from tracker_files import WandbFile

from hone.cli import call
from hone.config.shared import ResumeConfig
from hone.runs import Run

OFFLINE = {"mode": "offline"}


@pytest.fixture(autouse=True)
def _wandb_stays_in_tmp(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))


def test_everything_of_a_run_is_in_the_file_that_wandb_sync_sends(tmp_path, capfd):
    out = tmp_path / "run"
    settings = OFFLINE | {"project": "P", "name": "N", "entity": "team", "group": "sweep", "tags": ["a", "b c"]}
    with start(config(out, settings), ["rl", "@", "x.toml"]) as run:
        steps(run)
        raise_alarm(run, 2, "zero_std", "90 % of the groups have one reward", "checkpoint")
    file, info = WandbFile(out), Run(out).info
    assert (file.run.project, file.run.display_name, file.run.entity) == ("P", "N", "team")
    assert (file.run.run_group, list(file.run.tags), file.run.job_type) == ("sweep", ["a", "b c"], "rl")
    assert file.run.run_id == info["wandb_id"] == info["id"] and info["wandb"] == {"project": "P", "entity": "team"}
    assert (file.config["max_steps"], file.config["orchestrator"]["batch_size"]) == (3, 128)

    assert file.values("reward/mean") == [(0, 0.0), (1, 0.125), (2, 0.25)]
    assert file.values("tokens/s") == [(0, 1000.0), (1, 1001.0), (2, 1002.0)]
    assert [step for step, _ in file.values("time/step")] == [0, 1, 2]
    assert file.values("eval/x/correct") == []  # null: not drawn as a number
    (alert,) = file.alerts
    assert (alert.title, alert.level) == ("zero_std at step 2", "WARN")
    assert "90 % of the groups have one reward" in alert.text and "A checkpoint is saved." in alert.text
    assert file.exit_code == 0

    tables = file.values("samples")
    assert [step for step, _ in tables] == [0, 2]  # the first step and the last
    table = file.table(tables[1][1])
    assert table["columns"] == ["step", "prompt", "completion", "reward", "components", "outcome", "advantage"]
    assert table["data"] == [
        [2, "user: Reverse: abc", "correct 0", 1.0, "format 0.1", "correct", -0.25],
        [2, "user: Reverse: abc", "wrong 1", 0.0, "format 0.1", "wrong", -0.25],
    ]
    printed = capfd.readouterr()
    assert printed.out.count("wandb sync ") == 1 and not printed.err
    assert str(file.path.parent.relative_to(tmp_path)) in printed.out
    assert failures(out) == []


def test_the_steps_of_a_resume_go_to_the_same_wandb_run_and_where_they_belong(tmp_path):
    out = tmp_path / "run"
    with start(config(out, OFFLINE)) as run:
        steps(run, 0, 2)
        run.finish("stopped")
    first = WandbFile(out)
    first.path.rename(tmp_path / "first.wandb")
    with start(config(out, OFFLINE, resume=ResumeConfig())) as run:
        steps(run, 0, 3)
    second = WandbFile(out)
    assert second.run.run_id == first.run.run_id == Run(out).info["wandb_id"]
    assert first.values("reward/mean") == [(0, 0.0), (1, 0.125)] and first.exit_code == 0, "stopped is no failure"
    assert second.values("reward/mean") == [(0, 0.0), (1, 0.125), (2, 0.25)]


@pytest.mark.parametrize("name", ["wandb", "trackio"])
@pytest.mark.parametrize("command", ["sft", "rl", "rl --mode split"])
def test_a_missing_package_is_told_before_any_process_starts(tmp_path, monkeypatch, capfd, command, name):
    find, words = importlib.util.find_spec, command.split()
    monkeypatch.setattr(importlib.util, "find_spec", lambda one, *rest: None if one == name else find(one, *rest))
    monkeypatch.setattr("hone.processes.Process.__init__", None)  # the class of all processes that hone starts
    task = "--data.env.id" if words[0] == "sft" else "--orchestrator.env.id"
    flags = ["--model.name", "hone/tiny", task, "reverse-text", "--output-dir", str(tmp_path / "run")]
    assert call(words[0], [*words[1:], *flags, f"--{name}.project", "P"], f"hone {words[0]}") == 2
    assert f"needs the package {name}" in capfd.readouterr().err and not (tmp_path / "run").exists()


def test_a_missing_login_is_told_once_and_delays_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with start(config(tmp_path / "run", {"project": "P"})) as run:
        steps(run)
    ((name, cause),) = failures(tmp_path / "run")
    assert name == "wandb" and "wandb login" in cause
    assert capsys.readouterr().out.count("; the run goes on without it.") == 1
    assert Run(tmp_path / "run").info["status"] == "done"


def test_when_the_run_is_killed_its_tracker_ends_and_says_failed(tmp_path):
    out = tmp_path / "run"
    code = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from monitored import config, start, steps\n"
        f"run = start(config(Path({str(out)!r}), {OFFLINE!r}))\n"
        "steps(run, 0, 2)\n"
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
    process.kill()
    process.wait()
    until(lambda: [*out.glob("wandb/offline-run-*/run-*.wandb")] and WandbFile(out).exit_code is not None)
    file = WandbFile(out)
    assert file.exit_code == 1 and file.values("reward/mean") == [(0, 0.0), (1, 0.125)]
