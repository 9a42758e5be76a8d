from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path

from readers import nobody_reads
from run_folders import held

import hone
from hone.cli import call
from hone.extension import extensions


def hone_eval(*words: str) -> int:
    return call("eval", list(words), "hone eval")


def test_a_checkpoint_is_evaluated_and_the_results_saved(here: Path, tiny_model_dir: Path, capsys, monkeypatch):
    model = str(tiny_model_dir)
    assert hone_eval("reverse-text", "-m", model, "-n", "3", "-r", "2", "-t", "6", "-T", "0.7") == 0
    out = capsys.readouterr().out
    (folder,) = (here / "outputs" / "evals").glob("reverse-text--*/*")
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    metadata = json.loads((folder / "metadata.json").read_text())
    assert [(row["example"], row["rollout"]) for row in rows] == [(e, r) for e in range(3) for r in range(2)]
    assert all(1 <= row["completion_tokens"] <= 6 for row in rows)
    assert metadata["sampling"] == {"max_tokens": 6, "temperature": 0.7, "top_p": 1.0, "seed": 0}
    mean = metadata["metrics"]["eval/reverse-text/reward/mean"]
    assert re.search(rf"^reward +{mean:.3f} ±", out, re.MULTILINE)
    assert f"saved       {folder.relative_to(here)}/results.jsonl" in out
    assert out.endswith(f"next        hone report {folder.relative_to(here)}\n") == ("viewer" in extensions())
    assert "\x1b" not in out
    monkeypatch.setattr("hone.extension.extensions", dict)
    assert hone_eval("reverse-text", "-m", model, "-n", "1", "-r", "1", "-t", "6") == 0
    assert "hone report" not in capsys.readouterr().out, "its extension is gone"


def test_when_too_many_completions_cannot_be_graded_the_exit_code_is_1(here: Path, tiny_model_dir: Path, capsys):
    task = """
from hone.environments import Rubric, SingleTurnEnv

def brittle(completion, answer):
    return 1 / int(answer)

def load_environment():
    rows = [{"question": "q", "answer": str(i % 4)} for i in range(8)]
    return SingleTurnEnv(rubric=Rubric([brittle]), eval_dataset=rows)
"""
    (here / "environments").mkdir()
    (here / "environments" / "brittle_task.py").write_text(task)
    words = ("brittle-task", "-m", str(tiny_model_dir), "-n", "8", "-r", "1", "-t", "2", "--no-save")
    assert hone_eval(*words) == 1
    assert "2 of 8 completions could not be graded, more than 10% (--grading.max-failed)" in capsys.readouterr().err
    assert hone_eval(*words, "-n", "9", "--grading.max-failed", "0.25") == 0
    assert "brittle-task has 8 held-out examples: all are used (9 asked for)" in capsys.readouterr().out
    hone.evaluate("brittle-task", model=str(tiny_model_dir), num_examples=9, max_tokens=2)
    assert "all are used (9 asked for)" in capsys.readouterr().err


def test_results_are_saved_though_nobody_reads_what_is_printed(here: Path, tiny_model_dir: Path):
    with nobody_reads(), contextlib.suppress(SystemExit):  # rich's, at its first line
        hone_eval("reverse-text", "-m", str(tiny_model_dir), "-n", "1", "-r", "1", "-t", "2", "--output-dir", "saved")
    assert len((here / "saved" / "results.jsonl").read_text("utf-8").splitlines()) == 1
    assert {"run.json", "config.toml", "metadata.json"} < {file.name for file in (here / "saved").iterdir()}


def test_a_folder_in_which_another_process_evaluates_is_refused(here: Path, tiny_model_dir: Path, capsys):
    words = ("reverse-text", "-m", str(tiny_model_dir), "-n", "2", "-t", "2", "--output-dir", "out")
    assert hone_eval(*words) == 0
    before = {path.name: path.read_bytes() for path in (here / "out").iterdir()}
    with held(here / "out"):
        assert hone_eval(*words) == 2
    assert "another process is writing a run in out" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in (here / "out").iterdir()} == before
    assert hone_eval(*words) == 0, "it was let go"
