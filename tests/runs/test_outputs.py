"""A new run moves hone's own earlier run aside and touches nothing else; who writes a run is asked of its lock."""

import subprocess
import sys

import pytest
from run_folders import held, start

from hone.config.rl import RLConfig
from hone.errors import UserError
from hone.runs import Run
from hone.runs.outputs import holder, with_own_folder


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


def test_an_earlier_run_moves_to_previous_and_what_is_not_of_it_stays(tmp_path):
    finished_run(tmp_path / "sft")
    finished_run(tmp_path / "evals" / "reverse-text--tiny" / "1")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.csv").write_text("1")
    (tmp_path / ".gitignore").write_text("*")
    (tmp_path / ".tmp-hone-new-run.json").write_text("{")
    stays = snapshot(tmp_path)
    del stays[".tmp-hone-new-run.json"]
    first = finished_run(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "spool" / "step_0").mkdir(parents=True)  # weights that a killed run was giving to a server
    moves = {name: content for name, content in snapshot(tmp_path).items() if name not in stays}
    second = finished_run(tmp_path)
    assert first != second and Run(tmp_path).info["id"] == second
    place = tmp_path / ".previous" / first
    for name in ("notes.txt", ".hone.lock", "spool", "spool/step_0"):
        del moves[name]
    assert {**snapshot(place), "evals": None} == moves | {"evals": None}
    assert Run(place).metrics().to_pylist() == [{"step": 0, "reward/mean": 0.5}]
    after = snapshot(tmp_path)
    assert {name: after[name] for name in stays} == stays and after["notes.txt"] == b"mine" and "spool" not in after


@pytest.mark.parametrize("name", ["thesis.tex", "metrics.jsonl", "run.json", "weights/a.bin"])
def test_a_foreign_directory_is_left_untouched(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text('{"id": "of another tool"}')
    before = snapshot(tmp_path)
    message = rf"holds files that are not a run of hone \({name.split('/')[0]}\).*--output-dir"
    with pytest.raises(UserError, match=message):
        start(tmp_path)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    ("folder", "protect", "message"),
    [
        ("out/weights/x", [], r"lies in weights of the run in .*out"),
        ("out/superseded/1/deep", [], r"lies in superseded of the run in .*out"),
        ("out", ["out/weights/step_1"], r"is needed by this run, but lies in .*choose another, such as --output-dir"),
        ("out", ["out"], r"is needed by this run"),
        ("out", ["out/weights/../weights"], r"is needed by this run"),
    ],
)
def test_a_run_touches_no_other_run_and_not_its_own_sources(tmp_path, folder, protect, message):
    finished_run(tmp_path / "out")
    before = snapshot(tmp_path)
    with pytest.raises(UserError, match=message):
        start(tmp_path / folder, [tmp_path / path for path in protect])
    assert snapshot(tmp_path) == before


def test_the_holder_of_a_run_is_named_while_it_lives_and_keeps_others_out(tmp_path):
    finished_run(tmp_path)
    assert holder(tmp_path) is None and holder(tmp_path / "nothing") is None
    with held(tmp_path) as process:
        before = snapshot(tmp_path)
        assert holder(tmp_path) == process.pid == holder(tmp_path), "asking takes nothing from it"
        with pytest.raises(UserError, match=r"another process is writing a run in .*: wait for it, or choose another"):
            start(tmp_path)
        assert snapshot(tmp_path) == before
        with held(tmp_path, lock="LAUNCHER") as launcher:
            assert holder(tmp_path) == launcher.pid, "it stands for the processes of its run"
    assert holder(tmp_path) is None
    with start(tmp_path), pytest.raises(UserError, match=r"this program is writing a run in .* already"):
        start(tmp_path)


def test_a_run_that_names_no_folder_gets_one_of_its_own_and_a_resume_the_last(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def folder(name="rl-my task/x", **settings):
        return str(with_own_folder(RLConfig(**settings), name).output_dir)

    assert [folder(), folder(), folder("sft-rows")] == [
        "outputs/rl-my-task-x-1",
        "outputs/rl-my-task-x-2",
        "outputs/sft-rows-1",
    ]
    assert folder(output_dir="outputs") == "outputs" and folder(output_dir="mine", resume={}) == "mine"
    assert folder(resume={}) == "outputs/rl-my-task-x-3", "none of them is a run yet"
    finished_run(tmp_path / "outputs/rl-my-task-x-2")
    finished_run(tmp_path / "outputs/rl-my-task-x-10")
    finished_run(tmp_path / "outputs/rl-my-task-x-other-20")
    assert folder(resume={}) == "outputs/rl-my-task-x-10"
    assert folder(resume={"dir": "outputs/rl-my-task-x-2"}) == "outputs/rl-my-task-x-4", "a branch is a new run"


def test_a_folder_that_no_run_has_used_is_gone_at_the_end_of_the_process(tmp_path):
    make = "from hone.runs.outputs import with_own_folder as own; from hone.config.rl import RLConfig; "
    make += "print(own(RLConfig(), 'rl-a').output_dir)"
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", make], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout == "outputs/rl-a-1\n"
    assert list(tmp_path.iterdir()) == []
