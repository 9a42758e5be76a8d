"""How runs stand in the list: equal to what reading all of their files says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from run_folders import held, make_run, metrics, write_lines

from hone.errors import UserError
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


def test_of_a_long_run_the_last_steps_and_all_evaluations_are_read(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", steps=0, max_steps=5000)
    lines = [metrics("rl", step) for step in range(5000)]
    for step in (0, 1717, 4321):
        lines[step]["eval/t/reward/mean"] = step / 10_000
    write_lines(run / "metrics.jsonl", lines)
    write_lines(
        run / "timings.jsonl", [{"step": s, "time/step": 2.0, "time/total": 2.0 * (s + 1)} for s in range(5000)]
    )
    state, summary = read_state(run), summarize(run)
    assert len(state.progress.history) <= 120 and len(summary.progress.history) == 5000
    assert state.progress.evals == summary.progress.evals and state.progress.eval_step == 4321
    assert state.first_evals["eval/t/reward/mean"] == 0.0
    assert (state.progress.done, state.spent.tokens, state.seconds) == (5000, 499_900, 10_000.0)
    assert state.progress.history[-3:] == summary.progress.history[-3:]


def test_the_time_left_is_that_of_the_last_steps(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", "running", steps=0, max_steps=100)
    write_lines(run / "metrics.jsonl", [metrics("sft", step) for step in range(40)])
    write_lines(run / "timings.jsonl", [{"step": s, "time/step": 9.0 if s < 20 else 2.0} for s in range(40)])
    assert read_state(run).left is None  # nobody is at it
    with held(run):
        assert read_state(run).left == pytest.approx(2.0 * 60)


def test_alarms_stand_until_they_are_over(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    events(run, ("alarm", "kl", 1), ("alarm", "truncation", 2))
    assert [alarm["name"] for alarm in read_state(run).alarms] == ["kl", "truncation"]
    events(run, ("alarm_over", "kl", 3), ("checkpoint", "kl", 3))
    assert [alarm["name"] for alarm in read_state(run).alarms] == ["truncation"]


def test_a_damaged_line_of_a_long_log_makes_it_unreadable(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", steps=0, max_steps=5000)
    lines = [json.dumps(metrics("rl", step)) for step in range(5000)]
    lines[1717] = lines[1717][:-9]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 1718, is damaged"):
        read_state(run)
