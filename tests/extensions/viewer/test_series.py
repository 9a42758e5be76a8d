"""The numbers of a run as columns: what was written, whatever happens to the files."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from run_folders import write_lines

from hone.extensions.viewer.series import Series, axes, read_series, to_json
from hone.runs.files import write_file


def line(step: int, **more: float | None) -> dict:
    return {"step": step, "reward/mean": step / 10, "tokens/total": 100 * (step + 1)} | more


def clock(step: int) -> dict:
    return {"step": step, "time/step": 36.0, "time/total": 36.0 * (step + 1)}


def series_of(path: Path, metrics: list[dict], timings: list[dict] | None = None) -> Series:
    path.mkdir(exist_ok=True)
    write_lines(path / "metrics.jsonl", metrics)
    write_lines(path / "timings.jsonl", timings or [])
    return read_series(path)


def test_both_logs_are_one_table_with_what_is_missing_as_nan(tmp_path: Path) -> None:
    held_out = {"eval/t/reward/mean": 0.25, "entropy": None, "kl": None}
    series = series_of(tmp_path, [line(0, **held_out), line(1), line(2, entropy=0.5)], [clock(0), clock(1)])
    assert series.steps.tolist() == [0, 1, 2] and not {"kl", "nothing"} & set(series.names)
    assert series.column("reward/mean").tolist() == [0.0, 0.1, 0.2]
    assert np.isnan(series.column("entropy")).tolist() == [True, True, False]
    assert series.column("time/step").tolist()[:2] == [36.0, 36.0] and math.isnan(series.column("time/step")[2])
    assert np.isnan(series.column("nothing")).all()
    assert (series.latest("entropy"), series.latest("nothing")) == (0.5, None)
    steps, values = series.points("eval/t/reward/mean")
    assert (steps.tolist(), values.tolist()) == ([0], [0.25])


def test_a_log_that_grows_or_is_rolled_back_is_read_again(tmp_path: Path) -> None:
    series = series_of(tmp_path, [line(0), line(1)], [clock(0)])
    assert read_series(tmp_path) is series
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write(json.dumps(line(2)) + '\n{"step": 3, "rew')
    assert read_series(tmp_path).steps.tolist() == [0, 1, 2], "a torn line waits"
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('ard/mean": 0.75}\n')
    assert read_series(tmp_path).column("reward/mean").tolist() == [0.0, 0.1, 0.2, 0.75]
    kept = (tmp_path / "metrics.jsonl").read_text().splitlines(keepends=True)[:1]
    write_file(tmp_path / "metrics.jsonl", "".join(kept) + '{"step": 1, "reward/mean": 0.9}\n')
    assert read_series(tmp_path).column("reward/mean").tolist() == [0.0, 0.9]


def test_tokens_and_hours_are_those_that_a_step_began_with(tmp_path: Path) -> None:
    last = {"step": 3, "eval/t/reward/mean": 0.5}
    found = axes(series_of(tmp_path, [line(0), line(1), line(2), last], [clock(0), clock(1), clock(2)]))
    assert found["step"].tolist() == [0, 1, 2, 3]
    assert found["tokens"].tolist() == [0, 100, 200, 300]
    assert found["hours"] == pytest.approx([0, 0.01, 0.02, 0.03])


def test_a_long_run_is_thinned_out_and_a_stack_keeps_common_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = [line(step, a=step % 7, b=-(step % 5)) | ({"c": 1.0} if step % 1000 == 0 else {}) for step in range(5000)]
    metrics[1234]["reward/mean"] = 1e6
    series = series_of(tmp_path, metrics)
    monkeypatch.setattr("hone.extensions.viewer.series.POINTS", 300)
    made = to_json(series, ["reward/mean", "a", "b", "c"], stacks=[["a", "b"]])
    one, steps = made["series"]["reward/mean"], made["x"]["step"]
    assert len(one["y"]) <= 300 and len(steps) < 900
    at = {steps[row]: y for row, y in zip(one["rows"], one["y"], strict=True)}
    assert at[1234] == 1e6 and at[0] == 0.0 and at[4999] == 499.9
    assert made["series"]["a"]["rows"] == made["series"]["b"]["rows"]
    assert [steps[row] for row in made["series"]["c"]["rows"]] == [0, 1000, 2000, 3000, 4000]
