"""How a run stands, from its files and its lock."""

from pathlib import Path

from run_folders import checkpoint, held, make_run, write_lines

from hone.runs.summary import describe_event, evaluating, summarize


def test_a_run_that_says_running_is_killed_if_nobody_holds_it(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", "running", steps=3)
    with held(run) as process:
        alive = summarize(run)
        assert (alive.status, alive.pid) == ("running", process.pid)
    assert (summarize(run).status, summarize(run).pid) == ("killed", None)
    assert summarize(make_run(tmp_path / "b", "copying")).status == "killed"
    for status in ("done", "stopped", "budget", "failed", "interrupted"):
        assert summarize(make_run(tmp_path / status, status)).status == status


def test_the_numbers_of_a_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", "stopped", steps=3)
    checkpoint(run, 2)
    checkpoint(run, 3).joinpath("state.json").unlink()
    one = summarize(run)
    assert (one.kind, one.task, one.progress.done, one.progress.max_steps) == ("rl", "reverse-text", 3, 4)
    assert one.progress.history == [0.0, 0.1, 0.2] and one.progress.eval_step == 2
    assert one.files.checkpoint_steps() == [2]
    assert one.seconds == 1.5
    write_lines(run / "timings.jsonl", [{"step": 3, "time/step": 0.5, "time/total": 77.25}], "a")
    assert summarize(run).seconds == 77.25
    (run / "superseded" / "1").mkdir(parents=True)  # what a resume rolled back was spent all the same
    write_lines(run / "superseded" / "1" / "timings.jsonl", [{"step": 3, "time/step": 0.5, "time/total": 99.5}])
    assert summarize(run).seconds == 99.5


def test_the_command_that_evaluates_names_a_file_where_that_has_one_task(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    task = 'id = "gsm8k"\nname = "NAME"\nargs = {mode = "sparse"}'
    settings = f'output_dir = "{run}"\nmax_steps = 4\nseq_len = 96\nseed = 7\n[orchestrator.env]\nid = "gsm8k"\n'
    settings += 'args = {mode = "sparse"}\n'
    (run / "config.toml").write_text(settings)
    weights = Path("w")
    assert evaluating(summarize(run), weights).startswith(f"hone eval @ {run}/config.toml -m w -n 100 -r 4")
    several = "".join(f"[[orchestrator.envs]]\n{task.replace('NAME', name)}\n" for name in "ab")
    (run / "config.toml").write_text(settings + several)
    by_words = """hone eval gsm8k -m w -n 100 -r 4 -a '{"mode": "sparse"}' -t 96 --seed 7 -S '{"seq_len": 96}'"""
    assert evaluating(summarize(run), weights).startswith(by_words)


def test_alarms_stand_until_they_are_over(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    event = {"step": 1, "evidence": "so it is"}
    write_lines(run / "events.jsonl", [event | {"kind": "alarm", "name": name} for name in ("kl", "truncation")], "a")
    assert [alarm.name for alarm in summarize(run).alarms] == ["kl", "truncation"]
    write_lines(run / "events.jsonl", [event | {"kind": kind, "name": "kl"} for kind in ("alarm_over", "stop")], "a")
    assert [alarm.name for alarm in summarize(run).alarms] == ["truncation"]


def test_an_event_in_words() -> None:
    event = {
        "kind": "grader_error",
        "step": 3,
        "time": "2026-01-02T03:04:05+00:00",
        "count": 2,
        "detail": "a\x1b[2J\nb",
    }
    assert describe_event(event).endswith("  grader error at step 3 (count 2, detail a [2J b)")
    assert describe_event({"kind": "stop", "step": None, "time": None, "detail": "x" * 99}).endswith(
        f"({'detail ' + 'x' * 57}...)"
    )
