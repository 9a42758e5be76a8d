"""What a run is asked for by an alarm, when it is told again, and what a resume knows of it."""

import json

import pytest
from run_folders import start

from hone.config.shared import ResumeConfig
from hone.errors import AlarmStop
from hone.runs import Run
from hone.runs.alarms import Alarms
from hone.runs.observer import Action, Finding, Observer


def found(value: float = 0.5) -> Finding:
    return Finding(value, 0.1, "apart", "see docs/training.md")


def test_an_alarm_is_told_once_and_warns_unless_it_has_an_action():
    alarms = Alarms()
    alarms.actions = {"quiet": "off"}
    assert alarms.raised(2, "gap", found(float("inf"))) == {
        **{"step": 2, "name": "gap", "action": "warn", "value": "inf"},
        **{"threshold": 0.1, "evidence": "apart", "advice": "see docs/training.md"},
    }
    assert alarms.raised(3, "gap", found()) is None and alarms.raised(3, "quiet", found()) is None
    assert alarms.active == {"gap": 3}


def test_the_strongest_action_is_asked_for_once():
    alarms = Alarms()
    alarms.actions = {"a": "checkpoint", "b": "stop", "c": "pause"}
    alarms.raised(0, "a", found())
    assert (alarms.asked, alarms.cause, alarms.saves) == ("checkpoint", "a", True)
    alarms.raised(1, "b", found())
    alarms.raised(1, "c", found())
    assert (alarms.asked, alarms.cause, alarms.saves) == ("stop", "b", False)
    alarms.done()
    alarms.raised(2, "b", found())
    assert alarms.asked == "off"


def test_what_was_told_before_a_resume_is_not_told_again():
    shown = [{"kind": "alarm", "step": 1, "name": "gap"}, {"kind": "alarm", "step": 1, "name": "kl"}]
    alarms = Alarms()
    alarms.restore("gap", shown, 3)
    assert alarms.active == {"gap": 2} and alarms.raised(3, "gap", found()) is None and alarms.asked == "off"
    alarms = Alarms()
    alarms.restore("gap", [*shown, {"kind": "alarm_over", "step": 2, "name": "gap"}], 3)
    assert alarms.active == {} and alarms.raised(3, "gap", found()) is not None and alarms.times["gap"] == 2


def test_an_alarm_that_stops_does_so_once_its_step_is_written(tmp_path):
    run = start(tmp_path)
    run.alarms.actions, run.alarms.remedy = {"too_long": "stop"}, "--x.{} warn goes on"
    with pytest.raises(AlarmStop, match=r"stopped at step 1 by the alarm too_long \(--x.too-long warn goes on\)"), run:
        run.log_step(0, {"reward/mean": 0.5})
        run.alarms.raised(1, "too_long", found())
        run.log_step(1, {"reward/mean": 0.5})
    hashed = [json.loads(line)["step"] for line in (tmp_path / "hashes.jsonl").read_text().splitlines()]
    assert hashed == [0, 1] and [line["step"] for line in Run(tmp_path).metrics().to_pylist()] == [0, 1]


def test_a_pause_that_was_killed_is_over_when_the_run_is_resumed(tmp_path):
    run = start(tmp_path)
    (tmp_path / "paused.json").write_text('{"step": 1, "alarm": "kl"}')
    run.finish("stopped")
    start(tmp_path, resume=ResumeConfig()).finish("done")
    assert not (tmp_path / "paused.json").exists()


class AtStepOne(Observer):
    def after_step(self, step, metrics, timings) -> Action | None:
        return "stop" if step == 1 else None


def test_an_observer_stops_the_run_once_its_step_is_written(tmp_path):
    run = start(tmp_path, observers=[AtStepOne()])
    with pytest.raises(AlarmStop, match=r"stopped at step 1 by AtStepOne$"), run:
        for step in range(3):
            run.log_step(step, {"reward/mean": 0.5})
    assert [line["step"] for line in Run(tmp_path).metrics().to_pylist()] == [0, 1]
