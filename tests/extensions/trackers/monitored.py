"""Runs with trackers, for the tests here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hone.config.rl import RLConfig
from hone.extensions.trackers.config import TrackioConfig, WandbConfig
from hone.extensions.trackers.monitors import Monitors
from hone.runs import Run
from hone.runs.display import make_display
from hone.runs.progress import Progress
from hone.runs.writer import RunWriter

FAILED = "monitor_failed"


def config(folder: Path, wandb: Any = None, trackio: Any = None, **settings: Any) -> RLConfig:
    """Of a run of three steps; `wandb` and `trackio` are the settings of their sections, none by default."""
    sections = {"wandb": wandb and WandbConfig(**wandb), "trackio": trackio and TrackioConfig(**trackio)}
    return RLConfig(output_dir=folder, **({"max_steps": 3, "display": "plain"} | sections | settings))


def start(config: RLConfig, command: list[str] | None = None) -> RunWriter:
    monitors = Monitors(config)
    monitors.check_config(config)
    observers = [make_display("plain", Progress("rl", config.max_steps)), monitors]
    return RunWriter.start(config, "rl", command or [], observers=observers)


def row(group: int, reward: float | None, outcome: str, **other: Any) -> dict[str, Any]:
    """A row of rollouts, of what tables of samples show."""
    return {
        "step": 0,
        "group": group,
        "prompt": '[{"role": "user", "content": "Reverse: abc"}]',
        "text": f"{outcome} {group}",
        "completion": None,
        "reward": reward,
        "components": [("format", 0.1)],
        "outcome": outcome,
        "advantage": -0.25,
    } | other


def steps(run: RunWriter, first: int = 0, last: int = 3) -> None:
    """The steps of a run: at step N the reward is N / 8, one metric is null, the rate is 1000 + N."""
    for step in range(first, last):
        run.rollouts(step, [row(0, 1.0, "correct", step=step), row(1, 0.0, "wrong", step=step)])
        run.log_step(step, {"reward/mean": step / 8, "eval/x/correct": None}, {"tokens/s": 1000.0 + step})


def raise_alarm(run: RunWriter, step: int, name: str, evidence: str, action: Any) -> None:
    facts = {"value": 0.9, "threshold": 0.8, "evidence": evidence, "advice": "more variance"}
    run.event("alarm", step, name=name, action=action, **facts)


def failures(folder: Path) -> list[tuple[str, str]]:
    """(monitor, cause) of the monitors that failed, as events.jsonl has them."""
    return [(event["monitor"], event["cause"]) for event in Run(folder).events() if event["kind"] == FAILED]
