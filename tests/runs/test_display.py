"""What a stranger reads on a terminal or in a log. The clock is handed in."""

import io

from rich.console import Console

from hone.runs.display import panel
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
