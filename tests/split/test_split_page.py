"""Every command of docs/split.md runs, in its order; the three-file run of the tiny recipe learns.

Fewer steps: 350 for 900 of SFT, 16 for 150 of RL, 2 where roles are started alone; ports that are free; no evaluation.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from split_runs import ROOT, Command, free_port, hone, records, until

pytestmark = pytest.mark.split

STEPS = 16


def commands() -> list[list[list[str]]]:
    """The commands of each bash block of the page."""
    page = (ROOT / "docs" / "split.md").read_text()
    found = re.findall(r"^```bash\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return [[shlex.split(line) for line in block.splitlines()] for block in found]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout's examples and scripts, to work in."""
    folder = tmp_path_factory.mktemp("page")
    for name in ("examples", "scripts"):
        shutil.copytree(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def started(place: Path) -> Iterator[list[Command]]:
    begun: list[Command] = []
    yield begun
    for command in begun:
        command.kill()


def test_the_page_has_the_commands_that_are_run_here() -> None:
    begun = [[" ".join(argv[:2]) for argv in block] for block in commands()]
    assert begun == [
        ["sft @", "rl --trainer", "bash scripts/tmux.sh"],
        ["hone runs", "hone runs", "rl @"],
        ["hone inference", "hone trainer", "hone orchestrator"],
    ]


def test_the_three_file_run_learns(place: Path, started: list[Command]) -> None:
    (sft, rl, _), _, _ = commands()
    warm = Command([*sft, "--max-steps", "350", "--display", "plain"], place)
    started.append(warm)
    assert warm.ended() == 0, warm.said
    (place / "outputs/tiny-sft/weights/step_900").symlink_to("step_350")
    few = ["--max-steps", str(STEPS), "--orchestrator.eval", "None", "--ckpt.interval", "8"]
    run = Command([*rl, *few, "--inference.port", str(free_port())], place)
    started.append(run)
    assert run.ended() == 0, run.said
    assert "RL in 3 processes on this machine, into outputs/tiny-split" in run.said
    rewards = [record["reward/mean"] for record in records(place / "outputs/tiny-split/metrics.jsonl")[:STEPS]]
    assert sum(rewards[-4:]) / 4 > sum(rewards[:2]) / 2 + 0.08, rewards
    for role in ("inference", "trainer", "orchestrator"):
        assert (place / "outputs/tiny-split/logs" / f"{role}.log").stat().st_size > 100


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_tmux_shows_three_panes_that_follow_the_logs(place: Path, tmp_path: Path) -> None:
    (_, _, tmux), _, _ = commands()
    env = {**os.environ, "TMUX_TMPDIR": str(tmp_path)}
    env.pop("TMUX", None)

    def shown(*command: str) -> str:
        return subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, check=True).stdout

    try:
        said = shown(*tmux, "-d")
        assert "Session hone follows outputs/tiny-split/logs" in said
        titles = shown("tmux", "list-panes", "-t", "hone:RL", "-F", "#{pane_title}").split()
        assert titles == ["Trainer", "Orchestrator", "Inference"]
        capture = ("capture-pane", "-p", "-J", "-t")
        for pane, expected in enumerate(("Done: the run has come to version", "Done: 16 steps", "Stopped.")):
            until(lambda pane=pane, text=expected: text in shown("tmux", *capture, f"hone:RL.{pane}"))
        assert shown(*tmux, "-d", "-s", "other").startswith("Session other")
    finally:
        subprocess.run(["tmux", "kill-server"], env=env, check=False)


def test_tmux_that_is_missing_is_told_in_a_sentence(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    command = [bash, str(ROOT / "scripts" / "tmux.sh"), "outputs/x"]
    done = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr == (
        "error: tmux is not installed (apt-get install tmux): `tail -F outputs/x/logs/*.log` shows the same\n"
    )


def test_it_is_shown_and_has_nothing_left_to_do(place: Path, started: list[Command]) -> None:
    _, (show, ledger, resume), _ = commands()
    assert f"done, {STEPS} of {STEPS} steps" in hone(place, *show[1:])
    assert f"draws     {STEPS * 16} in {STEPS} steps" in hone(place, *ledger[1:])
    again = Command([*resume, "--inference.port", str(free_port())], place)
    started.append(again)
    assert again.ended() == 0 and f"Nothing left to do in outputs/tiny-split: all {STEPS} steps are done." in again.said


def test_roles_that_are_started_alone_meet(place: Path, started: list[Command]) -> None:
    *_, (inference, trainer, orchestrator) = commands()
    port = str(free_port())
    few = ["--max-steps", "2", "--orchestrator.eval", "None"]
    server = Command([*inference[1:], "--port", port], place, PYTHONUNBUFFERED="1")
    ranks = Command([*trainer[1:], *few], place, PYTHONUNBUFFERED="1")
    driver = Command([*orchestrator[1:], *few, "--inference.port", port], place, PYTHONUNBUFFERED="1")
    started += [server, ranks, driver]
    assert driver.ended() == 0, driver.said
    assert ranks.ended() == 0, ranks.said
    server.signal(signal.SIGTERM)
    assert server.ended() == 0
    assert "done, 2 of 2 steps" in hone(place, "runs", "show", "outputs/tiny-split")
