"""How runs stand, kept up to date from what their files got: equal to what reading all of them says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from run_folders import held, make_run, metrics, write_lines

from hone.runs.files import write_file
from hone.runs.summary import summarize
from hone.viewer.state import LINES, Watcher


def events(run: Path, *names: tuple[str, str, int]) -> None:
    write_lines(
        run / "events.jsonl",
        [{"kind": kind, "step": step, "name": name, "evidence": "so it is"} for kind, name, step in names],
        "a",
    )


def same(run: Path, watcher: Watcher) -> None:
    state, summary = watcher.look(), summarize(run)
    assert (state.status, state.pid, state.kind, state.task) == (
        summary.status,
        summary.pid,
        summary.kind,
        summary.task,
    )
    assert state.progress.done == summary.progress.done and state.progress.metrics == summary.progress.metrics
    assert state.progress.timings == summary.progress.timings and state.progress.evals == summary.progress.evals
    assert state.progress.eval_step == summary.progress.eval_step
    assert state.progress.history == summary.progress.history
    assert state.spent.seconds == summary.spent.seconds and state.spent.usd == summary.spent.usd
    assert state.spent.tokens == summary.spent.tokens
    assert state.kind == "sft" or state.spent.recent_seconds == summary.spent.recent_seconds


@pytest.mark.parametrize("kind", ["rl", "sft"])
def test_a_run_that_grows_stands_as_its_files_say(tmp_path: Path, kind: str) -> None:
    run = make_run(tmp_path / "a", "running", kind=kind, steps=2, max_steps=9)
    watcher = Watcher(run)
    same(run, watcher)
    for step in (2, 3):
        write_lines(run / "metrics.jsonl", [metrics(kind, step)], "a")
        watcher.look()  # between its two lines
        write_lines(
            run / "timings.jsonl", [{"step": step, "time/step": 2.0, "time/total": 9.0 + step, "usd/total": 0.5}], "a"
        )
        same(run, watcher)


def test_an_earlier_look_stays_as_it_was(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", steps=2)
    watcher = Watcher(run)
    before = watcher.look()
    write_lines(run / "metrics.jsonl", [metrics("rl", 2)], "a")
    assert watcher.look().progress.history == [0.0, 0.1, 0.2] and before.progress.history == [0.0, 0.1]


def test_a_roll_back_is_noticed(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", steps=4)
    watcher = Watcher(run)
    watcher.look()
    for name in ("metrics", "timings"):
        kept = (run / f"{name}.jsonl").read_text().splitlines(keepends=True)[:2]
        write_file(run / f"{name}.jsonl", "".join(kept))
    (run / "superseded" / "1").mkdir(parents=True)
    write_lines(run / "superseded" / "1" / "timings.jsonl", [{"step": 3, "time/step": 0.5, "time/total": 99.5}])
    same(run, watcher)
    assert watcher.look().progress.done == 2 and watcher.look().seconds == 99.5


def test_of_a_long_run_the_last_steps_and_all_evaluations_are_read(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", steps=0, max_steps=5000)
    lines = [metrics("rl", step) for step in range(5000)]
    for step in (0, 1717, 4321):
        lines[step]["eval/t/reward/mean"] = step / 10_000
    write_lines(run / "metrics.jsonl", lines)
    write_lines(
        run / "timings.jsonl", [{"step": s, "time/step": 2.0, "time/total": 2.0 * (s + 1)} for s in range(5000)]
    )
    state, summary = Watcher(run).look(), summarize(run)
    assert len(state.progress.history) <= LINES + 20 and len(summary.progress.history) == 5000
    assert state.progress.evals == summary.progress.evals and state.progress.eval_step == 4321
    assert state.first_evals["eval/t/reward/mean"] == 0.0
    assert (state.progress.done, state.spent.tokens, state.seconds) == (5000, 499_900, 10_000.0)
    assert state.progress.history[-3:] == summary.progress.history[-3:]


def test_a_run_that_is_followed_for_long_keeps_its_shape(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", steps=0, max_steps=2000)
    write_lines(run / "metrics.jsonl", [metrics("rl", step) for step in range(1000)])
    watcher = Watcher(run)
    watcher.look()
    for begin in range(1000, 2000, 20):
        write_lines(run / "metrics.jsonl", [metrics("rl", step) for step in range(begin, begin + 20)], "a")
        state = watcher.look()
    assert state.progress.done == 2000
    steps = [round(value * 10) for value in state.progress.history]
    assert sum(step < 1000 for step in steps) >= 0.3 * len(steps), "its first half has a share of the line"


def test_the_time_left_is_that_of_the_last_steps(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", "running", steps=0, max_steps=100)
    write_lines(run / "metrics.jsonl", [metrics("sft", step) for step in range(40)])
    write_lines(run / "timings.jsonl", [{"step": s, "time/step": 9.0 if s < 20 else 2.0} for s in range(40)])
    assert Watcher(run).look().left is None  # nobody is at it
    with held(run):
        assert Watcher(run).look().left == pytest.approx(2.0 * 60)


def test_alarms_stand_until_they_are_over(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    watcher = Watcher(run)
    events(run, ("alarm", "kl", 1), ("alarm", "truncation", 2))
    assert [alarm["name"] for alarm in watcher.look().alarms] == ["kl", "truncation"]
    events(run, ("alarm_over", "kl", 3), ("checkpoint", "kl", 3))
    assert [alarm["name"] for alarm in watcher.look().alarms] == ["truncation"]


def test_first_evaluations_are_kept(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", steps=0)
    write_lines(
        run / "metrics.jsonl", [{"step": 0, "val/loss": 3.0}, {"step": 1, "loss": 2.0}, {"step": 2, "val/loss": 1.0}]
    )
    state = Watcher(run).look()
    assert (state.first_evals, state.progress.evals) == ({"val/loss": 3.0}, {"val/loss": 1.0})


def test_damage_is_told_until_it_is_mended(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", steps=2)
    watcher = Watcher(run)
    text = (run / "metrics.jsonl").read_text()
    write_file(run / "metrics.jsonl", text + "garbage\n")
    for _ in range(2):
        (damage,) = watcher.look().damage
        assert "metrics.jsonl, line 3, is damaged" in damage and watcher.look().progress.done == 2
    write_file(run / "metrics.jsonl", text)
    same(run, watcher)
    assert watcher.look().damage == []


def test_a_damaged_line_of_a_long_log_is_told(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", steps=0, max_steps=5000)
    lines = [json.dumps(metrics("rl", step)) for step in range(5000)]
    lines[1717] = lines[1717][:-9]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    state = Watcher(run).look()
    assert "metrics.jsonl, line 1718, is damaged" in state.damage[0] and state.progress.done == 5000


def test_an_evaluation_stands_as_its_metadata_say(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", kind="eval", steps=0)
    (run / "metadata.json").write_text(json.dumps({"metrics": {"eval/t/exact": 0.5}, "seconds": {"sample": 1.5}}))
    state = Watcher(run).look()
    assert (state.progress.evals, state.seconds, state.left) == ({"eval/t/exact": 0.5}, 1.5, None)
