"""W&B through its real client, offline: what it wrote, read with its own records."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from monitored import config, failures, raise_alarm, row, steps
from tracker_files import WandbFile

from hone.config.shared import ResumeConfig
from hone.errors import UserError
from hone.runs import Run, monitors
from hone.runs.writer import RunWriter

OFFLINE = {"mode": "offline"}


@pytest.fixture(autouse=True)
def _wandb_stays_in_tmp(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))


def test_everything_of_a_run_is_in_the_file_that_wandb_sync_sends(tmp_path, capfd):
    out = tmp_path / "run"
    settings = {
        "project": "P",
        "name": "N",
        "entity": "team",
        "group": "sweep",
        "tags": ["a", "b c"],
        "mode": "offline",
    }
    with RunWriter.start(config(out, settings), "rl", ["rl", "@", "x.toml"]) as run:
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
    assert file.values("eval/x/exact") == []  # null: not drawn as a number
    (alert,) = file.alerts
    assert (alert.title, alert.level) == ("zero_std at step 2", "WARN")
    assert alert.text == "90 % of the groups have one reward. What helps: more variance. A checkpoint is saved."
    assert file.exit_code == 0

    tables = file.values("samples")
    assert [step for step, _ in tables] == [0, 2]  # the first step and the last
    table = file.table(tables[1][1])
    assert table["columns"] == ["step", "prompt", "completion", "reward", "components", "outcome", "advantage"]
    prompt = "user: Reverse: abc"
    assert table["data"] == [
        [2, prompt, "correct 0", 1.0, "format 0.1", "correct", -0.25],
        [2, prompt, "wrong 1", 0.0, "format 0.1", "wrong", -0.25],
    ]
    printed = capfd.readouterr()
    assert printed.out.count("wandb sync ") == 1 and not printed.err
    assert str(file.path.parent.relative_to(tmp_path)) in printed.out
    assert failures(out) == []


def test_the_steps_of_a_resume_go_to_the_same_wandb_run_and_where_they_belong(tmp_path):
    out = tmp_path / "run"
    with RunWriter.start(config(out, OFFLINE), "rl", []) as run:
        steps(run, 0, 2)
        run.finish("stopped")
    first = WandbFile(out)
    first.path.rename(tmp_path / "first.wandb")
    with RunWriter.start(config(out, OFFLINE, resume=ResumeConfig()), "rl", []) as run:
        steps(run, 0, 3)
    second = WandbFile(out)
    assert second.run.run_id == first.run.run_id == Run(out).info["wandb_id"]
    assert first.values("reward/mean") == [(0, 0.0), (1, 0.125)]
    assert second.values("reward/mean") == [(0, 0.0), (1, 0.125), (2, 0.25)]


def test_tables_come_every_so_many_steps_and_none_if_so_asked(tmp_path):
    for samples, expected in ((1, [0, 2, 4]), (0, [])):
        out = tmp_path / f"run{samples}"
        wandb = OFFLINE | {"samples": samples, "samples_interval": 2}
        with RunWriter.start(config(out, wandb, max_steps=5), "rl", []) as run:
            steps(run, 0, 5)
        file = WandbFile(out)
        assert [step for step, _ in file.values("samples")] == expected
        assert all(len(file.table(value)["data"]) == 1 for _, value in file.values("samples"))


def test_what_the_environment_says_holds_where_no_flag_does(tmp_path, monkeypatch):
    for name, value in {"PROJECT": "fromenv", "ENTITY": "them", "MODE": "offline", "NAME": "called"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    with RunWriter.start(config(tmp_path / "a", {"tags": ["t"]}), "rl", []) as run:
        steps(run, 0, 1)
    file = WandbFile(tmp_path / "a")
    assert (file.run.project, file.run.entity, file.run.display_name) == ("fromenv", "them", "called")
    with RunWriter.start(config(tmp_path / "b", {"project": "flag", "entity": "us"}), "rl", []) as run:
        steps(run, 0, 1)
    assert (WandbFile(tmp_path / "b").run.project, WandbFile(tmp_path / "b").run.entity) == ("flag", "us")
    # A resume from a shell without them goes on in the same project.
    monkeypatch.delenv("WANDB_PROJECT")
    monkeypatch.delenv("WANDB_ENTITY")
    resumed = config(tmp_path / "a", {"tags": ["t"]}, resume=ResumeConfig())
    assert monitors.tracked(resumed, Run(tmp_path / "a").info)["wandb"] == {"project": "fromenv", "entity": "them"}
    assert monitors.tracked(config(tmp_path, OFFLINE), {"id": "x"})["wandb"] == {"project": "hone", "entity": None}


def test_a_wandb_sweep_names_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_RUN_ID", "sweeprun")
    with RunWriter.start(config(tmp_path / "run", OFFLINE), "rl", []) as run:
        steps(run, 0, 1)
    assert WandbFile(tmp_path / "run").run.run_id == Run(tmp_path / "run").info["wandb_id"] == "sweeprun"


@pytest.mark.parametrize(("status", "code"), [("failed", 1), ("interrupted", 1), ("budget", 0), ("stopped", 0)])
def test_wandb_learns_how_the_run_ended(tmp_path, status, code):
    run = RunWriter.start(config(tmp_path / "run", OFFLINE), "rl", [])
    run.finish(status)
    assert WandbFile(tmp_path / "run").exit_code == code


def test_a_run_is_the_same_bytes_with_and_without(tmp_path):
    for name, wandb in (("with", OFFLINE), ("without", None)):
        with RunWriter.start(config(tmp_path / name, wandb), "rl", []) as run:
            steps(run)
    files = ["metrics.jsonl", "hashes.jsonl", *(f"rollouts/step_{step:06d}.parquet" for step in range(3))]
    for file in files:
        assert (tmp_path / "with" / file).read_bytes() == (tmp_path / "without" / file).read_bytes(), file


def test_disabled_writes_nothing(tmp_path):
    with RunWriter.start(config(tmp_path / "run", {"mode": "disabled"}), "rl", []) as run:
        steps(run)
        raise_alarm(run, 2, "zero_std", "text", "warn")
    assert failures(tmp_path / "run") == [] and not list((tmp_path / "run").glob("wandb/*run-*"))


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_missing_package_is_told_before_any_work(tmp_path, monkeypatch, name):
    monkeypatch.setattr(monitors.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=rf"pip install '?{name}"):
        RunWriter.start(config(tmp_path / "run", **{name: {"project": "P"}}), "rl", [])
    assert not (tmp_path / "run").exists()


def test_rows_of_conversations_are_shown_whole(tmp_path):
    completion = (
        '[{"role": "assistant", "content": "", "tool_calls": [{"name": "f"}]}, {"role": "tool", "content": "7"}]'
    )
    with RunWriter.start(config(tmp_path / "run", OFFLINE), "rl", []) as run:
        run.rollouts(0, [row(0, None, "grader_error", completion=completion, text="ignored")])
    file = WandbFile(Path(tmp_path / "run"))
    ((_, table),) = file.values("samples")
    (cells,) = file.table(table)["data"]
    assert cells[2:4] == ['assistant: [{"name": "f"}]\n\ntool: 7', None]
