"""The files of a run have their names in one module, and a view reads them whatever state the run is in."""

from __future__ import annotations

import ast
import copy
import json
from pathlib import Path

import pyarrow as pa
import pytest
from run_folders import checkpoint, entry, held, make_run, rollouts, write_lines

from hone.errors import UserError
from hone.runs import Run, view
from hone.runs.listing import find_run, find_runs, is_previous
from hone.runs.shown import Samples, html_table, text_table
from hone.runs.summary import evaluating, summarize
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


FIRST = [entry(0, 0, "a"), entry(1, 0, "b", "filtered", 20)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Checkpoints of steps 1 and 2, rollouts of steps 0 to 3, two draws a step."""
    run = make_run(tmp_path / "run", "stopped")
    checkpoint(run, 1, FIRST)
    checkpoint(run, 2, [*FIRST, entry(2, 1, "c"), entry(3, 1, "d")])
    for step, names in enumerate(["ab", "cd", "ef", "gh"]):
        rollouts(run, step, *[(2 * step + i, name, ["trained", "trained"]) for i, name in enumerate(names)])
    return run


def test_from_the_newest_checkpoint_and_then_from_rollouts(run: Path) -> None:
    ledger = Run(run).ledger()
    assert [draw["draw"] for draw in ledger] == list(range(8))
    assert "".join(draw["example_id"] for draw in ledger) == "abcdefgh"
    assert [draw["source"] for draw in ledger] == ["checkpoint"] * 4 + ["rollouts"] * 4
    assert ledger[1] == entry(1, 0, "b", "filtered", 20) | {"source": "checkpoint"}
    assert ledger[4] == entry(4, 2, "e", "trained", 10) | {"source": "rollouts"}


def test_a_groups_state_is_that_of_a_sample_that_could_be_graded(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "failed")
    rollouts(run, 0, (0, "a", ["failed", "filtered", "failed"]), (1, "b", ["failed", "failed"]), (2, "c", ["trained"]))
    assert [(draw["state"], draw["tokens"]) for draw in Run(run).ledger()] == [
        ("filtered", 15),
        ("failed", 10),
        ("trained", 5),
    ]


def test_a_group_that_an_older_refill_cut_off_counts_as_not_graded(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "config.toml").open("a").write("\n[orchestrator.curriculum.pool]\n")
    rollouts(run, 0, (0, "a", ["cut", "cut"]), (1, "b", ["trained", "trained"]))
    assert [(draw["state"], draw["graded"]) for draw in Run(run).ledger()] == [("cut", 0), ("trained", 2)]


@pytest.fixture
def root(here: Path) -> Path:
    """outputs/ is a run, with runs in it, an earlier one, and what looks like runs inside a run's own folders."""
    root = Path("outputs")
    make_run(root)
    make_run(root / "a")
    make_run(root / "deep" / "b")
    make_run(root / ".previous" / "c")
    make_run(root / "weights" / "not")
    make_run(root / "superseded" / "1")
    make_run(root / ".hidden" / "d")
    return root


def test_all_runs_are_found_and_their_own_folders_are_not_looked_into(root: Path) -> None:
    found = list(find_runs(root))
    assert found == [root, root / ".previous" / "c", root / "a", root / "deep" / "b"]
    assert [is_previous(path) for path in found] == [False, True, False, False]
    with pytest.raises(UserError, match="there is no folder nowhere"):
        list(find_runs(Path("nowhere")))


def test_a_run_is_meant_by_its_directory_its_id_or_the_beginning_of_it(root: Path) -> None:
    assert find_run("outputs") == root
    assert find_run("outputs/deep/b") == root / "deep" / "b"
    assert find_run("id-b") == root / "deep" / "b"
    assert find_run("id-c") == root / ".previous" / "c"
    make_run(root / "bc")
    assert find_run("id-b") == root / "deep" / "b"  # all of an id wins over the beginning of another


def test_what_means_no_run_or_several_is_refused_with_what_there_is(root: Path) -> None:
    places = r"outputs, outputs/\.previous/c, outputs/a, outputs/deep/b"
    with pytest.raises(UserError, match=rf"id could be any of 4 runs: name its directory \({places}\)"):
        find_run("id")
    with pytest.raises(UserError, match=r"there is no run xyz: .* `hone runs list --ids`"):
        find_run("xyz")
    with pytest.raises(UserError, match=r"outputs/deep is not a run .* name one of the runs in it \(outputs/deep/b\)"):
        find_run("outputs/deep")
    (root / "empty").mkdir()
    with pytest.raises(UserError, match="outputs/empty is not a run of hone"):
        find_run("outputs/empty")


def test_a_run_that_says_running_is_killed_if_nobody_holds_it(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", "running", steps=3)
    with held(run) as process:
        alive = summarize(run)
        assert (alive.status, alive.pid) == ("running", process.pid)
    assert (summarize(run).status, summarize(run).pid) == ("killed", None)
    assert summarize(make_run(tmp_path / "b", "copying")).status == "killed"
    for status in ("done", "stopped", "budget", "failed", "interrupted"):
        assert summarize(make_run(tmp_path / status, status)).status == status


def test_the_numbers_of_a_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", "stopped", steps=3)
    checkpoint(run, 2)
    checkpoint(run, 3).joinpath("state.json").unlink()
    one = summarize(run)
    assert (one.kind, one.task, one.progress.done, one.progress.max_steps) == ("rl", "reverse-text", 3, 4)
    assert one.progress.history == [0.0, 0.1, 0.2] and one.progress.eval_step == 2
    assert one.files.checkpoint_steps() == [2]
    assert one.seconds == 1.5
    write_lines(run / "timings.jsonl", [{"step": 3, "time/step": 0.5, "time/total": 77.25}], "a")
    assert summarize(run).seconds == 77.25
    (run / "superseded" / "1").mkdir(parents=True)  # what a resume rolled back was spent all the same
    write_lines(run / "superseded" / "1" / "timings.jsonl", [{"step": 3, "time/step": 0.5, "time/total": 99.5}])
    assert summarize(run).seconds == 99.5


def test_the_command_that_evaluates_names_a_file_where_that_has_one_task(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    task = 'id = "gsm8k"\nname = "NAME"\nargs = {mode = "sparse"}'
    settings = f'output_dir = "{run}"\nmax_steps = 4\nseq_len = 96\nseed = 7\n[orchestrator.env]\nid = "gsm8k"\n'
    settings += 'args = {mode = "sparse"}\n'
    (run / "config.toml").write_text(settings)
    weights = Path("w")
    assert evaluating(summarize(run), weights).startswith(f"hone eval @ {run}/config.toml -m w -n 100 -r 4")
    several = "".join(f"[[orchestrator.envs]]\n{task.replace('NAME', name)}\n" for name in "ab")
    (run / "config.toml").write_text(settings + several)
    by_words = """hone eval gsm8k -m w -n 100 -r 4 -a '{"mode": "sparse"}' -t 96 --seed 7 -S '{"seq_len": 96}'"""
    assert evaluating(summarize(run), weights).startswith(by_words)


def test_alarms_stand_until_they_are_over(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    event = {"step": 1, "evidence": "so it is"}
    write_lines(run / "events.jsonl", [event | {"kind": "alarm", "name": name} for name in ("kl", "truncation")], "a")
    assert [alarm.name for alarm in summarize(run).alarms] == ["kl", "truncation"]
    write_lines(run / "events.jsonl", [event | {"kind": kind, "name": "kl"} for kind in ("alarm_over", "stop")], "a")
    assert [alarm.name for alarm in summarize(run).alarms] == ["truncation"]


ROWS = [{"prompt": f"q{i}", "text": "<b>\x1b[31m" + "x" * 60, "reward": i / 3, "outcome": "wrong"} for i in range(12)]


def test_samples_are_the_arrow_table_and_are_shown_as_rows():
    table = pa.Table.from_pylist(ROWS)
    samples = Samples(table)
    assert samples == table and len(samples) == 12 and samples["reward"].to_pylist() == [i / 3 for i in range(12)]
    assert isinstance(samples.slice(0, 3), Samples) and samples.slice(0, 3).to_pylist() == ROWS[:3]
    assert pa.table(samples) == table and copy.copy(samples) == table and samples.schema == table.schema
    lines = repr(samples).splitlines()
    assert lines[0].split() == ["prompt", "text", "reward", "outcome"] and len(lines) == 1 + 10 + 1
    assert lines[2].startswith("q1") and "0.3333" in lines[2] and "\x1b" not in repr(samples)
    shown = samples._repr_html_()
    assert shown.count("<tr>") == 11 and "&lt;b&gt;" in shown and "<b>" not in shown


def test_a_cell_is_one_short_line_and_nothing_is_a_dash():
    rows = [{"a": "one\ntwo", "b": None}, {"a": "x" * 50, "b": 0.123456}]
    assert text_table(rows).splitlines()[1:] == ["one two" + " " * 35 + "-", "x" * 39 + "…  0.1235"]
    assert text_table([]) == "" and html_table([]) == "<table><tr></tr></table>"
