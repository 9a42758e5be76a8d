"""The files of a run have their names in one module, and a view reads them whatever state the run is in."""

from __future__ import annotations

import copy
from pathlib import Path

import pyarrow as pa
import pytest
from run_folders import checkpoint, entry, make_run, rollouts

from hone.errors import UserError
from hone.runs import Run
from hone.runs.listing import find_run, find_runs, is_previous
from hone.runs.shown import Samples

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


def test_a_groups_state_is_that_of_a_sample_that_could_be_graded(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "failed")
    rollouts(run, 0, (0, "a", ["failed", "filtered", "failed"]), (1, "b", ["failed", "failed"]), (2, "c", ["trained"]))
    assert [(draw["state"], draw["tokens"]) for draw in Run(run).ledger()] == [
        ("filtered", 15),
        ("failed", 10),
        ("trained", 5),
    ]


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
