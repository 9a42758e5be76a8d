"""`hone runs list | show | stop | attach | ledger | rm`, on runs made by hand."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from refusals import fails
from run_folders import checkpoint, entry, held, make_run, rollouts, write_lines

from hone.cli import main
from hone.commands import runs
from hone.runs.files import sha256


@pytest.fixture(autouse=True)
def _here(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


@pytest.fixture
def hone(capsys):
    def call(*argv: str, code: int = 0) -> str:
        assert main(["runs", *argv]) == code
        return capsys.readouterr().out

    return call


def cells(out: str) -> dict[str, list[str]]:
    """The cells of a table by the first of each row; columns are two spaces or more apart."""
    rows = [[cell.strip() for cell in line.split("  ") if cell] for line in out.split("\n\n")[0].splitlines()]
    return {row[0]: row[1:] for row in rows}


def page(out: str) -> dict[str, str]:
    """The labelled texts of a page; lines without a label belong to the one above."""
    found: dict[str, str] = {}
    label = ""
    for line in out.split("\n\n")[1].splitlines():
        label = line[:13].strip() or label
        found[label] = f"{found[label]} {line[13:]}" if label in found else line[13:]
    return found


def test_list_has_a_row_for_each_run_and_its_next_command(hone) -> None:
    make_run(Path("outputs/done"))
    make_run(Path("outputs/sft"), kind="sft", started="2026-01-01T00:00:00+00:00")
    checkpoint(make_run(Path("outputs/killed"), "running", steps=3, exact=False), 2)
    make_run(Path("outputs/working"), "running", steps=1)
    with held(Path("outputs/working")) as process:
        out = hone("list")
    rows = cells(out)
    assert list(rows) == ["run", "outputs/sft", "outputs/done", "outputs/killed", "outputs/working"]
    assert rows["run"] == ["kind", "status", "steps", "latest", "held out", "reproducible", "started", "took"]
    assert rows["outputs/done"] == [
        *("rl", "done", "4/4", "reward 0.300", "reward 0.250", "yes", "2026-01-02 03:04", "0:02")
    ]
    assert rows["outputs/sft"][:6] == ["sft", "done", "4/4", "loss 2.0000", "-", "yes"]
    assert rows["outputs/killed"][:3] == ["rl", "killed", "3/4"] and rows["outputs/killed"][5] == "no"
    assert rows["outputs/working"][1] == "running"
    assert out.split("\n\n")[1].splitlines() == [
        "outputs/killed: killed after 3 of 4 steps",
        "    to go on from step 2: hone rl @ outputs/killed/config.toml --resume",
        f"outputs/working: running step 2 of 4, in process {process.pid}",
        "    to watch it: hone runs attach outputs/working",
        "    to end it: hone runs stop outputs/working",
    ]


def test_list_shows_evaluations_and_earlier_runs_if_asked_for_and_names_damaged_ones(hone) -> None:
    make_run(Path("outputs"))
    make_run(Path("outputs/.previous/old"))
    (make_run(Path("outputs/torn")) / "metrics.jsonl").write_text("garbage\n")
    (make_run(Path("outputs/other")) / "run.json").write_text('{"not": "hone"}')
    evaluation = make_run(Path("outputs/evals/one"), kind="eval")
    (evaluation / "metadata.json").write_text(json.dumps({"metrics": {"eval/t/reward/mean": 0.75}}))
    out = hone("list")
    assert list(cells(out)) == ["run", "outputs"]
    assert "\n1 run, 1 evaluation, 1 earlier run; all of them: hone runs list outputs --all\n" in out
    assert out.count("damaged: ") == 1 and "outputs/torn/metrics.jsonl, line 1, is damaged" in out
    found = cells(hone("list", "--all", "--ids"))
    assert {name: row[0] for name, row in found.items() if name != "run"} == {
        "outputs": "id-outputs",
        "outputs/.previous/old": "id-old",
        "outputs/evals/one": "id-one",
    }
    assert found["outputs/evals/one"][1:7] == ["eval", "done", "-", "-", "reward 0.750", "-"]


def test_show_prints_a_page(hone) -> None:
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
    out = hone("show", "outputs/a", "--events", "2")
    assert out.startswith("outputs/a: killed after 3 of 4 steps\n\n")
    assert out.endswith("\n\nTo go on from step 2:\n  hone rl @ outputs/a/config.toml --resume\n")
    found = page(out)
    assert found["events"].count("checkpoint at step") == 2 and "step 8" in found.pop("events")
    words = r"verified, steps 1, 2 done again, 2026-01-0\d \d\d:04 \(a\.verify\.json beside the run\)"
    assert re.fullmatch(words, found.pop("certificate"))
    assert found == {
        "id": "id-a (rl on reverse-text, seed 3)",
        "command": "hone rl @ a.toml",
        "settings": "max_steps=4, model.name=some/model, orchestrator.batch_size=12 (the rest are defaults)",
        "started": "2026-01-02 03:04, 0:02 of wall time",
        "machine": "A CPU, 2 cores, 8.0 GiB, no GPU; 1 thread",
        "code": "hone-rl 0.1.0, torch 2.13.0, numerics 1; revision 0123456789ab with changes",
        "reproducible": "no: from step 1 on, resumed with other torch (2.11, now 2.13)",
        "latest": "step 3: reward 0.200, 100 tokens/s, 0.50 s/step",
        "held out": "reverse-text reward 0.250, at step 2",
        "checkpoints": "outputs/a/checkpoints/step_N with N = 1, 2",
    }
    checkpoint(run, 3)
    assert "the run has changed since: verify it again" in page(hone("show", "outputs/a"))["certificate"]


@pytest.fixture
def at_work() -> Path:
    run = make_run(Path("outputs"), "running", steps=3)
    checkpoint(run, 2)
    return run


def test_stop_asks_politely_waits_and_says_how_it_ended(at_work: Path, hone) -> None:
    with held(at_work) as process:
        out = hone("stop")
        assert process.wait() == 143
    assert out.splitlines() == [
        f"Asked process {process.pid} to end: it finishes its step within 25 s, and saves.",
        "outputs: stopped by a signal after 3 of 4 steps, and saved",
        "To go on from step 2:",
        "  hone rl @ outputs/config.toml --resume",
    ]


def test_stop_now_kills_and_says_what_is_lost(at_work: Path, hone) -> None:
    with held(at_work, "deaf") as process:
        out = hone("stop", "outputs", "--now")
        assert process.wait() == -9
    assert out.splitlines()[:2] == ["outputs: killed after 3 of 4 steps", "To go on from step 2:"]


def test_a_process_that_does_not_hold_the_lock_is_never_signalled(at_work: Path, monkeypatch, capsys) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as bystander:
        info = json.loads((at_work / "run.json").read_text()) | {"pid": bystander.pid}
        (at_work / "run.json").write_text(json.dumps(info))
        fails(capsys, main(["runs", "stop", "--now"]), "outputs: killed after 3 of 4 steps: no process to stop")
        assert bystander.poll() is None
        bystander.communicate(b"\n")
    monkeypatch.setattr(runs, "holder", lambda path: 0)
    fails(capsys, main(["runs", "stop"]), "outputs is being written by a process of another machine")
    monkeypatch.setattr(runs, "holder", lambda path: 2**30)  # no process has that number

    def refuse(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(runs.os, "kill", refuse)
    fails(capsys, main(["runs", "stop"]), "process 1073741824 writes outputs and is another user's")


@pytest.fixture
def drawn() -> Path:
    """A run with a checkpoint of step 2 and rollouts of two steps more."""
    run = make_run(Path("outputs"), "stopped")
    entries = [entry(0, 0, "a"), entry(1, 0, "b", "filtered", 20), entry(2, 1, "a"), entry(3, 1, "b", "failed", 40)]
    checkpoint(run, 2, entries)
    rollouts(run, 2, (4, "b", ["trained", "trained"]))
    rollouts(run, 3, (5, "a", ["trained", "failed"]), (6, "a", ["filtered"]))
    return run


def test_the_ledger_and_its_summary(drawn: Path, hone) -> None:
    lines = hone("ledger").splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["draw", "step", "example_id", "state", "tokens", "from"],
        ["0", "0", "a", "trained", "10", "checkpoint"],
        ["1", "0", "b", "filtered", "20", "checkpoint"],
    ]
    assert lines[6].split() == ["5", "3", "a", "trained", "10", "rollouts"]
    assert lines[8:] == [
        "",
        "draws     7 in 4 steps: 4 trained, 2 filtered, 1 failed",
        "tokens    105, prompts and completions",
    ]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--state filtered", [1, 6]),
        ("--step 1", [2, 3]),
        ("--step 1 --state failed", [3]),
        ("--limit 2", [5, 6]),
        ("--limit 0", []),
    ],
)
def test_some_of_the_draws(drawn: Path, hone, flags: str, expected: list[int]) -> None:
    assert [json.loads(line)["draw"] for line in hone("ledger", *flags.split(), "--jsonl").splitlines()] == expected
    out = hone("ledger", *flags.split())
    assert [int(line.split()[0]) for line in out.splitlines() if line[:1].isdigit()] == expected
    assert out.startswith("(5 earlier draws: --limit 7 shows all)\n") == (flags == "--limit 2")


def test_rm_deletes_the_files_of_a_run_and_nothing_else(hone, monkeypatch) -> None:
    folder = make_run(Path("outputs/a"))
    checkpoint(folder, 2)
    other = make_run(folder / "inner")
    (folder / "notes.txt").write_text("mine")
    (folder / "weights").symlink_to(Path("elsewhere").absolute())
    Path("elsewhere").mkdir()
    Path("elsewhere/kept").write_text("mine")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    for answer in ("no\n", ""):
        monkeypatch.setattr(sys.stdin, "readline", lambda answer=answer: answer)
        asked = hone("rm", "outputs/a", code=1)
        assert asked.startswith("Delete outputs/a (rl, done, ") and asked.endswith("Nothing was deleted.\n")
        assert (folder / "run.json").exists()
    monkeypatch.setattr(sys.stdin, "readline", lambda: "y\n")
    assert hone("rm", "outputs/a").endswith("Deleted outputs/a, except other files in it.\n")
    assert sorted(path.name for path in folder.iterdir()) == ["inner", "notes.txt"]
    assert (other / "run.json").exists() and Path("elsewhere/kept").read_text() == "mine"
    assert hone("rm", "outputs/a/inner", "--yes") == "Deleted outputs/a/inner.\n" and not other.exists()
    assert hone("rm", str(make_run(Path("outputs/\x1b[2J")))).startswith("Delete outputs/\\x1b[2J (")


def test_rm_refuses_what_is_no_run_what_is_being_written_and_to_delete_unasked(capsys, monkeypatch) -> None:
    make_run(Path("outputs/a"))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False)
    fails(capsys, main(["runs", "rm", "outputs/a"]), "needs a terminal", "--yes")
    with held(Path("outputs/a")):
        fails(capsys, main(["runs", "rm", "outputs/a", "--yes"]), "a process is writing outputs/a")
    Path("foreign").mkdir()
    Path("foreign/run.json").write_text("{}")
    fails(capsys, main(["runs", "rm", "foreign", "--yes"]), "is not a run of hone")
    fails(capsys, main(["runs", "rm", "outputs", "--yes"]), "has no run.json")
    fails(capsys, main(["runs", "rm"]), "RUN is missing")
    assert Path("outputs/a/run.json").exists() and Path("foreign/run.json").exists()
