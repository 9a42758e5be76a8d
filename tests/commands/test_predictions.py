"""`hone rl --predict …`, with a real run: what it records, and that nothing else changes."""

from __future__ import annotations

import pytest

from hone.runs import Run

PREDICTED = ("reward/mean@4 >= 0.5 p=0.7", "eval/parity/reward/mean@end < 0 p=0.2", "outcome/correct@5 >= 0 p=0.9")


def test_a_real_run_is_scored_from_its_metrics_and_is_the_same_bytes(bench, rl_run) -> None:
    predicted = bench.rl("predicted", *[word for text in PREDICTED for word in ("--predict", text)])
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
    for name in ("metrics.jsonl", "hashes.jsonl", "rollouts/step_000005.parquet"):
        assert (predicted / name).read_bytes() == (rl_run / name).read_bytes(), name
