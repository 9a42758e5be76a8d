"""The process of its own for a library: one question at a time, and the reason why there is no answer."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from graders import children

from hone.grading.pool import Ended, Worker
from hone.types import Outcome

SCRIPT = Path(__file__).with_name("process_script.py")


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    worker = Worker(SCRIPT, [str(tmp_path / "pids")], "testing")
    yield worker
    worker.close()


def test_the_process_ends_with_its_worker(tmp_path):
    worker = Worker(SCRIPT, [str(tmp_path / "pids")], "testing")
    assert worker.ask("a", 5, 60.0) == "a"
    [keeper] = worker._pool.pids
    [process] = children(keeper)
    del worker
    gc.collect()
    for pid in (keeper, process):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize(
    ("code", "seconds", "outcome", "said", "killed"),
    [
        (-signal.SIGPROF, 10, Outcome.GRADER_TIMEOUT, "grading took 10 seconds of processor time", False),
        (-signal.SIGXCPU, 2.5, Outcome.GRADER_TIMEOUT, "grading took 2.5 seconds of processor time", False),
        (-signal.SIGXCPU, None, Outcome.GRADER_TIMEOUT, "grading took too long", False),
        (-signal.SIGSEGV, 10, Outcome.GRADER_ERROR, "the process that was grading was ended by SIGSEGV: words", False),
        (-signal.SIGABRT, 10, Outcome.GRADER_ERROR, "the process that was grading was ended by SIGABRT: words", False),
        (-signal.SIGKILL, 10, Outcome.GRADER_ERROR, "the process that was grading was ended by SIGKILL: words", True),
        (-signal.SIGTERM, 10, Outcome.GRADER_ERROR, "the process that was grading was ended by SIGTERM: words", True),
        (1, 10, Outcome.GRADER_ERROR, "the process that was grading ended with 1: words", False),
        (137, 10, Outcome.GRADER_ERROR, "the process that was grading ended with 137: words", False),
        (None, 10, Outcome.GRADER_ERROR, "the process that was grading was killed: words", True),
    ],
)
def test_what_a_process_ended_of_in_words(code, seconds, outcome, said, killed):
    failure = Ended(code, "words").failure("grading", seconds)
    assert (failure.outcome, failure.detail, failure.killed) == (outcome, said, killed)
