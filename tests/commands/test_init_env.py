"""`hone init-env`: what it writes passes its test and trains as printed, and nothing is overwritten."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from refusals import fails

from hone.cli import main
from hone.runs import Run

pytestmark = pytest.mark.usefixtures("here")


def files() -> set[str]:
    return {path.as_posix() for path in Path().rglob("*") if path.is_file() and "__pycache__" not in path.parts}


def printed(capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """The commands that it says come next."""
    lines = capsys.readouterr().out.splitlines()[1:-1]
    return [shlex.split(line.removeprefix("next: "), comments=True) for line in lines]


def test_what_it_writes_passes_its_test_and_trains_as_printed(capsys):
    assert main(["init-env", "sort-it-2"]) == 0
    assert files() == {"sort_it_2.py", "test_sort_it_2.py", "sort_it_2/tiny_sft.toml", "sort_it_2/tiny.toml"}
    assert not [name for name in files() if {"my_task", "my-task", "MyTask"} & set(Path(name).read_text().split())]
    assert "class SortIt2(SingleTurnEnv)" in Path("sort_it_2.py").read_text()
    test, sft, rl, evaluate = printed(capsys)
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", *test[1:]], capture_output=True, text=True)
    assert test[0] == "pytest" and "3 passed" in done.stdout, done.stdout + done.stderr

    assert main([*sft, "--max-steps", "2", "--display", "plain"]) == 0
    Path("outputs/sort-it-2-sft/weights/step_500").symlink_to("step_2")
    short = ["--max-steps", "1", "--orchestrator.batch-size", "16", "--orchestrator.eval.num-examples", "4"]
    assert main([*rl, *short, "--display", "plain"]) == 0
    columns = Run("outputs/sort-it-2-rl").metrics().column_names
    assert {"reward/mean", "reward/format/mean", "reward/correctness/mean"} <= set(columns)
    Path("outputs/sort-it-2-rl/weights/step_150").symlink_to("step_1")
    assert main([*evaluate[1:], "-n", "8", "-r", "1"]) == 0
    assert "sort-it-2: 8 examples" in capsys.readouterr().out


@pytest.mark.parametrize("path", ["test_my_task.py", "my_task/tiny.toml", "my_task/notes.txt"])
def test_nothing_is_overwritten(path, capsys):
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_text("mine")
    fails(capsys, main(["init-env", "my-task"]), "exists already and is not overwritten")
    assert files() == {path} and Path(path).read_text() == "mine"
