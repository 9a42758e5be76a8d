"""The process for what may hang, crash or fork: each question costs itself alone."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from graders import children, gone

from hone.grading.worker import NoVerdict, Worker
from hone.types import Outcome

SCRIPT = Path(__file__).with_name("process_script.py")


@pytest.fixture
def pids(tmp_path: Path) -> Path:
    """Where the id of a forked process is written."""
    return tmp_path / "pids"


@pytest.fixture
def worker(pids: Path) -> Iterator[Worker]:
    worker = Worker(SCRIPT, [str(pids)], "testing")
    yield worker
    worker.close()


@pytest.mark.parametrize(
    ("question", "outcome", "said"),
    [
        ("fork and spin", Outcome.GRADER_TIMEOUT, "testing took 1 seconds of processor time"),
        ("fork and die", Outcome.GRADER_ERROR, "the process that was testing ended with 3"),
        ("half an answer", Outcome.GRADER_ERROR, "the process that was testing ended with 4"),
        ("a wrong answer", Outcome.GRADER_ERROR, "the process that was testing wrote what is no answer"),
    ],
)
def test_what_goes_wrong_is_a_failure_and_takes_what_it_started_along(question, outcome, said, worker, pids):
    with pytest.raises(NoVerdict) as nothing:
        worker.ask(question, 1, 60.0)
    assert (nothing.value.failure.outcome, nothing.value.failure.detail) == (outcome, said)
    assert not worker.running and worker.ask("next", 1, 60.0) == "next"
    forked = [int(pid) for pid in pids.read_text().split()] if pids.exists() else []
    assert len(forked) == question.startswith("fork") and all(map(gone, forked))


def test_a_forked_process_does_not_answer(worker, pids):
    assert [worker.ask(question, 5, 60.0) for question in ("fork and raise", "b", "c")] == ["fork and raise", "b", "c"]
    assert gone(int(pids.read_text()))


def test_what_reads_the_standard_input_finds_it_empty(worker):
    assert [worker.ask(question, 5, 60.0) for question in ("read", "next")] == ["", "next"]


def test_the_process_ends_with_its_worker(pids):
    worker = Worker(SCRIPT, [str(pids)], "testing")
    assert worker.ask("a", 5, 60.0) == "a"
    [keeper] = worker._pool.pids
    [process] = children(keeper)
    del worker
    gc.collect()
    for pid in (keeper, process):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
