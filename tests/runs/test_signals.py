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


def test_a_second_sigterm_changes_nothing():
    said = []
    with StopRequest(said.append) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.exit_code == 143 and len(said) == 1


def test_by_default_it_writes_to_standard_error(capfd):
    with StopRequest():
        os.kill(os.getpid(), signal.SIGTERM)
    assert capfd.readouterr().err.startswith("\nSIGTERM: finishing this step")


def test_in_another_thread_nothing_is_changed():
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def work():
        with StopRequest() as stop:
            seen.append((bool(stop), signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, before)]


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


def test_a_step_that_fits_is_finished():
    with StopRequest(lambda text: None, grace_seconds=30) as stop:
        within(stop, 0.01)
        stop.check()
        assert stop


def test_outside_its_block_nothing_is_given_up_before_it_is_asked():
    with StopRequest(lambda text: None, grace_seconds=0.01) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(0.2)  # the time is up in the middle of an update: it goes on to its end
        with pytest.raises(StepAbandoned):
            stop.check()
        with pytest.raises(StepAbandoned), stop.abandonable():
            raise AssertionError("the block is not entered")


def test_no_grader_can_swallow_it():
    from hone.grading import attempt, together

    def grader() -> float:
        raise StepAbandoned

    with pytest.raises(StepAbandoned):
        together([attempt(grader)])


def test_sigterm_after_ctrl_c_has_a_grace_period_too():
    with StopRequest(lambda text: None, grace_seconds=0.01) as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.exit_code == 130
        with pytest.raises(StepAbandoned):
            within(stop, 10)


def test_a_grader_that_uses_the_timer_does_not_undo_the_grace_period():
    with StopRequest(lambda text: None, grace_seconds=1.05) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.alarm(0)
        threading.Event().wait(0.2)
        with pytest.raises(StepAbandoned):
            stop.check()


def test_once_all_is_saved_ctrl_c_ends_what_is_waited_for():
    before = signal.getsignal(signal.SIGINT)
    said = []
    with pytest.raises(KeyboardInterrupt), StopRequest(said.append) as stop:
        stop.release()
        os.kill(os.getpid(), signal.SIGTERM)  # still waits for the end
        os.kill(os.getpid(), signal.SIGINT)
    assert stop.signum == signal.SIGTERM and signal.getsignal(signal.SIGINT) is before
