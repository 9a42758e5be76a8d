"""Contract 5. Changing what is compared here is a decision to report, not a fix.

A grader that goes wrong costs its own sample only: every other one has the score that it has where graders behave. It
is ended at its deadline, of processor time, after which the run is not exact; one that is killed from outside changes
no byte.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from pathlib import Path

import pytest
import states
from graders import gone
from present import NO_AUDIT

from hone.runs import Run

pytestmark = pytest.mark.long

TASK = '''
import ctypes, os, signal, subprocess, sys, time, zlib
from pathlib import Path

from hone.environments import Rubric, SingleTurnEnv

FORKED = Path("forked")


def spin():
    while True:
        pass


def crash():
    ctypes.string_at(0)


def leave():
    os._exit(0)


def take():
    bytearray(8 * 2**30)


def fork():
    """Leaves a process of its own session, without our environment."""
    child = subprocess.Popen(["sleep", "600"], env={}, start_new_session=True)
    with FORKED.open("a") as file:
        file.write(f"{child.pid}\\n")


def garbage():
    for _ in range(20):
        print("[1, false, 1.0, null]\\n" * 50_000)
        os.write(2, b"x" * 2**20)


def garble():
    """Writes what looks like an answer wherever it can."""
    for fd in range(3, 64):
        try:
            os.write(fd, b"[1, false, [1.0], null]\\n")
        except OSError:
            pass


def sleep():
    time.sleep(600)


WAYS = [spin, crash, leave, take, fork, garbage, garble]


def way(completion):
    """Which way this completion goes wrong; most don't."""
    digest = zlib.crc32(completion[-1]["content"].encode())
    return WAYS[digest % len(WAYS)] if digest // 100 % 3 == 0 else None


def score(completion):
    return zlib.crc32(completion[-1]["content"].encode()) % 1000 / 1000


def hostile(completion):
    if (bad := way(completion)) is not None:
        bad()
    return score(completion)


def asleep(completion):
    Path(f"asleep-{os.getpid()}").touch()
    sleep()


def killed(completion):
    """Is killed at the first completion of some lengths."""
    died = Path(f"died-{len(completion[-1]['content']) % 8}")
    if not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return score(completion)


def load_environment(kind: str = "clean"):
    func = {"clean": score, "hostile": hostile, "asleep": asleep, "killed": killed}[kind]
    func.__name__ = "score"
    return SingleTurnEnv(rubric=Rubric([func]), dataset=[{"question": f"question {i}"} for i in range(8)])
'''
STEPS, BATCH = 2, 32
ANSWERED = ("fork", "garbage")
"""Ways that are answered in spite of all."""
OUTCOMES = {"spin": "grader_timeout", "crash": "grader_error", "leave": "grader_error", "take": "grader_error"}
OUTCOMES |= {"garble": "grader_error"}
DETAILS = {
    "spin": "grading took 2 seconds of processor time",
    "crash": "ended by SIGSEGV",
    "leave": "ended with 0",
    "take": "MemoryError",
    "garble": "wrote what is no answer",
}


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A variable that all processes of this test have."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hostile_task.py").write_text(TASK)
    value = uuid.uuid4().hex
    monkeypatch.setenv("HONE_TEST", value)
    return value


def argv(out: str, kind: str, *flags: str) -> list[str]:
    """A run whose updates change nothing, so that what a grader does to one sample changes no later one."""
    return [
        *(sys.executable, "-m", "hone.cli", "rl", "--model.name", "hone/tiny", "--max-steps", str(STEPS)),
        *("--output-dir", out, "--trainer.optim.lr", "1e-30", "--seq-len", "64", "--precision", "fp32"),
        *("--orchestrator.batch-size", str(BATCH), "--orchestrator.rollouts-per-example", "4"),
        *("--orchestrator.sampling.max-tokens", "6", "--orchestrator.env.id", "hostile-task", *NO_AUDIT),
        *("--orchestrator.env.args.kind", kind, "--orchestrator.grading.max-failed", "1", *flags),
    ]


def rows(out: str) -> list[dict]:
    return [row for step in range(STEPS) for row in Run(Path(out)).rollouts(step).to_pylist()]


def marked(mark: str) -> list[int]:
    """Processes that have the variable, this one left out."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"HONE_TEST={mark}".encode() in (folder / "environ").read_bytes() and int(folder.name) != os.getpid():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def ways(texts: list[str]) -> list[str | None]:
    scope: dict = {}
    exec(TASK, scope)
    found = [scope["way"]([{"content": text}]) for text in texts]
    return [None if way is None else way.__name__ for way in found]


def test_a_grader_that_goes_wrong_costs_its_own_sample(mark, tmp_path):
    # By the clock six times as many: time enough on a busy machine for what takes no time of the processor.
    hostile = ("hostile", "--orchestrator.grading.timeout", "2")
    subprocess.run(argv("clean", "clean"), check=True, capture_output=True)
    for out, workers in (("one", "1"), ("four", "4")):
        command = argv(out, *hostile, "--orchestrator.grading.workers", workers)
        subprocess.run(command, check=True, capture_output=True)
    assert not [pid for pid in marked(mark) if not gone(pid)]
    forked = list(map(int, (tmp_path / "forked").read_text().split()))
    assert forked and all(map(gone, forked))

    clean, one = rows("clean"), rows("one")
    assert [row["text"] for row in one] == [row["text"] for row in clean]
    bad = ways([row["text"] for row in one])
    assert Counter(bad).keys() == {None, *OUTCOMES, *ANSWERED}, "each way is there"
    for way, row, right in zip(bad, one, clean, strict=True):
        if way in OUTCOMES:
            assert row["outcome"] == OUTCOMES[way] and DETAILS[way] in row["detail"]
            assert row["reward"] is None or math.isnan(row["reward"])
        else:
            names = ("reward", "outcome", "detail", "components")
            assert [row[name] for name in names] == [right[name] for name in names], way

    info = states.read_json(Path("one/run.json"))
    cause = {"step": 0, "cause": "a grader was ended at its deadline"}
    assert (info["status"], info["exact"], info["inexact"][0]) == ("done", False, cause)
    assert states.read_json(Path("clean/run.json"))["exact"] is True
    assert states.fingerprint(Path("one")) == states.fingerprint(Path("four"))


def test_a_grader_that_is_killed_from_outside_changes_no_byte(mark, tmp_path):
    subprocess.run(argv("clean", "clean"), check=True, capture_output=True)
    subprocess.run(argv("killed", "killed"), check=True, capture_output=True)
    assert list(tmp_path.glob("died-*"))
    assert states.read_json(Path("killed/run.json"))["exact"] is True
    names = ("reward", "outcome", "detail", "components", "text", "advantage")
    clean, again = ([[row[name] for name in names] for row in rows(out)] for out in ("clean", "killed"))
    assert again == clean


def test_nothing_is_left_of_a_run_that_was_killed_while_a_grader_slept(mark, tmp_path):
    command = argv("out", "asleep", "--orchestrator.grading.timeout", "100")
    with subprocess.Popen([*command, "--orchestrator.grading.workers", "2"], stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 600
        while len(list(tmp_path.glob("asleep-*"))) < 2 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        graders = [pid for pid in marked(mark) if pid != process.pid]
        process.send_signal(signal.SIGKILL)
    assert len(graders) == 4, "two workers and their keepers"
    assert all(map(gone, graders))
    assert json.loads((tmp_path / "out" / "run.json").read_text())["status"] == "running"
