"""The trainer of a run in mode split: receives batches by the transport, and publishes weights.

A session of the orchestrator begins with the initial model or a checkpoint. The trainer publishes these weights, then
new weights after every batch, each time with a result. A restarted orchestrator opens another session. Only rank 0 uses
the transport; other ranks follow rank 0.

    hone trainer @ train.toml
    torchrun --nproc-per-node 2 src/hone/extensions/split/serve.py @ train.toml
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from hone.config.rl import RLConfig
from hone.errors import UserError
from hone.extensions.split.agreement import check_agreement, check_checkpoint, checkpoint_of
from hone.extensions.split.transport import FileTransport, Hello, Order, Result, Session
from hone.extensions.split.wire import from_arrays
from hone.runs.signals import explain
from hone.trainer.export import reserve_policy
from hone.trainer.ranked import RankedTrainer
from hone.trainer.token_stats import TokenStats

SAY_AFTER = 60.0
"""Seconds of waiting until a line reports the wait. Another line follows whenever the wait has doubled."""


class TrainerLoop:
    """Serves sessions until the run has ended. `trainer.start` begins with the initial model."""

    def __init__(
        self,
        config: RLConfig,
        transport: FileTransport,
        trainer: RankedTrainer,
        say: Callable[[str], None] = print,
    ) -> None:
        self.config, self.transport, self.trainer, self.say = config, transport, trainer, say
        self._waits_for("the orchestrator")
        transport.interrupt = self._look

    def serve(self, hello: Hello) -> int:
        """Write `hello`, then serve one session after another; return the version at the end of the run."""
        last = None
        try:
            self.transport.say_hello(hello)
            while True:
                self._waits_for("the orchestrator")
                session = self.transport.session(last)
                assert session is not None, "it was waited for"
                self._begin(session)
                at_end = self._serve(session) and self.trainer.version >= self.config.max_steps
                if at_end and self.transport.session(session.id, wait=False) is None:  # else its orchestrator came back
                    return self.trainer.version
                last = session.id
        finally:
            self.transport.leave()

    def _waits_for(self, what: str) -> None:
        self._waits = what, time.monotonic(), SAY_AFTER

    def _look(self) -> None:
        what, began, after = self._waits
        if (waited := time.monotonic() - began) >= after:
            self.say(f"waiting for {what} at {self.transport.path} ({waited:.0f} s)")
            self._waits = what, began, 2 * after

    def _begin(self, session: Session) -> None:
        check_agreement(self.config, session, "this trainer's config")
        checkpoint = checkpoint_of(session)
        self.trainer.start(session.temperature, session.lag, session.rollouts, session.advantage)
        if checkpoint is not None:
            check_checkpoint(checkpoint, self.trainer.trainer)
            self.trainer.load_part(checkpoint, session.start)
        source = checkpoint or self.config.model.name
        self.say(f"Session {session.id} of {session.output_dir}: at version {session.start}, from {source}")

    def _serve(self, session: Session) -> bool:
        """Serve one session; return True if it ended, False if another one began."""
        self._publish(session, {}, {"train": 0.0, "wait": 0.0})
        while True:
            began, step = time.perf_counter(), self.trainer.version
            self._waits_for(f"the batch of step {step}")
            order = self.transport.order(step)
            waited = time.perf_counter() - began
            if order is None:
                self.say("Another session has started.")
                return False
            if order.kind == "end":
                self._end(order, waited)
                return True
            self._step(session, order, waited)

    def _step(self, session: Session, order: Order, waited: float) -> None:
        began = time.perf_counter()
        metrics = self.trainer.step(from_arrays(order.arrays))
        tokens = self.trainer.token_stats()
        seconds = {"train": time.perf_counter() - began, "wait": waited}
        self._publish(session, metrics, seconds, order.save, tokens)
        loss = f"loss {metrics['loss']:.4g}" if "loss" in metrics else "no signal, weights unchanged"
        trained = f"{order.tokens:,} tokens in {seconds['train']:.2f} s"
        self.say(f"step {order.step}: {trained}, waited {waited:.2f} s for the batch, {loss}")

    def _end(self, order: Order, waited: float) -> None:
        seconds, version = {"wait": waited}, self.trainer.version
        saved = order.save is not None and self._save(Path(order.save), seconds)
        result = Result(version, {}, self.trainer.fingerprint(), (), seconds, saved)
        self.transport.put_result(result)
        self.say(f"The session has ended at version {version}.")
        if version < self.config.max_steps:
            self.say(f"Waiting for another session at {self.transport.path}")

    def _publish(
        self,
        session: Session,
        metrics: dict[str, float],
        seconds: dict[str, float],
        save: str | None = None,
        tokens: TokenStats | None = None,
    ) -> None:
        """Write the weights and, if `save` names a folder, the trainer's checkpoint part there. Send the result."""
        began, version = time.perf_counter(), self.trainer.version
        reserve = partial(reserve_policy, self.trainer.trainer)
        with self.transport.weights_dir(version, reserve) as (folder, reserved):
            self.trainer.save_policy(folder, reserved)
        seconds["publish"] = time.perf_counter() - began
        saved = save is not None and self._save(Path(save), seconds)
        scores = tuple(self.trainer.score(session.canary))
        arrays = {} if tokens is None else tokens.arrays()
        self.transport.put_result(Result(version, metrics, self.trainer.fingerprint(), scores, seconds, saved, arrays))

    def _save(self, folder: Path, seconds: dict[str, float]) -> bool:
        """Write the trainer's part of a checkpoint into `folder`. Raises UserError if that fails.

        Returns False if the folder is gone: a restarted orchestrator removes unfinished checkpoints.
        """
        began = time.perf_counter()
        try:
            self.trainer.save_part(folder)
        except Exception as error:
            if not folder.is_dir():
                self.say(f"{folder} is gone: the checkpoint of version {self.trainer.version} is not wanted any more")
                return False
            if (fault := explain(error, folder)) is None:
                raise
            raise UserError(
                f"the checkpoint of version {self.trainer.version} can't be written, {fault[0]}: {fault[1]}"
            ) from error
        seconds["save"] = time.perf_counter() - began
        return True


if __name__ == "__main__":
    from hone.cli import trainer

    sys.exit(trainer())
