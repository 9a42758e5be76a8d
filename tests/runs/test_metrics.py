"""Each metric has the unit in which a run writes it."""

from __future__ import annotations

import pytest

from hone.config.parse import from_settings
from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.runs.metrics import written

ENVS = {"orchestrator.envs": [{"id": "gsm8k", "name": "a"}, {"id": "countdown", "name": "b"}]}
EVALS = {"orchestrator.eval.envs": [{"id": "char-count", "name": "c"}]}


@pytest.mark.parametrize(
    ("settings", "metric", "steps"),
    [
        ({}, "eval/reverse-text/correct", [0, 2, 4]),
        ({}, "eval/other/correct", None),
        ({}, "env/reverse-text/reward/mean", None),
        (EVALS, "eval/c/correct", [0, 2, 4]),
        (EVALS, "eval/reverse-text/correct", None),
        (ENVS, "eval/b/correct", [0, 2, 4]),
        (ENVS, "eval/c/correct", None),
        (ENVS | EVALS, "eval/c/pass@2", [0, 2, 4]),
        (ENVS | EVALS, "eval/a/correct", None),
        (ENVS, "env/a/reward/mean", [0, 1, 2, 3]),
        (ENVS, "env/c/reward/mean", None),
    ],
)
def test_metrics_of_tasks_are_those_that_the_run_has(settings: dict, metric: str, steps: list[int] | None) -> None:
    base = {"max_steps": 4, "orchestrator.eval.interval": 2}
    found = written(metric, from_settings(RLConfig, None, base | settings), "reverse-text")
    assert found == steps if steps else "is no metric of `rl`" in found
    assert "is no metric of `sft`" in written(
        "eval/reverse-text/loss", from_settings(SFTConfig, None, {"data.path": "rows.jsonl"})
    )
