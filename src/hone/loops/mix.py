"""Several tasks in one run: the share of each task in a step's groups, its draws and its metrics.

Each task has a name. If a run has only one task, its name is "" and is left out of metrics and ledger. A step's groups
are ordered by task. Each task has its own curriculum, advantages and `refill` rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hone import rng
from hone.config.rl import RLConfig
from hone.loops.curriculum import Curriculum
from hone.loops.groups import ledger_entries, step_metrics
from hone.loops.ledger import Ledger
from hone.types import Group

GOLDEN_RATIO = (5**0.5 - 1) / 2


def shares(config: RLConfig, step: int) -> dict[str, int]:
    """Return the number of groups of each task in a step's batch, proportional to its weight up to rounding.

    This is systematic sampling: each task owns a part of [0, 1), and the groups are evenly spaced points in this range.
    The points move by the golden ratio each step, so that rounding evens out.
    """
    orch, names = config.orchestrator, list(config.tasks())
    groups = orch.batch_size // orch.rollouts_per_example
    ends = np.cumsum([env.weight for env in orch.envs] if len(names) > 1 else [1.0])
    first = rng.uniforms(np.array([rng.key(config.seed, "mix")], dtype=np.uint64), 0, 1)[0, 0]
    begin = (first + step * GOLDEN_RATIO) % 1
    points = (np.arange(groups) + begin) / groups * ends[-1]
    owners = np.searchsorted(ends[:-1], points, side="right")
    return dict(zip(names, np.bincount(owners, minlength=len(names)).tolist(), strict=True))


def close_draws(ledger: Ledger, curricula: Mapping[str, Curriculum], groups: Sequence[Group], step: int) -> None:
    for name, curriculum in curricula.items():
        if members := [group for group in groups if group.env == name]:
            entries = ledger_entries(curriculum, members, step, len(ledger.entries))
            curriculum.advance(entries)
            for entry in entries:
                ledger.close(entry)


def mix_metrics(groups: Sequence[Group], config: RLConfig, step: int) -> dict[str, float]:
    """Compute the metrics of a step's groups and, with several tasks, each task's metrics as `env/NAME/…`."""
    more = config.orchestrator.lag, config.orchestrator.refill is not None
    metrics = step_metrics(groups, step, *more)
    for name in dict.fromkeys(group.env for group in groups if group.env):
        of_task = step_metrics([group for group in groups if group.env == name], step, *more)
        metrics |= {f"env/{name}/{metric}": value for metric, value in of_task.items()}
    return metrics


def pool_metrics(curricula: Mapping[str, Curriculum]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for name, curriculum in curricula.items():
        for metric, count in curriculum.metrics().items():
            metrics[metric] = metrics.get(metric, 0) + count
            metrics |= {f"env/{name}/{metric}": count} if name else {}
    return metrics
