"""The launcher, with small programs in the place of the roles: what it does when they die, hang, or are told to end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from processes import until
from split_runs import alive
from stand_in import ROLES, noted

from hone.processes import free_port

pytestmark = pytest.mark.split

STAND_IN = Path(__file__).parent / "stand_in.py"
TWO = ["inference-0", "inference-1", "trainer", "orchestrator"]
"""Roles of a run with two servers."""
SECONDS = 600
"""What counts as hung."""


@dataclass
class Launched:
    """A launcher at work. Its stand-ins carry `folder` in their command lines."""

    process: subprocess.Popen[str]
    folder: Path

    def starts(self, role: str) -> list[dict]:
        return [note for note in noted(self.folder / "starts.jsonl") if note["role"] == role]

    def log(self, role: str) -> str:
        """What is in its log; nothing as long as that is not in the run's directory."""
        path = self.folder / "out" / "logs" / f"{role}.log"
        return path.read_text() if path.exists() else ""

    def at_work(self) -> None:
        """Returns when the run has begun, all roles are there, and their first lines in the run's logs."""
        until(lambda: all(self.starts(role) and "start" in self.log(role) for role in ROLES))

    def ended(self) -> tuple[int, str, str]:
        """Exit code, output, errors; nothing is left, once the kernel has ended what was killed."""
        out, err = self.process.communicate(timeout=SECONDS)
        until(lambda: not alive(self.folder))
        return self.process.returncode, out, err


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launched]]:
    begun: list[Launched] = []

    def start(**plan: object) -> Launched:
        plan = {"port": free_port(), **{f"port {name}": free_port() for name in TWO[:2]}} | plan
        command = [sys.executable, str(STAND_IN), "launch", str(tmp_path), json.dumps(plan)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        begun.append(Launched(process, tmp_path))
        return begun[-1]

    yield start
    for launched in begun:
        launched.process.kill()
        launched.process.communicate()


def test_the_orchestrators_end_ends_all_with_its_exit_code(launch):
    run = launch(orchestrator=[{"after": 0.5, "end": 0, "say": "step 1"}])
    code, out, err = run.ended()
    assert (code, err) == (0, "")
    assert "step 1\n" in out and "trainer" not in out, "only the orchestrator's lines are shown"
    assert run.log("orchestrator") == "step 1\n"
    assert run.log("inference") == "inference  start 0\ninference got SIGTERM\n"
    assert run.log("trainer") == "trainer  start 0\ntrainer got SIGTERM\n"
    assert [start["words"] for start in run.starts("orchestrator")] == [["--first"]]
    assert not list((run.folder / "scratch").iterdir()), "the logs are in the run"


def test_when_the_server_dies_the_orchestrator_saves_and_all_are_started_again(launch):
    first = {"after": 0.2, "end": "SIGKILL"}
    driver = {"starts": {"inference": 2, "trainer": 2}, "after": 0.2, "end": 0}
    run = launch(orchestrator=[{}, driver], inference=[first, {}])
    code, out, _ = run.ended()
    (first, _again), (_, driver) = run.starts("inference"), run.starts("orchestrator")
    assert code == 0 and [(entry["role"], entry["pid"]) for entry in driver["told"]] == [("inference", first["pid"])]
    assert "orchestrator got SIGTERM\n" in run.log("orchestrator") and driver["words"] == ["--resume"]
    assert (
        f"The inference server (pid {first['pid']}) was ended by SIGKILL: starting inference, trainer and orchestrator "
        "again from the last checkpoint, step 4 (restart 1 of 3).\n"
    ) in out


def test_one_of_several_servers_is_started_again_alone(launch):
    driver = {"starts": {"inference-1": 2}, "after": 0.2, "end": 0}
    dies = [{"after": 0.2, "end": "SIGKILL"}, {}]
    run = launch(roles=TWO, orchestrator=[driver], **{"inference-1": dies})
    code, out, _ = run.ended()
    first, _again = run.starts("inference-1")
    assert code == 0 and [len(run.starts(name)) for name in TWO] == [1, 2, 1, 1]
    assert (
        f"The inference server 1 (pid {first['pid']}) was ended by SIGKILL: starting it again (restart 1 of 3); the "
        "others sample meanwhile.\n"
    ) in out


def test_servers_that_die_one_after_the_other_with_their_node_are_one_restart(launch):
    first = [{"after": 0.2, "end": "SIGKILL"}, {}]
    second = [{"starts": {"inference-0": 2}, "after": 0.0, "end": "SIGKILL"}, {}]
    driver = {"starts": {"inference-1": 2}, "after": 0.2, "end": 0}
    run = launch(roles=TWO, restarts=1, orchestrator=[driver], **{"inference-0": first, "inference-1": second})
    code, out, errors = run.ended()
    assert code == 0 and [len(run.starts(name)) for name in TWO] == [2, 2, 1, 1], errors
    assert out.count("restart 1 of 1") == 2


def test_a_rank_takes_the_others_and_the_orchestrator_with_it(launch):
    ranks = {"trainer 0": [{}], "trainer 1": [{"after": 0.6, "end": "SIGKILL"}, {}]}
    run = launch(ranks=2, orchestrator=[{}, {"starts": {"trainer": 4}, "after": 0.5, "end": 0}], **ranks)
    code, out, _ = run.ended()
    starts = run.starts("trainer")
    assert code == 0 and sorted(start["rank"] for start in starts) == ["0", "0", "1", "1"]
    assert {start["world"] for start in starts} == {"2"} and all(start["meeting"] for start in starts)
    (shown,) = run.starts("orchestrator")[1]["told"]
    assert (shown["role"], shown["rank"], shown["cause"]) == ("trainer", 1, "was ended by SIGKILL")
    sentence = (
        f"The trainer's rank 1 (pid {shown['pid']}) was ended by SIGKILL: starting trainer and orchestrator again"
    )
    assert sentence in out and len(run.starts("inference")) == 1
    assert "[rank 1] trainer 1 start 0\n" in run.log("trainer") and "\ntrainer 0 start 1\n" in run.log("trainer")


def test_after_the_last_restart_the_run_ends_with_who_died_of_what(launch):
    run = launch(restarts=1, trainer=[{"after": 0.5, "end": "SIGSEGV"}])
    code, out, err = run.ended()
    last = run.starts("trainer")[-1]["pid"]
    assert code == 2 and "(restart 1 of 1)" in out and len(run.starts("trainer")) == 2
    log = run.folder / "out" / "logs" / "trainer.log"
    assert err == (
        f"error: the trainer (pid {last}) was ended by SIGSEGV, and no restart is left (restarts = 1). "
        f"Its log: {log}; go on with: hone rl --resume\n"
    )


def test_a_role_that_a_user_has_to_mend_is_not_started_again(launch):
    run = launch(trainer=[{"after": 0.5, "end": 2}])
    code, _, err = run.ended()
    assert code == 2 and "ended: set --this to that. Its log:" in err
    assert len(run.starts("trainer")) == 1


def test_a_server_that_dies_while_it_loads_is_told_with_its_log(launch):
    run = launch(inference=[{"load": 600, "after": 0.5, "end": 1}], orchestrator=[{"open": False}])
    code, _, err = run.ended()
    log = run.folder / "scratch" / "inference.log"
    assert code == 2 and f"exited with code 1 (RuntimeError: no more) while it loaded; its log: {log}\n" in err
    assert "Traceback" in log.read_text() and not (run.folder / "out").exists()


def test_ctrl_c_is_the_orchestrators_and_then_all_end(launch):
    run = launch()
    run.at_work()
    run.process.send_signal(signal.SIGINT)
    assert run.ended()[0] == 130
    assert "orchestrator got SIGINT\n" in run.log("orchestrator") and "got SIGTERM" in run.log("trainer")
    assert "got SIGINT" not in run.log("trainer")


def test_a_second_ctrl_c_ends_all_at_once(launch):
    run = launch(orchestrator=[{"deaf": True}], trainer=[{"deaf": True}], inference=[{"deaf": True}])
    run.at_work()
    for count in (1, 2):
        run.process.send_signal(signal.SIGINT)
        until(lambda count=count: run.log("orchestrator").count("got SIGINT") == count)
    assert run.ended()[0] == 130


def test_a_signal_before_the_run_has_begun_ends_it(launch):
    run = launch(orchestrator=[{"open": False}])
    until(lambda: run.starts("orchestrator") and run.starts("inference") and run.starts("trainer"))
    run.process.send_signal(signal.SIGINT)
    code, out, _ = run.ended()
    assert code == 130 and "Stopped before the run began.\n" in out


def test_a_trainer_that_dies_while_the_run_is_stopped_is_not_started_again(launch):
    run = launch(orchestrator=[{"deaf": True}], trainer=[{}])
    run.at_work()
    run.process.send_signal(signal.SIGINT)
    until(lambda: "got SIGINT" in run.log("orchestrator"))
    os.kill(run.starts("trainer")[0]["pid"], signal.SIGKILL)
    code, out, _ = run.ended()
    assert code == 130 and len(run.starts("trainer")) == 1
    assert "was ended by SIGKILL: the state after the last checkpoint is lost. Go on with: hone rl --resume" in out


def test_a_process_that_a_role_leaves_behind_is_ended(launch):
    run = launch(trainer=[{"child": True}])
    run.at_work()
    assert any("sleep(600)" in command for command in alive(run.folder).values())
    os.kill(run.starts("orchestrator")[0]["pid"], signal.SIGUSR1)
    assert run.ended()[0] == 0


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the roles see to it themselves")
def test_a_launcher_that_is_killed_leaves_nothing(launch):
    run = launch()
    run.at_work()
    assert len(alive(run.folder)) == 4
    os.kill(run.process.pid, signal.SIGKILL)
    until(lambda: not alive(run.folder))
