"""The first signal asks, the second Ctrl-C insists."""

import os
import signal
import threading

import pytest

from hone.runs.signals import StepAbandoned, StopRequest


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_only_asks(signum, code):
    before = signal.getsignal(signum)
    said = []
    with StopRequest(said.append) as stop:
        assert not stop and stop.exit_code == 0
        os.kill(os.getpid(), signum)
        assert stop and stop.signum == signum and stop.exit_code == code
    assert len(said) == 1 and "finishing this step and saving a checkpoint" in said[0]
    assert signal.getsignal(signum) is before


def test_a_second_ctrl_c_stops_at_once():
    before = signal.getsignal(signal.SIGINT)  # a shell's background job starts with SIGINT ignored
    with pytest.raises(KeyboardInterrupt), StopRequest(lambda text: None) as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop
        os.kill(os.getpid(), signal.SIGINT)
    assert stop.exit_code == 130
    assert signal.getsignal(signal.SIGINT) is before


def within(stop: StopRequest, seconds: float) -> None:
    """Sends SIGTERM and waits in the block that may be given up."""
    with stop.abandonable():
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(seconds)


def test_a_step_that_does_not_fit_into_the_grace_period_is_given_up():
    before = signal.getsignal(signal.SIGALRM)
    with StopRequest(lambda text: None, grace_seconds=1.2) as stop:
        stop.save_seconds = 1.0
        with pytest.raises(StepAbandoned):
            within(stop, 10)
        assert stop.exit_code == 143
    assert signal.getsignal(signal.SIGALRM) is before and signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_no_grader_can_swallow_it():
    from hone.grading import attempt, together

    def grader() -> float:
        raise StepAbandoned

    with pytest.raises(StepAbandoned):
        together([attempt(grader)])


def test_once_all_is_saved_ctrl_c_ends_what_is_waited_for():
    before = signal.getsignal(signal.SIGINT)
    said = []
    with pytest.raises(KeyboardInterrupt), StopRequest(said.append) as stop:
        stop.release()
        os.kill(os.getpid(), signal.SIGTERM)  # still waits for the end
        os.kill(os.getpid(), signal.SIGINT)
    assert stop.signum == signal.SIGTERM and signal.getsignal(signal.SIGINT) is before
