"""The RL loop: GRPO-style policy gradient with verifiable rewards, in one process and in lock-step.

Step N draws prompts, samples a group of completions per prompt from policy version N, grades them, takes each reward
minus its group's mean as the advantage, and makes one update of the token-level clipped loss: version N+1. Groups whose
rewards are all equal carry no gradient and are dropped; if none is left, the weights stay as they are, and the counter
and the schedule go on. No value network, no KL by default, one update per batch, no replay.

    rl @ examples/reverse_text/tiny.toml
"""

from __future__ import annotations

from collections.abc import Callable

from hone.config.rl import RLConfig
from hone.orchestrator.groups import GroupSampler, close_draws
from hone.orchestrator.ledger import Ledger
from hone.orchestrator.metrics import step_metrics
from hone.orchestrator.packing import pack_groups
from hone.orchestrator.recorder import RunRecorder
from hone.runs.saving import Ending
from hone.trainer.step import Trainer

Evaluate = Callable[[int, bool], dict[str, float]]
"""(version, is this the end?) -> the evaluation metrics that are due, or an empty dict."""

Publish = Callable[[int], dict[str, float]]
"""(version) -> metrics: puts that version of the weights into the sampler, and judges how far the two are apart."""

Loop = Callable[[RLConfig, GroupSampler, Trainer, Ledger, RunRecorder, Publish, Evaluate], Ending]
"""What `train` is."""


def train(
    config: RLConfig,
    sampler: GroupSampler,
    trainer: Trainer,
    ledger: Ledger,
    recorder: RunRecorder,
    publish: Publish,
    evaluate: Evaluate,
) -> Ending:
    """Runs from `trainer.version` to `max_steps`, or until a stop is asked for or the budget ends; tells which."""
    orch = config.orchestrator
    while trainer.version < config.max_steps and not recorder.stopping:
        step, weights = trainer.version, trainer.fingerprint()
        recorder.saver.save(step)
        if recorder.stopping:  # said in a pause: no other step is taken
            break
        with recorder.phase("publish"):
            metrics = publish(step)
        metrics |= evaluate(step, False)
        draws, examples = sampler.draw()
        with recorder.phase("sample"):
            trajectories = sampler.sample(examples, draws, step)
        with recorder.phase("grade"):
            groups = sampler.grade(examples, draws, trajectories)
        with recorder.run.phase("train"):  # not one that is given up midway: it changes the weights
            batch = pack_groups(groups, orch.truncated, config.trainer.micro_batch_tokens, trainer.model.device)
            metrics |= step_metrics(groups, step) | trainer.step(batch)
        close_draws(ledger, sampler.curriculum, groups, step)
        metrics |= {"tokens/total": ledger.tokens} | sampler.curriculum.metrics()
        recorder.record(step, metrics, groups, weights, token_stats=trainer.token_stats())
    ending = recorder.saver.ending(trainer.version, config.max_steps)
    recorder.saver.save(trainer.version, last=True)
    metrics = {} if ending == "stopped" else publish(trainer.version) | evaluate(trainer.version, True)
    recorder.record(trainer.version, metrics, [], trainer.fingerprint())
    return ending
