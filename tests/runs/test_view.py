"""The files of a run have their names in one module, and a view reads them whatever state the run is in."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from run_folders import checkpoint, make_run, write_lines

from hone.errors import UserError
from hone.runs import view
from hone.runs.view import RunTail, RunView

SOURCE = Path(view.__file__).parents[1]
WORDS = {*view.OF_STEPS, *view.OF_VERSIONS, view.PROCESS_LOGS, view.SPOOL, "wandb", "trackio"}
"""Names that are words of other things, too: only at the end of a path they stand for a folder."""
FILES = {*view.NAMES, *view.GIVEN, view.PREVIOUS, view.LOCK, view.LAUNCHER, view.CERTIFICATE} - WORDS
ELSEWHERE = {
    "config/shared.py: weights",  # of a transport
    "extensions/studies/running.py: evals",  # of a study
    "extensions/viewer/card/files.py: report.html",  # a template
    "environments/kept_source.py: rewards.py",  # how a traceback names a function's file
}


def names_in(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_bytes())))
    ends = [node.right for node in nodes if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)]
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and node.value in FILES}
    return texts | {node.value for node in ends if isinstance(node, ast.Constant) and node.value in WORDS}


def test_the_names_of_the_files_stand_in_one_module() -> None:
    paths = [path for path in SOURCE.rglob("*.py") if path != Path(view.__file__)]
    found = {f"{path.relative_to(SOURCE).as_posix()}: {name}" for path in paths for name in names_in(path)}
    assert found <= ELSEWHERE


def test_a_view_reads_a_run_that_is_being_written_by_an_older_hone(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "running", steps=1)
    one, tail, before = RunView(run), RunTail(run), RunView(run).stamp()
    assert [step["step"] for step, _ in tail.steps()] == [0] and len(tail.events.new()) == len(one.events())
    with open(run / "metrics.jsonl", "a") as file:
        old = {"step": 1, "eval/t/exact": 0.5, "eval/t/exact/ci95/low": 0.25, "eval/t/reward/exact/mean": 1.0}
        file.write(json.dumps(old) + '\n{"step": 2, "rew')
    now = {"step": 1, "eval/t/correct": 0.5, "eval/t/correct/ci95/low": 0.25, "eval/t/reward/exact/mean": 1.0}
    assert one.metric_lines()[1:] == [now] and tail.steps() == []  # its seconds are not there yet
    write_lines(run / "timings.jsonl", [{"step": 1, "time/step": 0.5}], "a")
    assert tail.steps() == [(now, {"step": 1, "time/step": 0.5})]
    assert one.stamp() != before and one.stamp() == one.stamp()
    checkpoint(run, 1)
    checkpoint(run, 2).joinpath("state.json").unlink()
    assert one.checkpoint_steps() == [1] and list(one.folders("checkpoints")) == [1, 2]


def test_a_folder_that_is_no_run_has_no_records_and_no_facts(tmp_path: Path) -> None:
    one = RunView(tmp_path)
    assert one.metric_lines() == one.events() == one.rollout_steps() == [] == RunTail(tmp_path).steps()
    with pytest.raises(UserError, match=r"is not a run of hone: it has no run.json"):
        _ = one.info
