"""Each metric has the unit in which a run writes it."""

from __future__ import annotations

import pytest

from hone.runs.metrics import unit


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("time/step", "s"),
        ("tokens/s", "tokens per second"),
        ("tokens/total", "tokens"),
        ("eval/reverse-text/completion/length/mean", "tokens"),
        ("eval/t/correct/ci95/low", "share of completions"),
        ("eval/t/ci95/low", "reward"),
        ("reward/exact/mean", "reward"),
        ("canary/gap/max", "nats"),
        ("canary/verdict", ""),
        ("val/loss", "nats per token"),
        ("loss", ""),
        ("something of a plugin", ""),
    ],
)
def test_units(metric: str, words: str) -> None:
    assert unit(metric) == words
