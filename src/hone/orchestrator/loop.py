"""The RL loop: GRPO-style policy gradient with verifiable rewards, colocated and synchronous.

Each step N draws prompts, samples a group of completions per prompt from policy version N, grades them, takes each reward
minus its group's mean as the advantage, and makes one update of the token-level clipped loss. Groups without reward
variance carry no gradient and are dropped. No value network, no KL by default, one update per batch, no replay.

    rl @ examples/reverse_text/tiny.toml
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from hone.config.rl import RLConfig
from hone.environments import Environment
from hone.environments.order import Draws
from hone.inference.types import SamplingParams
from hone.model.chat import ChatRenderer
from hone.orchestrator.groups import grade_groups, group_state, make_requests
from hone.orchestrator.ledger import Ledger
from hone.orchestrator.metrics import step_metrics
from hone.orchestrator.packing import pack_groups
from hone.orchestrator.types import Policy
from hone.trainer.step import Trainer
from hone.types import Group


class Recorder(Protocol):
    """What the loop reports to: the run directory, its checkpoints and its display."""

    stop_requested: bool

    def phase(self, name: str): ...
    def checkpoint(self, step: int) -> None: ...
    def record(self, step: int, metrics: dict[str, float], groups: list[Group]) -> None: ...


def train(
    config: RLConfig,
    env: Environment,
    renderer: ChatRenderer,
    policy: Policy,
    trainer: Trainer,
    ledger: Ledger,
    recorder: Recorder,
    evaluate: Callable[[int], dict[str, float]],
) -> int:
    """Runs from `trainer.version` to `max_steps` or until a stop is requested; returns the version reached.

    `evaluate(version)` returns the evaluation metrics due at this version, or nothing.
    """
    orch = config.orchestrator
    draws = Draws(len(env.split("train")), config.seed, orch.max_examples)
    prompts = orch.batch_size // orch.rollouts_per_example
    sampling = SamplingParams(temperature=orch.sampling.temperature)
    tokens_total = 0
    while trainer.version < config.max_steps and not recorder.stop_requested:
        step = trainer.version
        recorder.checkpoint(step)
        metrics = evaluate(step)
        indices = range(ledger.next_draw, ledger.next_draw + prompts)
        examples = [env.split("train")[draws.index(draw)] for draw in indices]
        with recorder.phase("sample"):
            requests = make_requests(examples, indices, renderer)
            trajectories = policy.sample(requests, sampling)
        with recorder.phase("grade"):
            groups = grade_groups(env, examples, indices, trajectories, orch.advantage.normalize_std)
        with recorder.phase("train"):
            batch = pack_groups(groups, orch.truncated, config.trainer.micro_batch_tokens)
            metrics |= step_metrics(groups, step) | trainer.step(batch)
        for group in groups:
            ledger.close(group.draw, step, group.example.id, group_state(group))
        recorder.record(step, metrics, groups)
    recorder.checkpoint(trainer.version)
    return trainer.version
