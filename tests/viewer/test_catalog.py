"""How runs stand in the list: equal to what reading all of their files says."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_folders import make_run, write_lines

from hone.runs.summary import summarize
from hone.viewer.catalog import read_state


def events(run: Path, *names: tuple[str, str, int]) -> None:
    write_lines(
        run / "events.jsonl",
        [{"kind": kind, "step": step, "name": name, "evidence": "so it is"} for kind, name, step in names],
        "a",
    )


@pytest.mark.parametrize("kind", ["rl", "sft"])
def test_a_run_stands_as_its_files_say(tmp_path: Path, kind: str) -> None:
    run = make_run(tmp_path / "a", "running", kind=kind, steps=4, max_steps=9)
    (run / "superseded" / "1").mkdir(parents=True)
    write_lines(run / "superseded" / "1" / "timings.jsonl", [{"step": 3, "time/step": 0.5, "time/total": 99.5}])
    state, summary = read_state(run), summarize(run)
    for name in ("status", "pid", "kind", "task"):
        assert getattr(state, name) == getattr(summary, name)
    for name in ("done", "metrics", "timings", "evals", "eval_step", "history"):
        assert getattr(state.progress, name) == getattr(summary.progress, name)
    assert (state.spent.seconds, state.spent.usd, state.spent.tokens) == (99.5, summary.spent.usd, summary.spent.tokens)


def test_alarms_stand_until_they_are_over(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    events(run, ("alarm", "kl", 1), ("alarm", "truncation", 2))
    assert [alarm.name for alarm in read_state(run).alarms] == ["kl", "truncation"]
    events(run, ("alarm_over", "kl", 3), ("checkpoint", "kl", 3))
    assert [alarm.name for alarm in read_state(run).alarms] == ["truncation"]
