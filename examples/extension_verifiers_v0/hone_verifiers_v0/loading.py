"""Environments of verifiers v0 (`vf.load_environment`), by the id `verifiers-v0:ENVIRONMENT`.

    hone eval verifiers-v0:my-env -m hone/tiny -n 20 -a '{"difficulty": "easy"}'

verifiers makes each rollout and rewards it by the environment's rubric (`worker.py`). All else is as for tasksets of v1
with rollouts by verifiers (`hone.extensions.libraries.verifiers`).
"""

from __future__ import annotations

import functools
import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from hone.environments.data import DataSource, Rows, hold_out, indexed_rows
from hone.errors import UserError
from hone.extensions.agents.rewards import AgentLimits
from hone.extensions.libraries import verifiers

ENVIRONMENTS = (".venv-verifiers-v0", ".venv-verifiers")
HELD_OUT = 0.1


class TasksetProcess(verifiers.TasksetProcess):
    """An environment in its process."""

    worker = driver = Path(__file__).with_name("worker.py")

    def __init__(self, env_id: str, args: dict[str, Any], limit: int) -> None:
        super().__init__(env_id, _python(env_id), args, limit, None)
        assert self.env is not None
        self.env["driver"] = str(verifiers.TasksetProcess.driver)

    def train_rows(self) -> int | None:
        """Return how many rows, the first ones, are for training; None if no others are for evaluation."""
        return self._ask(["train_rows"])


def load(
    name: str,
    /,
    *,
    correctness: str | None = None,
    held_out: float | None = None,
    max_tasks: int = 100_000,
    agent_limits: dict[str, Any] | None = None,
    **args: Any,
) -> verifiers.Episodes:
    """Load the environment `name` by its `load_environment(**args)`.

    The rows of its `eval_dataset` are held out; without one, the share `held_out` (0.1) of the prompts, by content. The
    other arguments work as for tasks `verifiers:TASKSET`. Raises UserError without verifiers v0, and for an environment
    that is refused.
    """
    env_id = f"verifiers-v0:{name}"
    if held_out is not None and not 0 < held_out < 1:
        raise UserError(f"{env_id}: held_out is {held_out}; it must be a share between 0 and 1")
    if max_tasks < 2:
        raise UserError(f"{env_id}: max_tasks is {max_tasks}; it must be at least 2")
    served = TasksetProcess(env_id, args, max_tasks)

    @functools.cache
    def halves() -> tuple[Rows, Rows]:
        keys = served.keys()
        rows, train = indexed_rows(lambda i: {"index": i, "key": keys[i]}, len(keys), env_id), served.train_rows()
        if train is None:
            return hold_out(rows, lambda row: row["key"], HELD_OUT if held_out is None else held_out)
        if held_out is not None:
            raise UserError(f"{env_id} has rows of its own for evaluation: leave out held_out")
        return rows.take(list(range(train))), rows.take(list(range(train, len(keys))))

    data: dict[str, Any] = {
        "dataset": DataSource(lambda _: halves()[0], reads=False),
        "eval_dataset": DataSource(lambda _: halves()[1], reads=False),
        "id": env_id,
    }
    return verifiers.Episodes(served, correctness, AgentLimits.of(agent_limits), **data)


def _python(env_id: str) -> Path:
    """Return the first interpreter with v0: this one, or an environment's here or in hone's checkout."""
    if _has_v0(sys.path):
        return Path(sys.executable)
    for environment in ENVIRONMENTS:
        for folder in (Path.cwd(), verifiers.CHECKOUT):
            if _has_v0([str(path) for path in folder.glob(f"{environment}/lib/python*/site-packages")]):
                return folder / environment / "bin/python"
    raise UserError(
        f"{env_id} needs verifiers 0.3.1, which is not installed: `make verifiers-v0-env` in a checkout of hone makes "
        ".venv-verifiers-v0; or install that version beside hone"
    )


def _has_v0(folders: list[str]) -> bool:
    """Return True if a folder has verifiers before 0.4, the first version without v0."""
    versions = [found.version for found in distributions(name="verifiers", path=folders)]
    return any(tuple(map(int, version.split(".")[:2])) < (0, 4) for version in versions)
