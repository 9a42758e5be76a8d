"""What a stranger reads on a terminal or in a log. The clock is handed in."""

import io

from rich.console import Console

from hone.runs.display import PlainDisplay, panel
from hone.runs.progress import Progress

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
    "eval/reverse-text/correct": 0.61,
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


def test_plain_shows_a_line_in_two_seconds_and_always_first_last_and_evaluations():
    display, clock, out = plain("rl", 100)
    for step in range(100):
        clock.now += 0.25
        display.after_step(step, {"step": step} | CANARY | RL | (EVAL if step == 51 else {}), TIMES)
    display.after_step(100, {"step": 100} | CANARY | EVAL, {"time/step": 1.0})
    display.at_end("done")
    lines = out.getvalue().splitlines()
    shown = [int(line.split()[1].split("/")[0]) for line in lines if line.startswith("step")]
    assert shown == [1, *range(9, 100, 8), 100]
    text = "reverse-text reward 0.912 (95 % interval 0.897 to 0.927), correct 61 %"
    assert [line for line in lines if line.startswith("held")] == [
        f"held out, at step 51: {text}",
        f"held out, at step 100: {text}",
    ]
    assert lines[-1].startswith("held") and "left" not in lines[-2]


def lines_of(progress: Progress, width: int, notice: str = "") -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=False).print(panel(progress, width, notice))
    return [line.strip("│╭╰╮╯─ ") for line in out.getvalue().splitlines()]


def test_live_panel():
    clock = Clock()
    progress = Progress("rl", 150, clock)
    progress.start(0)
    assert lines_of(progress, 100)[1].startswith("steps  0/150, ")
    for step in range(40):
        clock.now += 0.3
        progress.update(step, {"step": step} | RL | (EVAL if step == 30 else {}), TIMES | {"time/total": 12.5})
    progress.enter("train")
    clock.now += 3
    lines = lines_of(progress, 100, "stopping soon")
    assert lines[1] == "steps     40/150, 0:15 elapsed, 0:34 left"
    assert lines[3:] == [
        "latest    reward 0.432 (std 0.21), correct 6.2 %, length 14.3 tokens, truncated 0.4 %, 21.2k",
        "tokens/s, 0.31 s/step",
        "held out  reverse-text reward 0.912 (95 % interval 0.897 to 0.927), correct 61 %, at step 30",
        "now       training, 3 s",
        "stop      stopping soon",
        "",
    ]
    assert all(len(line) <= 60 for line in lines_of(progress, 60))
