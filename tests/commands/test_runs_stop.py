"""`hone runs stop`: the signal goes to the process that holds the run's lock, and to no other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from refusals import fails
from run_folders import checkpoint, held, make_run

from hone.cli import main
from hone.commands import runs as runs_stop


@pytest.fixture(autouse=True)
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runs_stop, "TELL", 600.0)  # a process that is slow to end is nothing to tell of
    run = make_run(Path("outputs"), "running", steps=3)
    checkpoint(run, 2)
    return run


def test_it_asks_politely_waits_and_says_how_it_ended(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with held(run) as process:
        assert main(["runs", "stop"]) == 0
        assert process.wait() == 143
    assert capsys.readouterr().out.splitlines() == [
        f"Asked process {process.pid} to end: it finishes its step, in 25 s at most, and saves.",
        "outputs: stopped by a signal after 3 of 4 steps, and saved",
        "To go on from step 2:",
        "  hone rl @ outputs/config.toml --resume",
    ]


def test_now_kills_and_says_what_is_lost(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with held(run, "deaf") as process:
        assert main(["runs", "stop", "outputs", "--now"]) == 0
        assert process.wait() == -9
    assert capsys.readouterr().out.splitlines()[:2] == [
        "outputs: killed after 3 of 4 steps",
        "1 step will be taken again, since checkpoint step_2.",
    ]


def test_waiting_can_be_given_up_and_an_overdue_end_is_told(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs_stop, "TELL", 0.2)
    monkeypatch.setattr(runs_stop, "SLACK", -24.5)
    asked = []

    def sleep(seconds: float) -> None:
        asked.append(seconds)
        if "Ctrl-C stops waiting" in capsys_out():
            raise KeyboardInterrupt
        real_sleep(seconds)

    seen: list[str] = []

    def capsys_out() -> str:
        seen.append(capsys.readouterr().out)
        return "".join(seen)

    real_sleep = runs_stop.time.sleep
    monkeypatch.setattr(runs_stop.time, "sleep", sleep)
    with held(run, "deaf") as process:
        assert main(["runs", "stop"]) == 130
        assert process.poll() is None
    out = capsys_out()
    assert "still at work after" in out and "It takes longer than its grace period" in out
    assert out.endswith(f"Not waiting any longer; process {process.pid} still ends when it has saved.\n")


def test_a_process_that_does_not_hold_the_lock_is_never_signalled(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    try:
        info = json.loads((run / "run.json").read_text()) | {"pid": bystander.pid}
        (run / "run.json").write_text(json.dumps(info))
        fails(capsys, main(["runs", "stop", "--now"]), "outputs: killed after 3 of 4 steps: there is nothing to stop")
        # It let go of the lock between the question and the signal, and its number is another process's.
        answers = iter([bystander.pid, None])
        monkeypatch.setattr(runs_stop, "holder", lambda path: next(answers))
        assert runs_stop.send(run, signal.SIGKILL) is None
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_holder_out_of_reach_is_left_alone(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs_stop, "holder", lambda path: 0)
    fails(capsys, main(["runs", "stop"]), "outputs is being written by a process of another machine")

    def refused(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(runs_stop, "holder", lambda path: os.getpid())
    monkeypatch.setattr(signal, "pidfd_send_signal", refused)
    fails(capsys, main(["runs", "stop"]), "which writes outputs, is another user's")
