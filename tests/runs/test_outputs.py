"""A fresh start moves hone's own earlier run aside, and touches nothing else."""

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest

from hone.config.rl import RLConfig
from hone.config.shared import ResumeConfig
from hone.errors import UserError
from hone.model.card import model_card
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


@pytest.mark.parametrize("name", ["thesis.tex", "metrics.jsonl", "data/train.csv", "run.json", "weights/a.bin"])
def test_a_foreign_directory_is_left_untouched(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text('{"id": "of another tool"}')
    before = snapshot(tmp_path)
    with pytest.raises(
        UserError, match=rf"holds files that are not a run of hone \({name.split('/')[0]}\).*--output-dir"
    ):
        start(tmp_path)
    assert snapshot(tmp_path) == before


MODEL = ("config.json", "x.safetensors", "MINE")


@pytest.mark.parametrize("place", ["weights/step_1", "weights", "bert"])
def test_a_model_of_someone_else_is_foreign(tmp_path, place):
    (tmp_path / place).mkdir(parents=True)
    for name in MODEL:
        (tmp_path / place / name).write_text("years of work")
    before = snapshot(tmp_path)
    with pytest.raises(UserError, match=rf"not a run of hone \({place.split('/')[0]}\)"):
        start(tmp_path)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("name", outputs.NAMES[:-1])
def test_without_a_run_json_hones_own_names_are_foreign(tmp_path, name):
    card = model_card(title="t", method="rl", seed=0, command="hone")
    (tmp_path / name).mkdir()
    (tmp_path / name / "README.md").write_text(card)
    with pytest.raises(UserError, match="holds files that are not a run of hone"):
        start(tmp_path)
    (tmp_path / name).rename(tmp_path / "model")
    start(tmp_path).finish("done")
    assert (tmp_path / "model" / "README.md").read_text() == card


def test_evaluations_by_hand_stay_beside_those_of_the_run(tmp_path):
    """`hone eval` writes below outputs/evals, where the run in outputs has the samples of its own."""
    first = finished_run(tmp_path)
    info = {"format": outputs.FORMAT, "id": "e1", "kind": "eval", "status": "done"}
    (tmp_path / "evals" / "reverse-text--step_3" / "e1").mkdir(parents=True)
    (tmp_path / "evals" / "reverse-text--step_3" / "e1" / "run.json").write_text(json.dumps(info))
    with pytest.raises(UserError, match=r"a\.jsonl lies in the run"):
        outputs.check_target(tmp_path / "a.jsonl", "--output")
    outputs.check(tmp_path / "evals" / "reverse-text--step_3" / "e2", [])
    finished_run(tmp_path)
    assert Run(tmp_path / ".previous" / first).eval_rows(0) == [{"example": 0}]
    assert sorted(path.name for path in (tmp_path / "evals").iterdir()) == ["reverse-text--step_3", "step_000000.jsonl"]
    source = tmp_path / "evals" / "step_000000.jsonl"
    with pytest.raises(UserError, match=r"step_000000\.jsonl is needed by this run, but lies in the output directory"):
        start(tmp_path, [source])


def test_an_evaluation_moves_to_previous_as_a_whole(tmp_path):
    info = {"format": outputs.FORMAT, "id": "e1", "kind": "eval", "status": "done"}
    files = {"run.json": json.dumps(info), "results.jsonl": "{}\n", "metadata.json": "{}", "config.toml": ""}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    finished_run(tmp_path)
    assert {p.name: p.read_text() for p in (tmp_path / ".previous" / "e1").iterdir()} == files
    assert not (tmp_path / "results.jsonl").exists() and not (tmp_path / "metadata.json").exists()


@pytest.mark.parametrize("inner", ["weights/x", "weights/step_1", "logs", "superseded/1/deep"])
def test_a_run_inside_another_runs_own_folders(tmp_path, inner):
    finished_run(tmp_path / "out")
    before = snapshot(tmp_path)
    with pytest.raises(UserError, match=rf"lies in {inner.split('/')[0]} of the run in .*out, which is that run's own"):
        start(tmp_path / "out" / inner)
    assert snapshot(tmp_path) == before
    finished_run(tmp_path / "out" / "beside")


def test_an_output_dir_that_cannot_be_made(tmp_path):
    (tmp_path / "f").write_text("x")
    for folder in (tmp_path / "f" / "out", tmp_path / "f" / "a" / "b", Path("/proc/nowhere/out")):
        for settings in ({}, {"resume": ResumeConfig()}):
            with pytest.raises(UserError, match=r"can't be written \(.+\): choose another --output-dir"):
                start(folder, **settings)
    assert (tmp_path / "f").read_text() == "x"


def test_an_output_dir_without_permission(tmp_path, monkeypatch):
    """By a refusal of the system call, for root may write anywhere."""

    def refuse(path, *_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    finished_run(tmp_path)
    before = snapshot(tmp_path)
    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(UserError, match=r"\.hone\.lock can't be written \(Permission denied\): choose another"):
        start(tmp_path)
    monkeypatch.undo()
    assert snapshot(tmp_path) == before


def test_output_dir_that_is_a_file(tmp_path):
    (tmp_path / "f").write_text("x")
    with pytest.raises(UserError, match="is a file, not a directory: choose another --output-dir"):
        start(tmp_path / "f")
    assert (tmp_path / "f").read_text() == "x"


def test_what_hone_made_inside_outputs_is_no_obstacle_and_stays(tmp_path):
    finished_run(tmp_path / "sft")
    finished_run(tmp_path / "evals" / "reverse-text--tiny" / "1")
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text("{}")
    (tmp_path / "tiny" / "model.safetensors").write_text("w")
    (tmp_path / "tiny" / "README.md").write_text(model_card(title="t", method="init", seed=0, command="hone"))
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


def test_sources_beside_what_is_moved_are_fine(tmp_path):
    finished_run(tmp_path)
    finished_run(tmp_path / "sft")
    start(tmp_path, [tmp_path / "sft" / "weights" / "step_1"]).finish("done")
    assert (tmp_path / "sft" / "weights" / "step_1" / "model.safetensors").read_text() == "w"


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
