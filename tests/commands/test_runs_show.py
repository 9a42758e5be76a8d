"""`hone runs show`: one page; and `hone runs attach` on a run that has ended."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from refusals import fails
from run_folders import checkpoint, make_run, write_lines

from hone.cli import main
from hone.runs.files import sha256


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")


def page(out: str) -> dict[str, str]:
    """Label → text of the page's lines; lines without a label belong to the one above."""
    found: dict[str, str] = {}
    label = ""
    for line in out.split("\n\n")[1].splitlines():
        label = line[:13].strip() or label
        found[label] = f"{found[label]} {line[13:]}" if label in found else line[13:]
    return found


def test_the_page_of_a_run_that_was_killed(capsys: pytest.CaptureFixture[str]) -> None:
    git = {"revision": "0123456789abcdef", "dirty": True}
    cause = [{"step": 1, "cause": "resumed with other torch (2.11, now 2.13)"}]
    run = make_run(Path("outputs/a"), "running", steps=3, git=git, exact=False, inexact=cause)
    for step in (1, 2):
        checkpoint(run, step)
    certificate = {"verdict": "verified", "steps": [{"step": 1}, {"step": 2}], "date": "2026-01-02T03:04:05+00:00"}
    files = ["run.json", "config.toml", "metrics.jsonl", "checkpoints/step_1/COMPLETE", "checkpoints/step_2/COMPLETE"]
    certificate["sha256"] = {name: sha256(run / name) for name in files}
    Path("outputs/a.verify.json").write_text(json.dumps(certificate))
    events = [{"kind": "checkpoint", "step": step, "time": "2026-01-02T03:04:05+00:00"} for step in range(9)]
    write_lines(run / "events.jsonl", events, "a")
    assert main(["runs", "show", "outputs/a", "--events", "2"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("outputs/a: killed after 3 of 4 steps\n\n")
    assert out.endswith("\n\nTo go on from step 2:\n  hone rl @ outputs/a/config.toml --resume\n")
    found = page(out)
    assert found["id"] == "id-a (rl on reverse-text, seed 3)"
    assert found["command"] == "hone rl @ a.toml"
    assert found["settings"] == "max_steps=4, model.name=some/model, orchestrator.batch_size=12 (the rest are defaults)"
    assert found["exact"] == "no: from step 1 on, resumed with other torch (2.11, now 2.13)"
    assert found["machine"] == "A CPU, 2 cores, 8.0 GiB, no GPU; 1 thread"
    assert found["code"] == "hone-rl 0.1.0, torch 2.13.0, numerics 1; revision 0123456789ab with changes"
    assert found["latest"] == "step 3: reward 0.200, 100 tokens/s, 0.50 s/step"
    assert found["held out"] == "reverse-text reward 0.250, at step 2"
    assert found["checkpoints"] == "outputs/a/checkpoints/step_N with N = 1, 2"
    assert "weights" not in found and "budget" not in found
    assert found["events"].count("checkpoint at step") == 2 and "step 8" in found["events"]
    assert found["events"].endswith("(the last 2 of 10: --events 10 shows all)")
    words = r"verified, steps 1, 2 done again, 2026-01-0\d \d\d:04 \(a\.verify\.json beside the run\)"
    assert re.fullmatch(words, found["certificate"])
    unchanged = {name: (run / name).read_bytes() for name in files}
    for name in files[2:]:
        (run / name).write_bytes(unchanged[name].replace(b'"', b' "', 1))
        assert main(["runs", "show", "outputs/a"]) == 0
        assert "the run has changed since: verify it again" in page(capsys.readouterr().out)["certificate"], name
        (run / name).write_bytes(unchanged[name])
    Path("outputs/a.verify.json").write_text('{"verdict": "verified"}')
    assert main(["runs", "show", "outputs/a"]) == 0
    assert page(capsys.readouterr().out)["certificate"] == "a.verify.json can't be read: verify the run again"
    Path("outputs/a.verify.json").write_text(json.dumps(certificate))
    checkpoint(run, 3)
    assert main(["runs", "show", "outputs/a"]) == 0
    assert "the run has changed since: verify it again" in page(capsys.readouterr().out)["certificate"]


def test_what_is_no_run_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    make_run(Path("outputs/a"))
    fails(capsys, main(["runs", "show"]), "outputs is not a run of hone", "(outputs/a)")
    fails(capsys, main(["runs", "show", "nix"]), "there is no run nix")


def test_to_attach_to_a_run_that_has_ended_shows_its_last_state(capsys: pytest.CaptureFixture[str]) -> None:
    make_run(Path("outputs/a"), "failed", steps=3)
    assert main(["runs", "attach", "outputs/a"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "outputs/a: failed after 3 of 4 steps",
        "step 3: reward 0.200, 100 tokens/s, 0.50 s/step",
        "held out, at step 2: reverse-text reward 0.250",
        "To start it again from step 0:",
        "  hone rl @ outputs/a/config.toml --resume",
    ]
