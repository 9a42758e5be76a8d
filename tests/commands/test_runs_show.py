"""`hone runs show`: one page; and `hone runs attach` on a run that has ended."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from refusals import fails
from run_folders import checkpoint, make_run, write_lines

from hone.cli import main
from hone.runs.files import new_dir, sha256, write_file


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


def test_a_run_that_used_up_its_budget_goes_on_with_twice_as_much(capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(Path("outputs/a"), "budget", steps=3, command=["rl", "@", "a.toml", "--detach"])
    checkpoint(run, 3)
    budget = "\n[budget]\nhours = 0.5\nusd = 3.0\nusd_per_hour = 2.0\ntokens = 3000000\n"
    (run / "config.toml").write_text((run / "config.toml").read_text() + budget)
    write_lines(run / "timings.jsonl", [{"step": 2, "time/step": 0.5, "time/total": 1620.0}])
    assert main(["runs", "show", "outputs/a"]) == 0
    out = capsys.readouterr().out
    assert page(out)["budget"] == "0.45 of 0.5 hours, 0.9 of 3.00 US dollars, 200 of 3,000,000 tokens"
    assert out.startswith("outputs/a: its budget is used up after 3 of 4 steps, and it is saved\n")
    command = "hone rl @ outputs/a/config.toml --resume --detach"
    assert out.endswith(f"\n  {command} --budget.hours 1 --budget.usd 6 --budget.tokens 6000000\n")


def test_a_copied_run_is_resumed_where_it_is_and_a_finished_one_is_evaluated(
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_run(Path("outputs/a"), "stopped", steps=1).rename("b c")
    assert main(["runs", "show", "b c"]) == 0
    out = capsys.readouterr().out
    assert out.endswith("To start it again from step 0:\n  hone rl @ 'b c/config.toml' --resume --output-dir 'b c'\n")
    run = make_run(Path("outputs/d"))
    for step in (2, 4):
        with new_dir(run / "weights" / f"step_{step}") as folder:
            write_file(folder / "config.json", "{}")
    assert main(["runs", "show", "id-d"]) == 0
    out = capsys.readouterr().out
    assert page(out)["exact"].startswith("yes, by its settings: ")
    assert page(out)["weights"] == "outputs/d/weights/step_N with N = 2, 4"
    assert out.endswith(
        "To evaluate it:\n  hone eval reverse-text -m outputs/d/weights/step_4 -n 100 -r 4\n"
        "To check that it can be repeated:\n  hone verify outputs/d --steps 3\n"
    )


def test_alarms_are_told_once_and_a_long_cause_is_cut_behind_a_word(capsys, monkeypatch) -> None:
    run = make_run(Path("outputs/a"))
    cause = "no answer came from the server at 127.0.0.1 while it restarted again and again"
    alarm = {"kind": "alarm", "name": "kl", "step": 1, "evidence": "the KL is 0.2"}
    events = [alarm, {"kind": "alarm_over", "name": "kl", "step": 3}, {"kind": "restart", "step": None, "cause": cause}]
    write_lines(run / "events.jsonl", events, "a")
    monkeypatch.chdir(run)
    assert main(["runs", "show", "."]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{Path.cwd()}: done, 4 of 4 steps\n")
    found = page(out)
    assert found["alarms"] == "kl from step 1 to 3: the KL is 0.2"
    assert "alarm" not in found["events"] and "the last" not in found["events"]
    assert "no answer came from the server at 127.0.0.1 while it...)" in found["events"]


def test_a_run_whose_reward_fell_is_to_be_regraded(capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(Path("outputs/a"))
    for last, told in ((0.6, False), (0.5, True)):
        rewards = [0.3] * 10 + [0.9] * 10 + [last] * 10
        write_lines(run / "metrics.jsonl", [{"step": s, "reward/mean": r} for s, r in enumerate(rewards)])
        assert main(["runs", "show", "outputs/a"]) == 0
        out = capsys.readouterr().out
        assert out.endswith("To see where the reward went:\n  hone regrade outputs/a\n") is told


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
