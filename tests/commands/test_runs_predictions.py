"""`hone rl --predict …` and `hone runs predictions`: with real runs, what they record, print and make of many."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from run_folders import make_run, write_lines
from tampering import snapshot

from hone.cli import main
from hone.config.parse import parse
from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.runs import Run, predictions
from hone.runs.metrics import METRICS, Written, known, written
from hone.types import Outcome

PREDICTED = ("reward/mean@4 >= 0.5 p=0.7", "eval/parity/reward/mean@end < 0 p=0.2", "outcome/correct@5 >= 0 p=0.9")


@pytest.fixture(scope="module")
def predicted(bench) -> Path:
    """A run of the tiny model, with predictions; the first is left to chance. Read only."""
    return bench.rl("predicted", *[word for text in PREDICTED for word in ("--predict", text)])


def made_run(folder: Path, *texts: str, reward: float, **info) -> Path:
    """A run made by hand, of which `reward/mean` at step 3 is `reward`."""
    make_run(folder, **info)
    write_lines(folder / "metrics.jsonl", [{"step": step, "reward/mean": reward} for step in range(4)])
    facts = json.loads((folder / "run.json").read_text())
    config = RLConfig(output_dir=folder, max_steps=4, predict=list(texts))
    facts |= predictions.record(config, "rl", facts["id"])
    (folder / "run.json").write_text(json.dumps(facts))
    if texts:
        event = {"kind": predictions.MADE, "step": 0, "time": None, "sha256": facts[predictions.KEY]["sha256"]}
        write_lines(folder / "events.jsonl", [event], "a")
    return folder


def test_the_outcomes_are_those_of_samples() -> None:
    assert {metric.name for metric in METRICS if metric.name.startswith("outcome/")} == {
        f"outcome/{one}" for one in Outcome
    }


def test_a_real_run_is_scored_from_its_metrics(predicted) -> None:
    metrics = {line["step"]: line for line in Run(predicted).metrics().to_pylist()}
    values = [metrics[4]["reward/mean"], metrics[6]["eval/parity/reward/mean"], metrics[5]["outcome/correct"]]
    info = Run(predicted).info
    outcomes = info["predictions"]["outcomes"]
    assert [one["value"] for one in outcomes] == values
    assert [one["outcome"] for one in outcomes] == [values[0] >= 0.5, False, True]
    assert [one["brier"] for one in outcomes[1:]] == pytest.approx([0.04, 0.01])
    assert outcomes[0]["brier"] == pytest.approx((0.7 - (values[0] >= 0.5)) ** 2)
    made = [event for event in Run(predicted).events() if event["kind"] == "predicted"]
    assert [event["sha256"] for event in made] == [info["predictions"]["sha256"]]


def test_predicting_changes_no_byte_of_a_run(predicted, rl_run) -> None:
    for name in ("metrics.jsonl", "hashes.jsonl", "rollouts/step_000005.parquet"):
        assert (predicted / name).read_bytes() == (rl_run / name).read_bytes(), name


def test_every_metric_of_real_runs_can_be_predicted(rl_run, sft_run) -> None:
    for run, cls, env_id in ((rl_run, RLConfig, "parity"), (sft_run, SFTConfig, None)):
        config = parse(cls, ["@", str(run / "config.toml")], "hone")
        steps: dict[str, list[int]] = {}
        for line in [json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines()]:
            for name in line.keys() - {"step"}:
                steps.setdefault(name, []).append(line["step"])
        assert len(steps) > 5
        for name, at in steps.items():
            when = written(name, config, env_id)
            assert isinstance(when, Written), (name, when)
            assert all(step in when for step in at) and max(at) == when.last, name
        unwritten = set(known(config, env_id)) - steps.keys()
        assert unwritten <= {"turns/mean", "tokens/environment", "eval/parity/turns/mean"}, unwritten


def test_the_table_and_the_scores(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    made_run(Path("outputs/a"), "reward/mean@3 > 0.5 p=0.9", "reward/mean@3 > 0.8 p=0.3", reward=0.7)
    made_run(Path("outputs/a/.previous/old"), "reward/mean@3 > 0.5 p=0.8", reward=0.1)
    made_run(Path("outputs/open"), "reward/mean@3 > 0.5 p=0.8", reward=0.7)
    write_lines(Path("outputs/open/metrics.jsonl"), [{"step": 0, "reward/mean": 0.7}])
    make_run(Path("outputs/without"))
    before = snapshot(Path("outputs"))
    assert main(["runs", "predictions"]) == 0
    assert snapshot(Path("outputs")) == before
    out = capsys.readouterr().out
    table, overall, bins, surprises, rest = out.rstrip("\n").split("\n\n")
    assert [line.split() for line in table.splitlines()[1:]] == [
        ["outputs/a", "reward/mean@3", ">", "0.5", "0.9", "true", "0.7", "0.0100"],
        ["outputs/a", "reward/mean@3", ">", "0.8", "0.3", "false", "0.7", "0.0900"],
        ["outputs/a/.previous/old", "reward/mean@3", ">", "0.5", "0.8", "false", "0.1", "0.6400"],
        ["outputs/open", "reward/mean@3", ">", "0.5", "0.8", "undecided", "-", "-"],
    ]
    # (0.01 + 0.09 + 0.64) / 3; the base rate is 1/3, of which the score is 1/3 x 2/3
    assert overall.splitlines()[:3] == [
        "Brier score of 3 decided: 0.2467",
        "    always saying 0.5:  0.2500",
        "    always the share that came true (0.33):  0.2222",
    ]
    assert [line.split()[:5] for line in bins.splitlines()[1:]] == [
        ["0.3", "to", "0.4", "0.30", "0.00"],
        ["0.8", "to", "0.9", "0.80", "0.00"],
        ["0.9", "to", "1.0", "0.90", "1.00"],
    ]
    first, *right = surprises.splitlines()
    assert first == "furthest off reward/mean@3 > 0.5 p=0.8 was false (0.1), in outputs/a/.previous/old"
    assert right[0] == "best         reward/mean@3 > 0.5 p=0.9 was true (0.7), in outputs/a" and len(right) == 2
    assert rest.startswith("1 undecided")
