"""`hone rl --predict …`, with a real run: what it records, and that nothing else changes; `hone runs predictions`."""

from __future__ import annotations

import json
from pathlib import Path

from run_folders import make_run, snapshot, write_lines

from hone.cli import main
from hone.config.rl import RLConfig
from hone.extensions.alarms import predictions
from hone.runs import Run

PREDICTED = ("reward/mean@4 >= 0.5 p=0.7", "eval/parity/reward/mean@end < 0 p=0.2", "outcome/correct@5 >= 0 p=0.9")


def test_a_real_run_is_scored_from_its_metrics_and_is_the_same_bytes(bench, rl_run, capsys) -> None:
    predicted = bench.rl("predicted", *[word for text in PREDICTED for word in ("--predict", text)])
    assert "\nPredictions: 3 of 3 decided, Brier score " in f"\n{capsys.readouterr().out}"
    assert main(["runs", "show", str(predicted)]) == 0
    assert "predicted    3 of 3 decided, Brier score " in capsys.readouterr().out
    metrics = {line["step"]: line for line in Run(predicted).metrics().to_pylist()}
    values = [metrics[4]["reward/mean"], metrics[6]["eval/parity/reward/mean"], metrics[5]["outcome/correct"]]
    info = Run(predicted).info
    assert [one["value"] for one in info["predictions"]["outcomes"]] == values
    made = [event for event in Run(predicted).events() if event["kind"] == "predicted"]
    assert [event["sha256"] for event in made] == [info["predictions"]["sha256"]]
    for name in ("metrics.jsonl", "hashes.jsonl", "rollouts/step_000005.parquet"):
        assert (predicted / name).read_bytes() == (rl_run / name).read_bytes(), name
    info["predictions"]["entries"][0]["p"] = 0.99
    (predicted / "run.json").write_text(json.dumps(info))
    assert main(["verify", str(predicted), "--steps", "1"]) == 1
    assert "run.json: its predictions were changed after step 0" in capsys.readouterr().out


def predicted(folder: Path, *texts: str, reward: float) -> Path:
    """A run of which `reward/mean` at step 3 is `reward`."""
    make_run(folder)
    write_lines(folder / "metrics.jsonl", [{"step": step, "reward/mean": reward} for step in range(4)])
    facts = json.loads((folder / "run.json").read_text())
    facts |= predictions.record(RLConfig(output_dir=folder, max_steps=4, predict=list(texts)), "rl", facts["id"])
    (folder / "run.json").write_text(json.dumps(facts))
    event = {"kind": predictions.MADE, "step": 0, "time": None, "sha256": facts[predictions.KEY]["sha256"]}
    write_lines(folder / "events.jsonl", [event], "a")
    return folder


def test_predictions_of_many_runs_and_their_scores(tmp_path, monkeypatch, capsys) -> None:
    def hone(*argv: str) -> str:
        assert main(["runs", *argv]) == 0
        return capsys.readouterr().out

    monkeypatch.chdir(tmp_path)
    predicted(Path("outputs/a"), "reward/mean@3 > 0.5 p=0.9", "reward/mean@3 > 0.8 p=0.3", reward=0.7)
    predicted(Path("outputs/a/.previous/old"), "reward/mean@3 > 0.5 p=0.8", reward=0.1)
    predicted(Path("outputs/open"), "reward/mean@3 > 0.5 p=0.8", reward=0.7)
    write_lines(Path("outputs/open/metrics.jsonl"), [{"step": 0, "reward/mean": 0.7}])
    make_run(Path("outputs/without"))
    before = snapshot(Path("outputs"))
    table, overall = hone("predictions").rstrip("\n").split("\n\n")
    assert snapshot(Path("outputs")) == before
    assert [line.split() for line in table.splitlines()[1:]] == [
        ["outputs/a", "reward/mean@3", ">", "0.5", "0.9", "true", "0.7", "0.0100"],
        ["outputs/a", "reward/mean@3", ">", "0.8", "0.3", "false", "0.7", "0.0900"],
        ["outputs/a/.previous/old", "reward/mean@3", ">", "0.5", "0.8", "false", "0.1", "0.6400"],
        ["outputs/open", "reward/mean@3", ">", "0.5", "0.8", "undecided", "-", "-"],
    ]
    # (0.01 + 0.09 + 0.64) / 3; the base rate is 1/3, of which the score is 1/3 x 2/3
    assert "3 decided: 0.2467" in overall and "came true (0.33):  0.2222" in overall
    assert overall.splitlines()[-1].startswith("1 undecided: ")
    assert len(hone("predictions", "--jsonl").splitlines()) == 4
