"""A fresh start moves hone's own earlier run aside, and touches nothing else."""

import subprocess
import sys

import pytest

from hone.config.rl import RLConfig
from hone.errors import UserError
from hone.runs import Run, outputs
from hone.runs.outputs import clear
from hone.runs.writer import RunWriter


def start(folder, protect=(), **settings) -> RunWriter:
    config = RLConfig(output_dir=folder, max_steps=3, display="none", **settings)
    return RunWriter.start(config, "rl", ["hone", "rl"], list(protect))


def snapshot(folder):
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


def finished_run(folder) -> str:
    with start(folder) as run:
        run.rollouts(0, [{"step": 0}])
        run.evaluation(0, [{"example": 0}])
        run.log_step(0, {"reward/mean": 0.5})
        with run.weights_dir(1) as weights:
            (weights / "model.safetensors").write_text("w")
    return run.info["id"]


def test_weights_that_a_killed_run_was_giving_to_a_server_go(tmp_path):
    first = finished_run(tmp_path)
    (tmp_path / "spool" / "step_0").mkdir(parents=True)
    start(tmp_path).finish("done")
    assert not (tmp_path / "spool").exists() and not (tmp_path / ".previous" / first / "spool").exists()


def test_an_earlier_run_moves_to_previous(tmp_path):
    first = finished_run(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "curve.svg").write_text("<svg/>")
    before = snapshot(tmp_path)
    second = finished_run(tmp_path)
    assert first != second and Run(tmp_path).info["id"] == second
    place = tmp_path / ".previous" / first
    moved = {name: content for name, content in before.items() if name not in ("notes.txt", ".hone.lock")}
    assert snapshot(place) == moved
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert Run(place).metrics().to_pylist() == [{"step": 0, "reward/mean": 0.5}]
    third = finished_run(tmp_path)
    assert {p.name for p in (tmp_path / ".previous").iterdir()} == {first, second} and third not in (first, second)


@pytest.mark.parametrize("rename", range(1, 10))
def test_killed_while_moving_the_earlier_run(tmp_path, monkeypatch, rename):
    run_id = finished_run(tmp_path / "a")
    before = snapshot(tmp_path / "a")

    class Crash(BaseException):
        pass

    calls, original = [], outputs.os.rename

    def crashing(*args):
        calls.append(args)
        if len(calls) == rename:
            raise Crash
        original(*args)

    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(outputs.os, "rename", crashing)
        clear(tmp_path / "a")
    assert clear(tmp_path / "a") == tmp_path / "a" / ".previous" / run_id
    del before[".hone.lock"]
    assert snapshot(tmp_path / "a" / ".previous" / run_id) == before
    assert {p.name for p in (tmp_path / "a").iterdir()} == {".hone.lock", ".previous"}


@pytest.mark.parametrize("name", ["thesis.tex", "metrics.jsonl", "run.json", "weights/a.bin"])
def test_a_foreign_directory_is_left_untouched(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text('{"id": "of another tool"}')
    before = snapshot(tmp_path)
    with pytest.raises(
        UserError, match=rf"holds files that are not a run of hone \({name.split('/')[0]}\).*--output-dir"
    ):
        start(tmp_path)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("inner", ["weights/x", "weights/step_1", "logs", "superseded/1/deep"])
def test_a_run_inside_another_runs_own_folders(tmp_path, inner):
    finished_run(tmp_path / "out")
    before = snapshot(tmp_path)
    with pytest.raises(UserError, match=rf"lies in {inner.split('/')[0]} of the run in .*out, which is that run's own"):
        start(tmp_path / "out" / inner)
    assert snapshot(tmp_path) == before
    finished_run(tmp_path / "out" / "beside")


def test_folders_beside_a_run_are_no_obstacle_and_stay(tmp_path):
    finished_run(tmp_path / "sft")
    finished_run(tmp_path / "evals" / "reverse-text--tiny" / "1")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.csv").write_text("1")
    (tmp_path / ".gitignore").write_text("*")
    (tmp_path / ".tmp-hone-new-run.json").write_text("{")
    before = snapshot(tmp_path)
    finished_run(tmp_path)
    finished_run(tmp_path)
    after = snapshot(tmp_path)
    del before[".tmp-hone-new-run.json"]
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize(
    "source", ["weights/step_1", "weights", ".", "checkpoints/step_2", "weights/../weights/step_1"]
)
def test_a_run_never_clears_its_own_sources(tmp_path, source):
    finished_run(tmp_path / "outputs")
    (tmp_path / "outputs" / "checkpoints" / "step_2").mkdir(parents=True)
    before = snapshot(tmp_path)
    with pytest.raises(UserError, match=r"is needed by this run, but lies in .*choose another, such as --output-dir"):
        start(tmp_path / "outputs", [tmp_path / "outputs" / source])
    assert snapshot(tmp_path) == before


def test_a_run_that_is_being_written_is_not_moved(tmp_path):
    code = (
        "import sys\nfrom pathlib import Path\nfrom hone.runs.outputs import Lock\n"
        "lock = Lock(Path(sys.argv[1]))\nprint('held', flush=True)\nsys.stdin.read()"
    )
    with start(tmp_path) as run:
        run.log_step(0, {})
    pipe = subprocess.PIPE
    other = subprocess.Popen([sys.executable, "-c", code, tmp_path], stdin=pipe, stdout=pipe, text=True)
    assert other.stdout is not None and other.stdout.readline() == "held\n"
    before = snapshot(tmp_path)
    with pytest.raises(UserError, match=r"another process is writing a run in .*: wait for it, or choose another"):
        start(tmp_path)
    assert snapshot(tmp_path) == before
    other.kill()
    other.communicate()
    start(tmp_path).finish("done")  # the lock of a killed process is gone
