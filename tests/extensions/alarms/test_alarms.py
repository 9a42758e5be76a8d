"""When the alarms of the rules are told, and what a resume knows of them."""

import pytest

from hone.config.rl import RLConfig
from hone.extensions.alarms.config import AlarmsConfig
from hone.extensions.alarms.watch import AlarmWatch, MetricAlarms
from hone.runs import Run
from hone.runs.alarms import Alarms
from hone.runs.display import make_display
from hone.runs.observer import Finding
from hone.runs.progress import Progress
from hone.runs.writer import RunWriter


def lines(*shares: float) -> list[dict]:
    return [
        {"step": step, "reward/mean": 0.5, "completion/truncated": share, "groups/trained": 4}
        for step, share in enumerate(shares)
    ]


def of(**settings) -> MetricAlarms:
    return MetricAlarms(AlarmsConfig(**settings), Alarms())


def look(alarms: MetricAlarms, *shares: float) -> list[tuple[int, list[str], list[str]]]:
    """(step, raised, over) of the steps at which something happens."""
    found = [(line["step"], *alarms.look(line["step"], line)) for line in lines(*shares)]
    return [(step, [alarm["name"] for alarm in raised], over) for step, raised, over in found if raised or over]


def test_an_alarm_is_told_once_until_it_is_over():
    high, low = (0.8,) * 4, (0.0,) * 6
    assert look(of(window=2), *high, *low, *high) == [
        (1, ["truncation"], []),
        (6, [], ["truncation"]),  # the last window above the threshold ends at step 4
        (10, ["truncation"], []),
    ]


def test_what_comes_again_must_be_gone_for_twice_as_long():
    hovering = ([0.8] * 2 + [0.0] * 4) * 6
    raised = [step for step, names, _ in look(of(window=2), *hovering) if names]
    assert raised == [1, 6], "every six steps it is gone for four at most"


def test_a_line_of_an_evaluation_or_of_the_end_is_no_step():
    alarms = of(window=2)
    look(alarms, 0.8, 0.8)
    assert alarms.look(2, {"step": 2, "eval/x/reward/mean": 0.1}) == ([], [])
    assert len(alarms.history) == 2


def test_what_was_raised_before_a_resume_is_not_told_again():
    alarms = of(window=2, action="stop")
    look(alarms, 0.8, 0.8, 0.8)
    alarms.alarms.done()
    assert list(alarms.alarms.active) == ["truncation"]
    assert alarms.look(3, lines(0.8)[0] | {"step": 3}) == ([], [])


def test_the_settings_give_each_alarm_its_action():
    alarms = Alarms()
    MetricAlarms(AlarmsConfig(action="pause", kl={"action": "stop"}, wrong={"action": "warn"}), alarms, shifting=True)
    assert (alarms.actions["gap"], alarms.actions["kl"]) == ("pause", "stop")
    assert (alarms.actions["falling_reward"], alarms.actions["wrong"]) == ("off", "warn")


def test_other_scores_of_recorded_completions_stay_an_alarm_also_after_a_resume():
    finding, alarms = Finding(0.5, 0.1, "apart", "see docs/training.md"), of(window=2, truncation={"action": "off"})
    assert alarms.alarms.raised(0, "regraded", finding) is not None
    assert look(alarms, *[0.0] * 9) == [] and list(alarms.alarms.active) == ["regraded"]
    alarms = of(window=2)
    alarms.alarms.restore("regraded", [{"kind": "alarm", "step": 0, "name": "regraded"}], 1)
    assert look(alarms, *[0.0] * 9) == [] and alarms.alarms.raised(1, "regraded", finding) is None
    with pytest.raises(ValueError, match="the alarm regraded has no threshold"):
        AlarmsConfig(regraded={"threshold": 0.5})


def start(folder, **settings) -> RunWriter:
    config = RLConfig(output_dir=folder, max_steps=9, display="plain", alarms=AlarmsConfig(window=2, **settings))
    return RunWriter.start(config, "rl", [], observers=[make_display("plain", Progress("rl", 9)), AlarmWatch()])


def log(run: RunWriter, first: int, *shares: float) -> None:
    for line in lines(*shares):
        run.log_step(first + line["step"], {name: value for name, value in line.items() if name != "step"})


def test_a_run_writes_tells_and_shows_its_alarms(tmp_path, capsys):
    with start(tmp_path) as run:
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
