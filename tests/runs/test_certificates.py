"""What a certificate pins of a run."""

from pathlib import Path

from run_folders import checkpoint, make_run

from hone.runs.certificates import certificate_path, pinned
from hone.runs.files import sha256


def test_logs_and_completion_markers_are_pinned(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    checkpoint(run, 2)
    names = {"run.json", "config.toml", "metrics.jsonl", "checkpoints/step_2/COMPLETE"}  # it has no hashes.jsonl
    assert pinned(run) == {name: sha256(run / name) for name in names}
    (run / "timings.jsonl").write_text("")
    (run / "checkpoints" / "notes.txt").write_text("")
    assert pinned(run).keys() == names


def test_it_lies_beside_the_run_whatever_it_is_called_by(tmp_path: Path, monkeypatch) -> None:
    run = make_run(tmp_path / "a")
    monkeypatch.chdir(run)
    assert certificate_path(Path(".")) == certificate_path(run) == tmp_path / "a.verify.json"
