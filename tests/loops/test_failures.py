"""What happens when completions can't be graded: told once, counted, and an end when they are too many."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest

from hone.config.rl import RLConfig
from hone.errors import Halt
from hone.loops.recorder import FailureWatch
from hone.runs import Run
from hone.runs.display import make_display
from hone.runs.progress import Progress
from hone.runs.writer import RunWriter
from hone.types import Outcome, Score

TRACE = "Traceback (most recent call last):\n  line 3\nKeyError: 'digits'"


def scores(failed: int, graded: int, outcome: Outcome = Outcome.GRADER_ERROR, detail: str = TRACE) -> list[Score]:
    return [Score(1.0, {}, {}, Outcome.CORRECT)] * graded + [Score(math.nan, {}, {}, outcome, detail)] * failed


@pytest.fixture
def make(tmp_path: Path):
    def call(max_failed: float = 0.1, planned: int = 10_000) -> tuple[FailureWatch, io.StringIO, RunWriter]:
        out = io.StringIO()
        writer = RunWriter.start(
            RLConfig(output_dir=tmp_path / "run", display="plain"),
            "rl",
            ["rl"],
            observers=[make_display("plain", Progress("rl", 100), out)],
        )
        return FailureWatch(max_failed, planned, writer), out, writer

    return call


def events(tmp_path: Path) -> list[tuple]:
    found = [e for e in Run(tmp_path / "run").events() if str(e["kind"]).startswith("grader")]
    return [(e["kind"], e["step"], e["count"], e["total"], e["detail"]) for e in found]


def test_the_first_of_each_kind_is_told_and_the_total_at_the_end(make, tmp_path):
    watch, out, writer = make()
    with writer:
        watch.step(0, scores(0, 100))
        for step in range(1, 6):
            watch.step(step, scores(3, 97) + scores(step == 4, 0, Outcome.GRADER_TIMEOUT, "grading took 10 seconds"))
        watch.show_total()
    printed = out.getvalue()
    assert printed.count("could not be graded; the first:") == 2 and printed.count(TRACE) == 1
    assert f"3 of 100 completions could not be graded; the first: {TRACE}" in printed
    assert "1 of 101 completions could not be graded; the first: grading took 10 seconds" in printed
    assert "16 of 601 completions could not be graded" in printed
    assert events(tmp_path) == [
        ("grader_error", 1, 3, 100, TRACE),
        ("grader_timeout", 4, 1, 101, "grading took 10 seconds"),
    ]
    assert Run(tmp_path / "run").info["inexact"] == [{"step": 4, "cause": "a grader was ended at its deadline"}]


def test_completions_whose_graders_were_killed_make_the_run_inexact_and_other_errors_do_not(make, tmp_path):
    watch, _, writer = make(max_failed=1.0)
    killed = [Score(math.nan, {}, {}, Outcome.GRADER_ERROR, "was ended by SIGKILL", killed=True)]
    with writer:
        watch.step(0, scores(3, 97))
        assert writer.info["exact"]
        watch.step(3, scores(3, 96) + killed)
        watch.step(4, killed + scores(0, 99))
    [entry] = Run(tmp_path / "run").info["inexact"]
    assert entry["step"] == 3 and "killed" in entry["cause"]


def steps_until_halt(watch: FailureWatch, failed: int, graded: int, most: int = 200) -> int | None:
    for step in range(most):
        try:
            watch.step(step, scores(failed, graded))
        except Halt:
            return step
    return None


@pytest.mark.parametrize(
    ("failed", "graded", "planned", "last"),
    [
        (13, 115, 10_000, 7),  # 10.2 %: 104 of 1,024
        (12, 116, 10_000, None),  # 9.4 %
        (7, 1, 64, 3),  # a run of 64 altogether: more than 25
        (2, 30, 320, None),  # 6 % of 32
        (300, 1700, 10_000, 0),  # a step of more than 1,000
    ],
)
def test_a_run_ends_when_more_than_a_tenth_of_the_last_thousand_failed(make, failed, graded, planned, last):
    watch, _, writer = make(planned=planned)
    with writer:
        if failed == 300:
            with pytest.raises(Halt, match=r"300 of the last 2000 completions .* limit is 10% of 2000 .*digits"):
                watch.step(0, scores(failed, graded))
        else:
            assert steps_until_halt(watch, failed, graded) == last
