"""The first signal asks, the second Ctrl-C insists; and what the machine refuses is explained."""

import errno
import os
import signal

import pytest
import torch

from hone.runs.signals import StepAbandoned, StopRequest, explain


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_the_first_signal_only_asks(signum, code):
    before, lines = signal.getsignal(signum), []
    with StopRequest(lines.append) as stop:
        assert not stop and stop.exit_code == 0
        os.kill(os.getpid(), signum)
        assert stop and stop.signum == signum and stop.exit_code == code
    assert len(lines) == 1 and "finishing this step and saving a checkpoint" in lines[0]
    assert signal.getsignal(signum) is before


@pytest.mark.parametrize(
    ("first", "saved"), [(signal.SIGINT, False), (signal.SIGTERM, True)], ids=["second Ctrl-C", "all is saved"]
)
def test_ctrl_c_ends_at_once_what_was_asked_to_end(first, saved):
    before = signal.getsignal(signal.SIGINT)  # a shell's background job starts with SIGINT ignored
    with pytest.raises(KeyboardInterrupt), StopRequest(lambda text: None) as stop:
        if saved:
            stop.release()
        os.kill(os.getpid(), first)
        assert stop
        os.kill(os.getpid(), signal.SIGINT)
    assert stop.signum == first and signal.getsignal(signal.SIGINT) is before


def test_no_grader_can_swallow_it():
    from hone.grading import attempt, together

    def grader() -> float:
        raise StepAbandoned

    with pytest.raises(StepAbandoned):
        together([attempt(grader)])


@pytest.mark.parametrize(
    ("number", "cause"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EACCES, "writing is not permitted"),
        (errno.ENOENT, "a file or folder of the run was removed"),
    ],
)
def test_errors_of_the_system_are_explained_with_the_file(tmp_path, number, cause):
    words, file = os.strerror(number), tmp_path / "checkpoints" / "step_2"
    assert (explain(OSError(number, words, str(file)), tmp_path) or "")[0] == f"{cause} ({file})"
    if number != errno.ENOENT:
        assert (explain(OSError(number, words), tmp_path) or "")[0] == f"{cause} ({tmp_path})"
    assert explain(OSError(number, words, "/elsewhere/rows.jsonl"), tmp_path) is None


def test_no_memory_is_explained(tmp_path):
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**60)
    no_memory = OSError(errno.ENOMEM, "Cannot allocate memory")
    for error in (MemoryError(), no_memory, torch.OutOfMemoryError("CUDA"), raised.value):
        cause, remedy = explain(error, tmp_path) or ("", "")
        assert cause == "out of memory" and "micro-batch-tokens" in remedy
