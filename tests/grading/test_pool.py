"""Workers: each question costs itself alone, and what is asked beside it has the answer it always has."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from graders import gone
from processes import children, until

from hone.errors import UserError
from hone.grading import GraderFailure
from hone.grading.pool import Pool, Worker
from hone.types import Outcome

SCRIPT = Path(__file__).with_name("process_script.py")
ERROR, TIMEOUT = Outcome.GRADER_ERROR, Outcome.GRADER_TIMEOUT


@pytest.fixture
def pids(tmp_path: Path) -> Path:
    (tmp_path / "pids").touch()
    return tmp_path / "pids"


@pytest.fixture
def pool(pids: Path) -> Iterator[Pool]:
    with Pool(SCRIPT, [str(pids)], "testing", workers=2) as pool:
        yield pool


def both_ready(pool: Pool) -> list[tuple[int, int]]:
    """(keeper, process) of two workers that have answered or can: one alone may have answered all that came first."""
    while not all(process and process.ready for process in pool._processes):
        pool.ask_all(["sleep a little"] * 2, 5.0, 60.0)
    pairs = [(keeper, process) for keeper in pool.pids for process in children(keeper)]
    assert [keeper for keeper, _ in pairs] == pool.pids
    return pairs


FAILURES = [
    ("spin", TIMEOUT, "testing took 0.5 seconds of processor time"),
    ("sleep", TIMEOUT, "testing took 5 seconds"),
    ("exit at once", ERROR, "the process that was testing ended with 0"),
    ("crash", ERROR, "the process that was testing was ended by SIGSEGV: Fatal Python error: Segmentation fault"),
    ("take 8 gib", ERROR, "MemoryError"),
    ("kill its parent", ERROR, "the process that was testing was killed"),
    ("close everything", ERROR, "the process that was testing ended with 1"),
    ("close everything and sleep", ERROR, "the process that was testing closed its output"),
    ("half an answer", ERROR, "the process that was testing ended with 4"),
    ("a wrong answer", ERROR, "the process that was testing wrote what is no answer"),
    ("a gigabyte", ERROR, "the process that was testing wrote what is no answer"),
    ("answer much", ERROR, f"an answer of {17 * 2**20 + 2} bytes, which is too long"),
    ("fork and spin", TIMEOUT, "testing took 0.5 seconds of processor time"),
]
ANSWERED = {
    "print much": "print much",
    "close the streams": "close the streams",
    "fork and answer twice": "fork and answer twice",
    "leave a daemon": "leave a daemon",
    "run a program": "hello\n",
    "work in threads": 6,
}


@pytest.mark.parametrize(("question", "outcome", "shown"), FAILURES, ids=[question for question, *_ in FAILURES])
def test_what_goes_wrong_is_the_failure_of_one_question(question, outcome, shown, pool, pids, monkeypatch):
    if shown.endswith("closed its output"):
        monkeypatch.setattr("hone.grading.pool._CLOSING_SECONDS", 1000.0)
    clock = 5.0 if shown.endswith(("took 5 seconds", "closed its output")) else 120.0
    first, second, failure, third, fourth = pool.ask_all([1, "2", question, [3], None], 0.5, clock)
    assert [first, second, third, fourth] == [1, "2", [3], None]
    assert isinstance(failure, GraderFailure) and failure.outcome is outcome
    assert shown in failure.detail
    assert all(map(gone, map(int, pids.read_text().split())))
    assert pool.ask_all([5], 0.5, 120.0) == [5]


@pytest.mark.parametrize("question", ANSWERED)
def test_what_leaves_traces_is_answered_and_leaves_none(question, pool, pids):
    answers = pool.ask_all([1, question, 2, question, 3], 5.0, 60.0)
    assert answers == [1, ANSWERED[question], 2, ANSWERED[question], 3]
    forked = list(map(int, pids.read_text().split()))
    assert len(forked) == 2 * question.startswith(("fork", "leave a daemon"))
    assert all(map(gone, forked))


def test_a_process_that_kills_its_keeper_harms_no_question_after_it(pool):
    """Its own answer comes or not, whichever is faster."""
    questions = [1, "kill its parent and answer", 2, "kill its parent and answer", 3, 4]
    for question, answer in zip(questions, pool.ask_all(questions, 5.0, 60.0), strict=True):
        assert answer == question or (isinstance(question, str) and answer.detail.endswith("was killed"))


def test_a_question_whose_process_was_killed_from_outside_is_asked_again(pool, pids):
    assert pool.ask_all([1, "be killed once", 2], 5.0, 60.0) == [1, "be killed once", 2]
    assert all(map(gone, map(int, pids.read_text().split())))


def test_a_question_whose_process_is_killed_again_has_a_failure_that_says_so(pool, pids):
    failure, other = pool.ask_all(["be killed", 1], 5.0, 60.0)
    assert (failure.outcome, failure.lost, failure.killed, other) == (ERROR, True, True, 1)
    assert len(set(pids.read_text().split())) == 2, "asked twice, of two processes"


def test_a_process_that_is_killed_while_it_starts_is_replaced(pids):
    with Pool(SCRIPT, [str(pids), "is killed once"], "testing", workers=1) as pool:
        assert pool.ask_all([1, 2], 5.0, 60.0) == [1, 2]
    with (
        Pool(SCRIPT, [str(pids), "is always killed"], "testing", workers=1) as pool,
        pytest.raises(UserError, match="could not start: the process that was starting was ended by SIGKILL"),
    ):
        pool.ask_all([1], 5.0, 60.0)


def test_a_process_whose_thread_goes_on_is_replaced(pids):
    """The thread would take the time of the next question, or end it."""
    with Pool(SCRIPT, [str(pids)], "testing", workers=1) as pool:
        questions = ["leave a thread", "spin a while", "leave an end", "sleep a little", "spin a while"]
        assert pool.ask_all(questions, 1.7, 60.0) == questions


def test_failures_leave_no_file_open(pids):
    """A thousand of them in one round would be more than a process may have."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = len(os.listdir("/proc/self/fd"))
    with Pool(SCRIPT, [str(pids)], "testing", workers=2) as pool:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 40, limits[1]))
            answers = pool.ask_all(["leave a child", "close everything"] * 30, 5.0, 60.0)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert answers[::2] == ["leave a child"] * 30 and all(isinstance(answer, GraderFailure) for answer in answers[1::2])


