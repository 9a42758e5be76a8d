"""The RL loop in several processes: a server samples, the trainer trains, and this one draws, grades and hands on.

Step N is as in `hone.orchestrator.loop`, but that its batch is sampled from a version of the weights that is at least
N - k, where k is `max_async_level`: up to k batches are on their way while the next one is sampled, and new weights
reach the server in the middle of that. With k = 0 the three take turns. Draws are taken in the same order whatever k
is; a group of which a token is older than N - k goes back to the ledger, and its draw is sampled again.

    rl --trainer @ train.toml --orchestrator @ orch.toml --inference @ infer.toml
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

from hone.config.rl import RLConfig
from hone.errors import Halt
from hone.orchestrator.groups import GroupSampler, close_draws
from hone.orchestrator.ledger import Ledger
from hone.orchestrator.loop import Evaluate
from hone.orchestrator.metrics import gained, step_metrics
from hone.orchestrator.packing import trainable
from hone.orchestrator.publishing import Published, SteadyPolicy
from hone.orchestrator.recorder import RunRecorder
from hone.orchestrator.remote_trainer import RemoteTrainer
from hone.orchestrator.watch import ScoreWatch
from hone.runs.saving import Ending
from hone.runs.signals import StepAbandoned
from hone.types import Example, Group, Trajectory


@dataclass
class Batch:
    """A step on its way: sampled and graded, but not trained on yet."""

    step: int
    groups: list[Group]
    metrics: dict[str, float]
    timings: dict[str, float]


@dataclass
class SplitLoop:
    """The pieces of a run in mode split, and the order in which they take their turns."""

    config: RLConfig
    sampler: GroupSampler
    policy: SteadyPolicy
    trainer: RemoteTrainer
    ledger: Ledger
    recorder: RunRecorder
    watch: ScoreWatch
    evaluate: Evaluate
    queue: deque[Batch] = field(default_factory=deque)
    of_version: dict[str, float] = field(default_factory=dict)
    """What was measured of the trainer's version."""
    idle: float | None = None
    """How long the server had had nothing to do when the last batch was sampled."""

    def train(self) -> Ending:
        """Runs to `max_steps`, or until a stop is asked for or the budget ends; tells which."""
        last, ahead = self.config.max_steps, self.config.orchestrator.max_async_level
        self._collect()
        self.idle = self.policy.idle_seconds
        try:
            while (step := self.trainer.version + len(self.queue)) < last and not self.recorder.stopping:
                self.queue.append(self._make(step))
                while len(self.queue) > ahead or (self.queue and self.trainer.ready):
                    self._collect()
            while self.queue:
                self._collect()
        except (StepAbandoned, Halt):
            self.trainer.publisher.mute()
            while self.queue:  # what was handed over is trained on, and so it is recorded
                with suppress(Halt):  # the first one is told
                    self._take()
            raise
        return self._end()

    def _make(self, step: int) -> Batch:
        """Samples and grades the next step, and hands it to the trainer."""
        run, orch = self.recorder.run, self.config.orchestrator
        draws, examples = self.sampler.draw()
        groups, returned = self._fresh(draws, examples, step)
        metrics = step_metrics(groups, step, orch.max_async_level)
        close_draws(self.ledger, self.sampler.curriculum, groups, step)
        if orch.max_async_level or returned:
            metrics["staleness/returned"] = returned
        totals = {"tokens/total": self.ledger.tokens} | self.sampler.curriculum.metrics()
        save = self.recorder.saver.wants_checkpoint(step + 1) and step + 1 < self.config.max_steps
        with run.phase("put"):
            waited = self.trainer.put(step, trainable(groups, orch.truncated), save)
        batches, tokens = self.trainer.transport.waiting()
        timings = {"queue/batches": batches, "queue/tokens": tokens, "idle/orchestrator": waited}
        if (idle := gained(self.idle, self.policy.idle_seconds)) is not None:
            timings["idle/inference"] = idle
        self.idle = self.policy.idle_seconds
        return Batch(step, groups, metrics | totals, timings)

    def _fresh(self, draws: list[int], examples: list[Example], step: int) -> tuple[list[Group], int]:
        """The groups of these draws, none of them too old; and how many draws went back to the ledger for that."""
        oldest, returned = step - self.config.orchestrator.max_async_level, 0
        groups: dict[int, Group] = {}
        while waiting := [draw for draw in draws if draw not in groups]:
            of_draws = [example for draw, example in zip(draws, examples, strict=True) if draw in waiting]
            with self.recorder.phase("sample"):
                trajectories = self.sampler.sample(of_draws, waiting, step)
            with self.recorder.phase("grade"):
                made = self.sampler.grade(of_draws, waiting, trajectories)
            groups |= {group.draw: group for group in made if _oldest(group.trajectories) >= oldest}
            if stale := [group.draw for group in made if group.draw not in groups]:
                returned += len(stale)
                self.recorder.run.event("stale", step, draws=stale, oldest=oldest)
        return [groups[draw] for draw in draws], returned

    def _collect(self) -> None:
        """Takes the next version from the trainer, and saves and measures it."""
        published, version = self._take(), self.trainer.version
        if published.error is not None:
            raise published.error
        if published.scores is None:  # there was no time left for that
            return
        verdict, gap, self.of_version = self.watch.measured(published.scores, published.result.canary)
        if version < self.config.max_steps:
            self.recorder.saver.save(version)
        self.watch.judge("canary", version, verdict, gap, "its canary", CAUSE, self.of_version)
        if version < self.config.max_steps and not self.recorder.stopping:
            self.of_version |= self.evaluate(version, False)
        self.trainer.publisher.release(version)

    def _take(self) -> Published:
        """The next version; the step that made it is recorded."""
        began = time.perf_counter()
        with self.recorder.run.phase("wait"):
            published = self.trainer.collect(self._hurry)
        if self.queue:
            measured, self.of_version = self.of_version, {}
            self._record(self.queue.popleft(), published, measured, time.perf_counter() - began)
        self.trainer.transport.drop(self.trainer.version - 2)
        return published

    def _hurry(self) -> None:
        """Has nothing more published once the time is over in which the run has to be saved."""
        try:
            self.recorder.saver.stop.check()
        except StepAbandoned:
            self.trainer.publisher.mute()

    def _record(self, batch: Batch, published: Published, measured: dict[str, float], waited: float) -> None:
        result = published.result
        assert result.version == batch.step + 1, f"version {result.version} after step {batch.step}"
        sampled = {name: value for name, value in batch.metrics.items() if name not in TOTALS}
        totals = {name: value for name, value in batch.metrics.items() if name in TOTALS}
        metrics = measured | sampled | result.metrics | totals
        seconds = {f"time/{name}": value for name, value in result.seconds.items() if name != "wait"}
        timings = batch.timings | seconds | {"time/update": published.seconds}
        timings["idle/orchestrator"] = timings.get("idle/orchestrator", 0.0) + waited
        timings["idle/trainer"] = result.seconds.get("wait", 0.0)
        weights = self.trainer.fingerprints[batch.step]
        self.recorder.record(batch.step, metrics, batch.groups, weights, timings, published.tokens)

    def _end(self) -> Ending:
        version, saver = self.trainer.version, self.recorder.saver
        ending = saver.ending(version, self.config.max_steps)
        saver.save(version, last=True)
        metrics = {} if ending == "stopped" else self.of_version | self.evaluate(version, True)
        self.recorder.record(version, metrics, [], self.trainer.fingerprint())
        return ending


TOTALS = ("tokens/total", "pool/active", "pool/retired", "pool/parked")
CAUSE = "on given tokens, right after the server took the weights: it has other weights, or computes otherwise"


def _oldest(trajectories: list[Trajectory]) -> int:
    """The oldest version of which a token was sampled."""
    return min(int(t.versions[t.sampled_mask].min()) for t in trajectories if t.num_sampled)
