"""The roles of a run in mode split."""

from __future__ import annotations

from hone.config.rl import RoleConfig


class TrainerRole(RoleConfig):
    """Train the policy of a run in mode split: receive batches, and publish weights."""

    section = "trainer"
    headings = "Run: role; Training; Machine: ranks machine"


class OrchestratorRole(RoleConfig):
    """Drive a run in mode split: sample, grade, send batches to the trainer, and write the run directory."""

    section = "orchestrator"
    headings = "Model and task: task; Run: run above; Rollouts; Evaluation; Watching"
