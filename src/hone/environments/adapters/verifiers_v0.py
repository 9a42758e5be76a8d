"""Environments of verifiers v0 (`vf.load_environment`), by the id `verifiers-v0:ENVIRONMENT`.

    hone eval verifiers-v0:my-env -m hone/tiny -n 20 -a '{"difficulty": "easy"}'

verifiers makes each rollout and rewards it by the environment's rubric (`verifiers_v0_worker.py`). All else is as for
the tasksets of v1 whose rollouts verifiers makes (`verifiers.py`).
"""

from __future__ import annotations

import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from hone.environments.adapters import verifiers
from hone.environments.agents import AgentLimits
from hone.errors import UserError

ENVIRONMENTS = (".venv-verifiers-v0", ".venv-verifiers")


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

    Held out are the rows of its `eval_dataset`; of an environment without, the share `held_out` (0.1) of the prompts,
    by content. The other arguments are those of `verifiers.load`. UserError without verifiers v0, and for an
    environment that is refused.
    """
    env_id = f"verifiers-v0:{name}"
    verifiers.check_split(env_id, held_out, max_tasks)
    served = verifiers.Served(env_id, _python(env_id), args, max_tasks, worker="verifiers_v0_worker.py")
    data = verifiers.splits(served, held_out)
    return verifiers.Episodes(served, correctness, AgentLimits.of(agent_limits), **data)


def _python(env_id: str) -> Path:
    """Return the first interpreter that has v0: this one, or that of an environment here or in hone's checkout."""
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
    """Return True if a folder has a verifiers before 0.4, the first without v0."""
    versions = [found.version for found in distributions(name="verifiers", path=folders)]
    return any(tuple(map(int, version.split(".")[:2])) < (0, 4) for version in versions)
