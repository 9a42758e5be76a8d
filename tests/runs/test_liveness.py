"""Who writes a run is asked of its lock, and asking changes nothing."""

import subprocess
import sys
from pathlib import Path

from run_folders import held, make_run, snapshot

from hone.runs.outputs import holder


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


def test_the_launcher_stands_for_the_processes_of_its_run(tmp_path: Path) -> None:
    """Also while none of them writes, for it may be about to start one again."""
    run = make_run(tmp_path / "a", "running")
    start = "import sys, time; from hone.runs.outputs import LAUNCHER, Lock; lock = Lock(Path(sys.argv[1]), LAUNCHER); "
    command = [sys.executable, "-c", f"from pathlib import Path; {start}print('held', flush=True); time.sleep(600)"]
    with subprocess.Popen([*command, str(run)], stdout=subprocess.PIPE, text=True) as launcher:
        try:
            assert launcher.stdout is not None and launcher.stdout.readline() == "held\n"
            with held(run):
                assert holder(run) == launcher.pid
            assert holder(run) == launcher.pid
        finally:
            launcher.kill()
        launcher.wait()
        assert holder(run) is None
