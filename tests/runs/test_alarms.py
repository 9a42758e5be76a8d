"""When alarms are told, what they ask for, and what a resume knows of them."""

import json

import pytest

from hone.config.alarms import AlarmsConfig
from hone.config.rl import RLConfig
from hone.config.shared import ResumeConfig
from hone.errors import Halt
from hone.runs import Run
from hone.runs.alarms import Alarms
from hone.runs.observer import Finding
from hone.runs.writer import RunWriter


def lines(*shares: float) -> list[dict]:
    return [
        {"step": step, "reward/mean": 0.5, "completion/truncated": share, "groups/trained": 4}
        for step, share in enumerate(shares)
    ]


def look(alarms: Alarms, *shares: float) -> list[tuple[int, list[str], list[str]]]:
    """(step, raised, over) of the steps at which something happens."""
    found = [(line["step"], *alarms.look(line["step"], line)) for line in lines(*shares)]
    return [(step, [alarm["name"] for alarm in raised], over) for step, raised, over in found if raised or over]


def test_an_alarm_is_told_once_until_it_is_over():
    high, low = (0.8,) * 4, (0.0,) * 6
    assert look(Alarms(AlarmsConfig(window=2)), *high, *low, *high) == [
        (1, ["truncation"], []),
        (6, [], ["truncation"]),  # the last window above the threshold ends at step 4
        (10, ["truncation"], []),
    ]


def test_what_comes_again_must_be_gone_for_twice_as_long():
    hovering = ([0.8] * 2 + [0.0] * 4) * 6
    raised = [step for step, names, _ in look(Alarms(AlarmsConfig(window=2)), *hovering) if names]
    assert raised == [1, 6], "every six steps it is gone for four at most"


def test_a_line_of_an_evaluation_or_of_the_end_is_no_step():
    alarms = Alarms(AlarmsConfig(window=2))
    look(alarms, 0.8, 0.8)
    assert alarms.look(2, {"step": 2, "eval/x/reward/mean": 0.1}) == ([], [])
    assert len(alarms.history) == 2


def test_the_strongest_action_is_asked_for_once():
    settings = {"truncation": {"action": "checkpoint"}, "no_signal": {"action": "stop", "threshold": 1}}
    alarms = Alarms(AlarmsConfig(window=2, **settings))
    look(alarms, 0.8, 0.8)
    assert (alarms.asked, alarms.cause, alarms.saves) == ("checkpoint", "truncation", True)
    alarms.look(2, lines(0.8)[0] | {"step": 2, "groups/trained": 0})
    assert (alarms.asked, alarms.cause, alarms.saves) == ("stop", "no_signal", False)
    alarms.done()
    alarms.look(3, lines(0.8)[0] | {"step": 3, "groups/trained": 0})
    assert alarms.asked == "off" and list(alarms.active) == ["truncation", "no_signal"]


def test_what_was_raised_before_a_resume_is_not_told_again():
    alarms = Alarms(AlarmsConfig(window=2, action="stop"))
    alarms.restore(lines(0.8, 0.8, 0.8))
    assert alarms.asked == "off" and list(alarms.active) == ["truncation"]
    assert alarms.look(3, lines(0.8)[0] | {"step": 3}) == ([], [])


def found(value: float = 0.5) -> Finding:
    return Finding(value, 0.1, "apart", "see docs/training.md")


def test_a_gap_that_was_told_before_a_resume_is_not_told_again():
    shown = [{"kind": "alarm", "step": 1, "name": "gap"}]
    alarms = Alarms(AlarmsConfig(window=2, action="stop", truncation={"action": "off"}))
    alarms.restore(lines(0.8, 0.8, 0.8), shown)
    assert list(alarms.active) == ["gap"] and alarms.raised(3, "gap", found()) is None and alarms.asked == "off"
    alarms = Alarms(AlarmsConfig(window=2))
    alarms.restore(lines(0.0, 0.0, 0.0), [*shown, {"kind": "alarm_over", "step": 2, "name": "gap"}])
    assert list(alarms.active) == [] and alarms.raised(3, "gap", found()) is not None


def test_other_scores_of_recorded_completions_stay_an_alarm_also_after_a_resume():
    alarms = Alarms(AlarmsConfig(window=2, truncation={"action": "off"}))
    assert alarms.raised(0, "regraded", found()) is not None
    assert look(alarms, *[0.0] * 9) == [] and list(alarms.active) == ["regraded"]
    alarms = Alarms(AlarmsConfig(window=2))
    alarms.restore(lines(0.0), [{"kind": "alarm", "step": 0, "name": "regraded"}])
    assert list(alarms.active) == ["regraded"] and alarms.raised(1, "regraded", found()) is None
    with pytest.raises(ValueError, match="the alarm regraded has no threshold"):
        AlarmsConfig(regraded={"threshold": 0.5})


def config(folder, **settings) -> RLConfig:
    return RLConfig(output_dir=folder, max_steps=9, display="plain", **settings)


def log(run: RunWriter, first: int, *shares: float) -> None:
    for line in lines(*shares):
        run.log_step(first + line["step"], {name: value for name, value in line.items() if name != "step"})


def test_a_run_writes_tells_and_shows_its_alarms(tmp_path, capsys):
    with RunWriter.start(config(tmp_path, alarms=AlarmsConfig(window=2)), "rl", []) as run:
        log(run, 0, 0.8, 0.8, 0.8, 0.0, 0.0, 0.0)
    events = [event for event in Run(tmp_path).events() if event["kind"].startswith("alarm")]
    assert [(event["kind"], event["step"], event["name"]) for event in events] == [
        ("alarm", 1, "truncation"),
        ("alarm_over", 5, "truncation"),
    ]
    assert events[0]["value"] == 0.8 and events[0]["threshold"] == 0.4 and events[0]["action"] == "warn"
    assert events[0]["evidence"].startswith("80 % of the completions were cut") and "max_tokens" in events[0]["advice"]
    text = capsys.readouterr().out
    assert text.count("ALARM truncation at step 1: 80 % of the completions") == 1 and "What helps: raise" in text


def test_an_alarm_that_stops_does_so_once_its_step_is_written(tmp_path):
    stop = AlarmsConfig(window=2, truncation={"action": "stop"})
    run = RunWriter.start(config(tmp_path, alarms=stop), "rl", [])
    with pytest.raises(Halt, match="stopped at step 1 by the alarm truncation"), run:
        log(run, 0, 0.8, 0.8)
    hashed = [json.loads(line)["step"] for line in (tmp_path / "hashes.jsonl").read_text().splitlines()]
    assert hashed == [0, 1] and [line["step"] for line in Run(tmp_path).metrics().to_pylist()] == [0, 1]


def test_a_pause_that_was_killed_is_over_when_the_run_is_resumed(tmp_path):
    run = RunWriter.start(config(tmp_path), "rl", [])
    (tmp_path / "paused.json").write_text('{"step": 1, "alarm": "kl"}')
    run.finish("stopped")
    RunWriter.start(config(tmp_path, resume=ResumeConfig()), "rl", []).finish("done")
    assert not (tmp_path / "paused.json").exists()
