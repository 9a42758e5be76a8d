"""Who writes a run is asked of its lock, and asking changes nothing."""

from pathlib import Path

from run_folders import held, make_run, snapshot

from hone.runs.liveness import holder


def test_the_holder_is_named_while_it_lives(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", "running")
    assert holder(run) is None
    before = snapshot(run)
    with held(run) as process:
        assert holder(run) == process.pid
        assert holder(run) == process.pid  # asking took nothing from it
        process.kill()
        process.wait()
        assert holder(run) is None
    assert snapshot(run) == before


def test_a_run_without_a_lock_is_held_by_nobody_and_gets_none(tmp_path: Path) -> None:
    assert holder(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_another_runs_holder_does_not_count(tmp_path: Path) -> None:
    one, other = make_run(tmp_path / "a", "running"), make_run(tmp_path / "b", "running")
    with held(one):
        assert holder(other) is None
