"""`hone runs list`: one row per run, and what can be done about those that aren't done."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from run_folders import checkpoint, entry, held, make_run

from hone.cli import main


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def rows(out: str) -> dict[str, list[str]]:
    """The table's cells by directory; columns are two spaces or more apart."""
    lines = out.split("\n\n")[0].splitlines()
    cells = [[cell for cell in line.split("  ") if cell] for line in lines]
    return {row[0]: [cell.strip() for cell in row[1:]] for row in cells}


def test_a_row_for_each_run_and_its_next_command(capsys: pytest.CaptureFixture[str]) -> None:
    make_run(Path("outputs/done"))
    make_run(Path("outputs/sft"), kind="sft", started="2026-01-01T00:00:00+00:00")
    checkpoint(make_run(Path("outputs/killed"), "running", steps=3, exact=False), 2)
    make_run(Path("outputs/working"), "running", steps=1)
    with held(Path("outputs/working")) as process:
        assert main(["runs", "list"]) == 0
    out = capsys.readouterr().out
    assert list(rows(out)) == ["run", "outputs/sft", "outputs/done", "outputs/killed", "outputs/working"]
    assert rows(out)["run"] == ["kind", "status", "steps", "latest", "held out", "exact", "started", "took"]
    assert rows(out)["outputs/done"] == [
        *("rl", "done", "4/4", "reward 0.300", "reward 0.250", "yes", "2026-01-02 03:04", "0:02")
    ]
    assert rows(out)["outputs/sft"][:6] == ["sft", "done", "4/4", "loss 2.0000", "-", "yes"]
    assert rows(out)["outputs/killed"][:3] == ["rl", "killed", "3/4"] and rows(out)["outputs/killed"][5] == "no"
    assert rows(out)["outputs/working"][1] == "running"
    assert out.split("\n\n")[1].splitlines() == [
        "outputs/killed: killed after 3 of 4 steps",
        "    to go on from step 2: hone rl @ outputs/killed/config.toml --resume",
        f"outputs/working: at work on step 2 of 4, in process {process.pid}",
        "    to watch it: hone runs attach outputs/working",
        "    to end it: hone runs stop outputs/working",
    ]


def test_evaluations_and_earlier_runs_are_shown_if_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    make_run(Path("outputs"))
    make_run(Path("outputs/.previous/old"))
    evaluation = make_run(Path("outputs/evals/one"), kind="eval")
    (evaluation / "metadata.json").write_text(json.dumps({"metrics": {"eval/t/reward/mean": 0.75}}))
    assert main(["runs", "list"]) == 0
    out = capsys.readouterr().out
    assert list(rows(out)) == ["run", "outputs"]
    assert out.endswith("\nnot shown: 1 evaluation and 1 earlier run (hone runs list outputs --all)\n")
    assert main(["runs", "list", "--all", "--ids"]) == 0
    found = rows(capsys.readouterr().out)
    assert {name: row[0] for name, row in found.items() if name != "run"} == {
        "outputs": "id-outputs",
        "outputs/.previous/old": "id-old",
        "outputs/evals/one": "id-one",
    }
    assert found["outputs/evals/one"][1:7] == ["eval", "done", "-", "-", "reward 0.750", "-"]


def test_a_damaged_run_does_not_hide_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    make_run(Path("outputs/a"))
    (make_run(Path("outputs/b")) / "metrics.jsonl").write_text("garbage\n")
    (make_run(Path("outputs/c")) / "run.json").write_text('{"not": "hone"}')
    assert main(["runs", "list"]) == 0
    out = capsys.readouterr().out
    assert list(rows(out)) == ["run", "outputs/a"]
    assert out.count("damaged: ") == 1 and "outputs/b/metrics.jsonl, line 1, is damaged" in out


def test_looking_at_runs_loads_nothing_heavy() -> None:
    run = make_run(Path("outputs"))
    checkpoint(run, 4, [entry(0, 0, "a")])
    code = """
import sys
from hone.cli import main
assert [main(["runs", word]) for word in ("list", "show", "attach", "ledger")] == [0] * 4
print({name.split(".")[0] for name in sys.modules} & {"torch", "transformers", "pyarrow", "numpy", "rich"})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