def test_what_a_question_changes_is_put_back_for_the_next(pids):
    with Pool(SCRIPT, [str(pids)], "testing", workers=1) as pool:
        before, changed, after, spun = pool.ask_all(
            ["tell all there is", "change all there is", "tell all there is", "spin"], 0.5, 120.0
        )
        assert before == [os.getcwd(), os.environ.get("LANG"), [0, 0, 0], 0, True, True]
        assert (changed, after) == ("change all there is", before)
        assert spun.detail == "testing took 0.5 seconds of processor time"


def test_the_kernel_holds_the_limits_and_each_question_has_its_own(pids):
    with Pool(SCRIPT, [str(pids)], "testing", workers=1, memory_bytes=2**30) as pool:
        pool.ask_all(["take 8 gib"], 5.0, 60.0)
        for (timer, used, cpu, memory, core), seconds in (
            (pool.ask_all(["tell its limits"], 0.5, 60.0)[0], 0.5),
            (pool.ask_all(["tell its limits"], 30.0, 60.0)[0], 30.0),
        ):
            # A little was used between the limits and this look at them.
            assert seconds - 0.1 < timer < seconds + 0.1 and used + seconds + 0.9 <= cpu < used + seconds + 2.1
            assert 2**30 < memory < 2 * 2**30 and core == 0
        timer, _, cpu, *_ = pool.ask_all(["tell its limits"], None, 60.0)[0]
        assert timer == 0 and cpu == -1


def test_a_process_that_died_between_two_rounds_is_replaced(pool):
    for keeper, process in both_ready(pool):
        os.kill(process, signal.SIGKILL)
        assert gone(keeper)
    assert pool.ask_all([3, 4, 5], 5.0, 60.0) == [3, 4, 5]


def test_a_keeper_that_is_stopped_is_ended_with_its_process(pool, monkeypatch):
    monkeypatch.setattr("hone.grading.pool._END_SECONDS", 0.2)
    failure, other = pool.ask_all(["stop its parent and sleep", 1], 5.0, 5.0)
    assert (failure.outcome, other) == (TIMEOUT, 1)


@pytest.mark.parametrize(
    ("broken", "shown"),
    [
        ("raises", "ValueError: the data is not there"),
        ("dies", "ended with 7: no such library"),
        ("writes", "it wrote to the pipe of the answers while it started"),
    ],
)
def test_a_process_that_cannot_start_is_one_error_in_its_own_words(broken, shown, pids):
    with (
        Pool(SCRIPT, [str(pids), broken], "testing", workers=2) as pool,
        pytest.raises(UserError, match="the process for testing could not start") as error,
    ):
        pool.ask_all(list(range(1000)), 5.0, 60.0)
    assert str(error.value).endswith(shown) and pool.pids == []


