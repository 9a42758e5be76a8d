"""The run in several processes of docs/scale.md: the three-file run of the tiny recipe learns.

Fewer steps: 350 for 900 of SFT, 16 for 150 of RL, 2 where roles are started alone; ports that are free; no evaluation.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import until
from split_runs import ROOT, Command, records

from hone.processes import free_port

pytestmark = pytest.mark.split

STEPS = 16


def commands() -> list[list[str]]:
    page = (ROOT / "docs" / "scale.md").read_text()
    found = re.findall(r"^```bash\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return [shlex.split(line, comments=True) for block in found for line in block.splitlines()]


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


def test_the_three_file_run_learns(place: Path, started: list[Command]) -> None:
    sft, *rest = commands()
    rl = next(argv for argv in rest if "--inference" in argv)
    warm = Command([*sft, "--max-steps", "350", "--display", "plain"], place)
    started.append(warm)
    assert warm.ended() == 0, warm.output
    (place / "outputs/tiny-sft/weights/step_900").symlink_to("step_350")
    few = ["--max-steps", str(STEPS), "--orchestrator.eval", "None", "--ckpt.interval", "8"]
    run = Command([*rl, *few, "--inference.port", str(free_port())], place)
    started.append(run)
    assert run.ended() == 0, run.output
    assert "RL in 3 processes on this machine, into outputs/tiny-split" in run.output
    rewards = [record["reward/mean"] for record in records(place / "outputs/tiny-split/metrics.jsonl")[:STEPS]]
    assert sum(rewards[-4:]) / 4 > sum(rewards[:2]) / 2 + 0.08, rewards
    for role in ("inference", "trainer", "orchestrator"):
        assert (place / "outputs/tiny-split/logs" / f"{role}.log").stat().st_size > 100


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_tmux_shows_three_panes_that_follow_the_logs(place: Path, tmp_path: Path) -> None:
    tmux = next(argv for argv in commands() if "scripts/tmux.sh" in argv)
    env = {**os.environ, "TMUX_TMPDIR": str(tmp_path)}
    env.pop("TMUX", None)

    def shown(*command: str) -> str:
        return subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, check=True).stdout

    try:
        assert "Session hone follows outputs/tiny-split/logs" in shown(*tmux, "-d")
        titles = shown("tmux", "list-panes", "-t", "hone:RL", "-F", "#{pane_title}").split()
        assert titles == ["Trainer", "Orchestrator", "Inference"]
        capture = ("capture-pane", "-p", "-J", "-t")
        for pane, expected in enumerate(("Done: the run has reached version", "Done: 16 steps", "Stopped.")):
            until(lambda pane=pane, text=expected: text in shown("tmux", *capture, f"hone:RL.{pane}"))
        assert shown(*tmux, "-d", "-s", "other").startswith("Session other")
    finally:
        subprocess.run(["tmux", "kill-server"], env=env, check=False)
