"""What a stranger reads on a terminal or in a log. The clock is handed in."""

import io
import os
import pty
import signal
import threading

from rich.console import Console

from hone.runs.display import Display, PlainDisplay, make_display
from hone.runs.live import LiveDisplay, panel
from hone.runs.progress import Progress, duration, percent, short_seconds, sparkline, thousands
from hone.runs.signals import StopRequest

RL = {
    "reward/mean": 0.4321,
    "reward/std": 0.21,
    "outcome/correct": 0.0625,
    "outcome/wrong": 0.9,
    "outcome/truncated": 0.0375,
    "outcome/grader_error": 0.0,
    "completion/length/mean": 14.26,
    "completion/truncated": 0.004,
}
CANARY = {"canary/gap/mean": 1e-8, "canary/gap/max": 1e-7, "canary/verdict": 0.0}
EVAL = {
    "eval/reverse-text/reward/mean": 0.9124,
    "eval/reverse-text/exact": 0.61,
    "eval/reverse-text/ci95/low": 0.897,
    "eval/reverse-text/ci95/high": 0.9271,
}
TIMES = {"tokens/s": 21234.0, "time/step": 0.312, "time/sample": 0.09, "time/train": 0.2}


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def plain(kind: str, max_steps: int):
    clock, out = Clock(), io.StringIO()
    display = PlainDisplay(Progress(kind, max_steps, clock), out)
    display.start(0)
    return display, clock, out


def test_a_task_of_several_turns_says_how_many_they_were():
    progress = Progress("rl", 150)
    progress.update(0, RL | {"turns/mean": 2.345}, TIMES)
    assert "length 14.3 tokens in 2.3 turns" in progress.summary()
    out = io.StringIO()
    Console(file=out, width=80).print(panel(progress, 80))
    assert "length    14.3 tokens in 2.3 turns, 0.4 % truncated" in out.getvalue()


def test_the_time_left_is_of_the_steps_and_not_of_a_pause():
    display, clock, out = plain("rl", 20)
    for step in range(13):
        clock.now += 5.0 if step == 0 else 1.0
        display.step(step, RL, TIMES)
        if step == 5:
            display.phase("pause")
            clock.now += 600.0
            assert display._progress.left == 14.0, "the clock stands still"
            display.phase("sample")
    display.close()
    assert display._progress.left == 7.0 and "0:07 left" in out.getvalue().splitlines()[-1]


def test_plain_rl_line():
    display, clock, out = plain("rl", 150)
    clock.now += 0.5
    display.step(0, {"step": 0} | RL, TIMES)
    display.close()
    assert out.getvalue() == (
        "step   1/150  reward 0.432 (std 0.21)  correct 6.2 %  length 14.3 tokens  truncated 0.4 %  "
        "21.2k tokens/s  0.31 s/step  1:14 left\n"
    )


def test_plain_sft_line():
    display, clock, out = plain("sft", 900)
    clock.now += 0.05
    display.step(0, {"step": 0, "loss": 4.63214, "lr": 2e-4, "val/loss": 4.7}, TIMES | {"time/step": 0.0351})
    display.close()
    assert out.getvalue() == (
        "held out, at step 0: validation loss 4.7000 nats/token\n"
        "step   1/900  loss 4.6321 nats/token  lr 2.00e-04  21.2k tokens/s  35 ms/step  0:45 left\n"
    )


def test_plain_shows_a_line_in_two_seconds_and_always_first_last_and_evaluations():
    display, clock, out = plain("rl", 100)
    for step in range(100):
        clock.now += 0.25
        display.step(step, {"step": step} | CANARY | RL | (EVAL if step == 51 else {}), TIMES)
    display.step(100, {"step": 100} | CANARY | EVAL, {"time/step": 1.0})
    display.close()
    lines = out.getvalue().splitlines()
    shown = [int(line.split()[1].split("/")[0]) for line in lines if line.startswith("step")]
    assert shown == [1, *range(9, 100, 8), 100]
    text = "reverse-text reward 0.912 (95 % interval 0.897 to 0.927), exact 61 %"
    assert [line for line in lines if line.startswith("held")] == [
        f"held out, at step 51: {text}",
        f"held out, at step 100: {text}",
    ]
    assert lines[-1].startswith("held") and "left" not in lines[-2]


def test_plain_shows_the_step_at_which_it_stops():
    display, clock, out = plain("rl", 100)
    for step in range(3):
        clock.now += 0.1
        display.step(step, {"step": step} | RL, TIMES)
    display.close()
    assert [line.split()[1] for line in out.getvalue().splitlines()] == ["1/100", "3/100"]


def test_plain_says_what_a_long_step_is_busy_with():
    display, clock, out = plain("rl", 100)
    display.phase("sample")
    clock.now += 1.9
    display.tick()
    assert out.getvalue() == ""
    clock.now += 0.2
    display.tick()
    display.tick()
    display.phase("train")
    clock.now += 5
    display.tick()
    display.close()
    assert out.getvalue() == "step 1/100: sampling ...\nstep 1/100: training ...\n"


