"""What a loop records of its steps, and how a run ends."""

import hashlib
import os
import time
from datetime import date, datetime

import pytest
import torch
from run_folders import start

from hone.runs import Run
from hone.runs.budget import process_seconds
from hone.runs.rollouts import as_read


def test_lines_of_a_step(tmp_path, capsys):
    with start(tmp_path) as run:
        for name in ("sample", "train", "train"):
            with run.phase(name):
                pass
        metrics = {"reward/mean": 1 / 3, "groups": 3, "eval/x/reward/mean": torch.tensor(0.5)}
        run.log_step(0, metrics, {"tokens/s": 7.25})
        for step in (1, 2):
            run.log_step(step, {"reward/mean": float("inf")})
    assert (tmp_path / "metrics.jsonl").read_text() == (
        '{"step": 0, "reward/mean": 0.3333333333333333, "groups": 3, "eval/x/reward/mean": 0.5}\n'
        '{"step": 1, "reward/mean": null}\n{"step": 2, "reward/mean": null}\n'
    )
    first, second, _ = Run(tmp_path).timings().to_pylist()
    names = ["step", "time/sample", "time/train", "time/step", "time/total", "tokens/s"]
    assert [name for name, value in first.items() if value is not None] == names
    assert first["tokens/s"] == 7.25 and 0 <= first["time/train"] <= first["time/step"]
    assert second["step"] == 1 and second["time/train"] is None
    table = Run(tmp_path).metrics()
    assert [str(field.type) for field in table.schema] == ["int64", "double", "int64", "double"]
    assert table["reward/mean"].to_pylist() == [1 / 3, None, None]
    events = [e for e in Run(tmp_path).events() if e["kind"] == "not_finite"]
    assert [(e["step"], e["metric"], e["value"]) for e in events] == [(s, "reward/mean", "inf") for s in (1, 2)]
    assert capsys.readouterr().out.count("reward/mean is inf at step 1") == 1


def test_run_json(tmp_path):
    run = start(tmp_path, seed=5)
    info = Run(tmp_path).info
    assert info["status"] == "running" and info["exact"] is True and info["kind"] == "rl" and info["seed"] == 5
    began = time.time() - process_seconds()
    assert abs(datetime.fromisoformat(info["started"]).timestamp() - began) < 3, "when its process did"
    assert info["versions"]["torch"] == torch.__version__ and info["versions"]["hone-rl"]
    assert info["threads"] == torch.get_num_threads() and info["hardware"]["cores"] >= 1
    assert info["command"] == ["hone", "rl"] and info["pid"] == os.getpid() and info["resumes"] == []
    for step in (3, 4):
        run.mark_inexact(step, "a grader deadline fired")
    run.finish("stopped")
    info = Run(tmp_path).info
    assert info["status"] == "stopped" and info["ended"] >= info["started"]
    assert info["exact"] is False and info["inexact"] == [{"step": 3, "cause": "a grader deadline fired"}]


@pytest.mark.parametrize(("saved", "error"), [(True, None), (False, KeyboardInterrupt), (True, KeyboardInterrupt)])
def test_how_the_block_ends(tmp_path, capsys, saved, error):
    try:
        with start(tmp_path) as run:
            if saved:
                run.save_checkpoint(4, {}, {})
            if error:
                raise error
    except KeyboardInterrupt:
        pass
    assert Run(tmp_path).info["status"] == ("interrupted" if error else "done")
    go_on = f"the last checkpoint is step_4; go on with: hone rl @ {tmp_path}/config.toml --resume"
    last = f"Interrupted: {go_on if saved else 'no checkpoint was saved'}."
    assert not error or capsys.readouterr().out.splitlines()[-1] == last


def test_an_evaluation_is_hashed_with_its_step(tmp_path):
    row = {"example": 0, "info": {"when": date(2026, 1, 2), 3: float("nan")}, "prompt": ["ä\n"], "reward": 1 / 3}
    with start(tmp_path) as run:
        run.evaluation(0, [row, {"example": 1}])
        run.log_step(0, {"reward/mean": 0.5}, weights="ab")
        run.log_step(1, {"reward/mean": 0.5})
    read = [
        {"example": 0, "info": {"when": "2026-01-02", "3": None}, "prompt": ["ä\n"], "reward": 1 / 3},
        {"example": 1},
    ]
    assert Run(tmp_path).eval_rows(0) == read == as_read([row, {"example": 1}])
    digest = hashlib.sha256((tmp_path / "evals" / "step_000000.jsonl").read_bytes()).hexdigest()
    first, second = Run(tmp_path).hashes()
    assert first["evals"] == digest and list(first) == ["step", "weights", "metrics", "rollouts", "evals"]
    line = (tmp_path / "metrics.jsonl").read_bytes().splitlines(keepends=True)[0]
    assert first["metrics"] == hashlib.sha256(line).hexdigest() and "evals" not in second