def test_a_forked_process_has_processes_of_its_own(pool):
    """Its answers would else be taken for those of the process that it was forked from."""
    pool.ask_all([1, 2], 5.0, 60.0)
    keepers = pool.pids
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            right = pool.pids == [] and pool.ask_all(list(range(300)), 5.0, 60.0) == list(range(300))
            pool.close()
            os._exit(0 if right else 1)
        os._exit(2)
    assert pool.ask_all(list(range(1000, 1300)), 5.0, 60.0) == list(range(1000, 1300))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert pool.pids == keepers and pool.ask_all([3], 5.0, 60.0) == [3]


def test_questions_are_asked_while_others_are_still_to_come(pool, pids):
    with pool.open_round(5.0, 60.0) as round:
        round.put("fork and answer twice")
        until(pids.read_text)
        round.put(1, "exit at once")
        round.put([2])
        first, second, failure, last = round.answers()
    assert (first, second, failure.outcome, last) == ("fork and answer twice", 1, ERROR, [2])


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the system does not tell what waits for a core")
def test_time_in_which_a_process_waited_for_a_core_is_not_its_own(pids):
    """It shares one with six that never rest, and answers after more seconds than it may sleep."""
    core = min(os.sched_getaffinity(0))
    spinning = [subprocess.Popen(["sh", "-c", "while :; do :; done"], start_new_session=True) for _ in range(6)]
    try:
        with Pool(SCRIPT, [str(pids)], "testing", workers=1) as pool:
            assert pool.ask_all([1], 5.0, 60.0) == [1]
            [process] = children(pool.pids[0])
            for pid in (process, *(one.pid for one in spinning)):
                os.sched_setaffinity(pid, {core})
            starved, asleep = pool.ask_all(["wait for a core", "sleep"], 30.0, 1.0)
    finally:
        for one in spinning:
            one.kill()
            one.wait()
    assert starved == "wait for a core"
    assert (asleep.outcome, asleep.detail) == (TIMEOUT, "testing took 1 seconds")


def test_a_question_that_starves_its_own_processes_is_ended(pool, pids, monkeypatch):
    """Each of twenty waits nearly all the time: without a bound it would have twenty seconds, and answer in eight."""
    monkeypatch.setattr("hone.grading.pool._MOST_STARVED", 1)
    failure, other = pool.ask_all(["fork many that spin", 1], None, 1.0)
    assert (failure.outcome, failure.detail, other) == (TIMEOUT, "testing took 1 seconds", 1)
    assert all(map(gone, map(int, pids.read_text().split())))


def test_ctrl_c_ends_all_processes_and_the_next_question_starts_others(pool, interruptible):
    pool.ask_all(["sleep a little"] * 2, 5.0, 60.0)
    keepers, numbers = pool.pids, [process._number for process in pool._processes if process]

    def interrupt() -> None:
        while any(process and process._number in numbers for process in pool._processes):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        threading.Thread(target=interrupt, daemon=True).start()
        pool.ask_all(["sleep"] * 4, 5.0, 600.0)
    assert time.monotonic() - began < 300 and pool.pids == [] and all(map(gone, keepers))
    assert pool.ask_all([3], 5.0, 60.0) == [3]


KILLED = """
import sys
from pathlib import Path
from hone.grading.pool import ExitStatus, Pool, Worker

pool = Pool(Path(sys.argv[1]), [sys.argv[2]], "testing", workers=2)
while not all(process and process.ready for process in pool._processes):
    pool.ask_all(["sleep a little"] * 2, 5.0, 60.0)
print(*pool.pids, flush=True)
pool.ask_all(["sleep", "fork and spin"], 600.0, 600.0)
"""


def test_what_was_started_ends_when_hone_is_killed(pids):
    command = [sys.executable, "-c", KILLED, str(SCRIPT), str(pids)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        keepers = list(map(int, process.stdout.readline().split()))
        processes = [pid for keeper in keepers for pid in children(keeper)]
        while not (shown := pids.read_text()).endswith("\n") and process.poll() is None:
            time.sleep(0.01)
        forked = list(map(int, shown.split()))
        process.kill()
    assert forked
    assert len(keepers) == len(processes) == 2 and all(map(gone, keepers + processes + forked))


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
