"""When the alarms of the rules are told."""

from hone.config.rl import RLConfig
from hone.extensions.alarms.config import AlarmsConfig
from hone.extensions.alarms.watch import AlarmWatch
from hone.runs import Run
from hone.runs.display import make_display
from hone.runs.progress import Progress
from hone.runs.writer import RunWriter


def test_a_run_writes_tells_and_shows_its_alarms(tmp_path, capsys):
    config = RLConfig(output_dir=tmp_path, max_steps=9, display="plain", alarms=AlarmsConfig(window=2))
    observers = [make_display("plain", Progress("rl", 9)), AlarmWatch()]
    with RunWriter.start(config, "rl", [], observers=observers) as run:
        for step, share in enumerate((0.8, 0.8, 0.8, 0.0, 0.0, 0.0)):
            run.log_step(step, {"reward/mean": 0.5, "completion/truncated": share, "groups/trained": 4})
    events = [event for event in Run(tmp_path).events() if event["kind"].startswith("alarm")]
    assert [(event["kind"], event["step"], event["name"]) for event in events] == [
        ("alarm", 1, "truncation"),
        ("alarm_over", 5, "truncation"),
    ]
    assert events[0]["value"] == 0.8 and events[0]["threshold"] == 0.4 and events[0]["action"] == "warn"
    assert events[0]["evidence"].startswith("80 % of the completions were cut") and "max_tokens" in events[0]["advice"]
    text = capsys.readouterr().out
    assert text.count("ALARM truncation at step 1: 80 % of the completions") == 1 and "What helps: raise" in text
