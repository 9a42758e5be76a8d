"""`hone sft` at the command line: what it says, its exit codes, and that bad input touches nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from refusals import fails
from run_folders import snapshot

from hone.cli import main


@pytest.fixture
def data(tmp_path) -> Path:
    path = tmp_path / "rows.jsonl"
    rows = [{"prompt": f"item {i}", "completion": f"{i:03d}"} for i in range(10)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def sft(tiny_model_dir, data, tmp_path):
    """Calls `hone sft` with working defaults; later flags win."""

    def call(*flags: str, model: str | Path = tiny_model_dir, path: str | Path | None = data) -> int:
        base = ["--model.name", str(model), "--max-steps", "3", "--output-dir", str(tmp_path / "out")]
        base += ["--data.batch-size", "2", "--data.no-pack", "--display", "plain"]
        return main(["sft", *base, *(["--data.path", str(path)] if path else []), *flags])

    return call


def test_it_reports_the_losses_where_the_weights_are_and_what_to_do_next(sft, tmp_path, capsys):
    assert sft("--val.interval", "2", "--val.fraction", "0.2") == 0
    out = capsys.readouterr().out
    weights = tmp_path / "out" / "weights" / "step_3"
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert f"Done: 3 steps, loss {lines[2]['loss']:.4f}, val/loss {lines[3]['val/loss']:.4f}. Weights: {weights}" in out
    assert f"hone eval ENV -m {weights}" in out
    assert "SFT: " in out and "data set `rows.jsonl`" in out


def test_special_tokens_in_rows_are_said_once(sft, data, tmp_path, capsys):
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    rows[4]["prompt"], rows[7]["completion"] = "a<|im_end|>", "b<|im_start|>"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert sft("--max-steps", "5") == 0
    out = capsys.readouterr().out
    assert out.count("2 texts hold special tokens of the model, encoded as text") == 1
    assert "Special tokens encoded as text: in 2 texts of the data." in out
    events = [json.loads(line) for line in (tmp_path / "out" / "events.jsonl").read_text().splitlines()]
    (event,) = [event for event in events if event["kind"] == "special_tokens"]
    assert event["texts"] == 2 and event["first"] in (f"{data}, line 5", f"{data}, line 8")
    assert sft("--max-steps", "5", "--model.special-tokens") == 0
    assert "special tokens" not in capsys.readouterr().out


def test_a_run_may_not_clear_its_own_model_or_data(sft, tmp_path, capsys):
    assert sft() == 0
    capsys.readouterr()
    weights = tmp_path / "out" / "weights" / "step_3"
    before = snapshot(tmp_path / "out")
    fails(capsys, sft(model=weights), str(weights), "--output-dir")
    assert snapshot(tmp_path / "out") == before


@pytest.mark.parametrize(("flags", "words"), [((), "torchrun"), (("--detach",), "several ranks")])
def test_several_ranks_need_torchrun_and_its_terminal(sft, monkeypatch, capsys, tmp_path, flags, words):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    fails(capsys, sft(*flags), words)
    assert not (tmp_path / "out").exists()
