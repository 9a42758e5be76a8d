"""`hone trainer` and `hone orchestrator`: the config of the whole run, of which a role's own file says its section.

hone trainer @ train.toml --optim.lr 1e-6     as `rl --trainer @ train.toml --trainer.optim.lr 1e-6`
hone trainer @ outputs/config.toml            a run's own config is taken whole
"""

from __future__ import annotations

from typing import Any, ClassVar

from hone.config import hoist
from hone.config.rl import RLConfig
from hone.config.sources import Sources


class RoleConfig(RLConfig):
    """A part of a run in mode split: files and flags are of its section, and flags also of the top."""

    @classmethod
    def compose(cls, sources: Sources) -> dict[str, Any]:
        return hoist.compose(sources) | {"mode": "split"}


class TrainerRole(RoleConfig):
    """Train the policy of a run in mode split: take its batches, publish the weights."""

    section: ClassVar[str | None] = "trainer"


class OrchestratorRole(RoleConfig):
    """Drive a run in mode split: sample, grade, hand batches to the trainer, and keep the run's directory."""

    section: ClassVar[str | None] = "orchestrator"