def test_plain_says_how_far_a_long_part_has_come():
    display, clock, out = plain("rl", 100)
    display.phase("grade")
    for done, seconds in ((1, 2.5), (2, 0.5), (3, 2.0)):
        clock.now += seconds
        display.doing(f"grading: {done} of 4 done")
        display.tick()
    display.doing("")
    clock.now += 2.5
    display.tick()
    display.close()
    said = ["grading: 1 of 4 done", "grading: 3 of 4 done", "grading"]
    assert out.getvalue() == "".join(f"step 1/100: {words} ...\n" for words in said)


def test_eta_leaves_out_the_slow_first_step():
    clock = Clock()
    progress = Progress("rl", 10, clock)
    progress.start(2)
    assert progress.left is None
    for step, seconds in ((2, 9.0), (3, 1.0), (4, 1.0)):
        clock.now += seconds
        progress.update(step, {"step": step} | RL, TIMES)
    assert progress.left == 5.0 and progress.done == 5


def test_words():
    assert [percent(x) for x in (0, 0.004, 0.0994, 0.5, 1)] == ["0 %", "0.4 %", "9.9 %", "50 %", "100 %"]
    assert [thousands(x) for x in (999, 1234, 2_500_000)] == ["999", "1.2k", "2.5M"]
    assert [short_seconds(x) for x in (0.0351, 0.5, 12.34, 125)] == ["35 ms", "0.50 s", "12.3 s", "2:05"]
    assert [duration(x) for x in (7, 754, 3723)] == ["0:07", "12:34", "1:02:03"]


def test_sparkline():
    assert sparkline([0, 0.5, 1], 10) == "▁▅█" or sparkline([0, 0.5, 1], 10) == "▁▄█"
    assert sparkline([0, 0, 1, 1], 2) == "▁█"
    assert sparkline([5, 6, 7, 8], 4)[0] == "▁" and sparkline([5, 6, 7, 8], 4)[-1] == "█"
    assert sparkline([], 5) == "" and sparkline([3, 3], 5) == "▁▁"


def lines_of(progress: Progress, width: int, notice: str = "") -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=False).print(panel(progress, width, notice))
    return [line.strip("│╭╰╮╯─ ") for line in out.getvalue().splitlines()]


def test_live_panel():
    clock = Clock()
    progress = Progress("rl", 150, clock)
    progress.start(0)
    assert lines_of(progress, 100)[1].startswith("0/150 steps")
    for step in range(40):
        clock.now += 0.3
        progress.update(step, {"step": step} | RL | (EVAL if step == 30 else {}), TIMES | {"time/total": 12.5})
    progress.enter("train")
    clock.now += 3
    lines = lines_of(progress, 100, "stopping soon")
    assert lines[1].startswith("40/150 steps") and lines[1].endswith("0:15 gone, 0:41 left")
    assert lines[2].startswith("reward    0.432 std 0.21  ▄▄▄▄")
    assert lines[3:] == [
        "length    14.3 tokens, 0.4 % truncated",
        "outcomes  correct 6.2 %  wrong 90 %  truncated 3.8 %",
        "held out  reverse-text reward 0.912 (95 % interval 0.897 to 0.927), exact 61 %, at step 30",
        "speed     21.2k tokens/s, 0.31 s/step (sample 90 ms, train 0.20 s)",
        "now       training, 3 s",
        "stopping soon",
        "",
    ]
    assert all(len(line) <= 60 for line in lines_of(progress, 60))


def test_choice_of_display():
    assert type(make_display("none", "rl", 3)) is Display
    assert isinstance(make_display("auto", "rl", 3, io.StringIO()), PlainDisplay)


def read_all(fd: int, pieces: list[bytes]) -> None:
    """Everything that is written to a terminal until it is closed; it holds little, so it must be read meanwhile."""
    try:
        while piece := os.read(fd, 65536):
            pieces.append(piece)
    except OSError:  # how Linux says that the other end is closed
        pass


def test_live_on_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    leader, follower = pty.openpty()
    pieces: list[bytes] = []
    reader = threading.Thread(target=read_all, args=(leader, pieces))
    reader.start()
    with os.fdopen(follower, "w", encoding="utf-8") as out:
        assert isinstance(make_display("plain", "rl", 3, out), PlainDisplay)
        display = make_display("auto", "rl", 3, out)
        assert isinstance(display, LiveDisplay)
        display.start(0)
        with StopRequest(display.notice):
            os.kill(os.getpid(), signal.SIGTERM)
        display.message("[kept] as written: /a/b[c]")
        display.step(0, {"step": 0} | RL, TIMES)
        display.close()
    reader.join()
    os.close(leader)
    text = b"".join(pieces).decode()
    assert "[kept] as written: /a/b[c]" in text
    assert "SIGTERM: finishing this step" in text and "1/3 steps" in text and "tokens/s" in text


def test_a_reward_that_is_the_same_for_all_examples_has_no_interval():
    """Student's t of equal values has no width, which is not to be sure of anything."""
    progress = Progress("rl", 10)
    progress.evals = {"eval/t/reward/mean": 0.0, "eval/t/ci95/low": 0.0, "eval/t/ci95/high": 0.0, "eval/t/exact": 0.0}
    assert progress.evaluation() == ["t reward 0.000, exact 0 %"]
    progress.evals |= {"eval/t/reward/mean": 0.25, "eval/t/ci95/high": 0.5}
    assert progress.evaluation() == ["t reward 0.250 (95 % interval 0.000 to 0.500), exact 0 %"]
