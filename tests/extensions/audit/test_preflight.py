"""What `rl` does before step 0: runs that must not start leave no trace, sound ones are as they would be without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made import SAYS, rl

from hone.runs.outputs import Lock

pytestmark = pytest.mark.audit


@pytest.fixture
def task(tmp_path, monkeypatch) -> Path:
    file = tmp_path / "says.py"
    file.write_text(SAYS.replace("SECONDS", "0"))
    monkeypatch.chdir(tmp_path)
    return file


def test_a_run_is_the_same_with_its_audit_and_without(task, tiny_model_dir):
    """The data is read once."""
    assert rl(tiny_model_dir) == 0
    assert Path("reads.txt").read_text().count("read") == 1
    assert rl(tiny_model_dir, "--no-audit", "--output-dir", "bare") == 0
    for name in ("metrics.jsonl", "hashes.jsonl", "rollouts/step_000000.parquet"):
        assert Path("outputs", name).read_bytes() == Path("bare", name).read_bytes()
    assert json.loads(Path("outputs/audit.json").read_text())["verdict"] != "skipped"


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ("--output-dir foreign", "foreign holds files that are not a run of hone (mine.txt)"),
        ("--output-dir held", "this program is writing a run in held already"),
        ("--resume.dir foreign", "--resume.dir foreign is not a run of hone: it has no run.json"),
        ("--teacher.base-url http://127.0.0.1:9/v1 --teacher.max-retries 0", "start the teacher there with"),
    ],
)
def test_what_is_seen_at_once_is_refused_before_the_audit(task, tiny_model_dir, capsys, flags, problem):
    for name in ("foreign", "held"):
        Path(name).mkdir()
    Path("foreign/mine.txt").touch()
    lock = Lock(Path("held"))
    assert rl(tiny_model_dir, "--orchestrator.env.args", '{"broken": true}', *flags.split()) == 2
    lock.release()
    assert problem in capsys.readouterr().err and not Path("outputs").exists()
