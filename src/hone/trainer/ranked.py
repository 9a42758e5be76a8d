"""A trainer on several ranks that one loop drives: every rank repeats rank 0's calls.

Only rank 0 has the loop, the data and the run directory, and decides. The other ranks, with their shards, `follow`.
"""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, cast

from hone.errors import RankLost, UserError
from hone.runs.signals import StepAbandoned, StopRequest
from hone.trainer.export import save_policy
from hone.trainer.logprobs import sequence_logprobs
from hone.trainer.packing import Batch, Sequence
from hone.trainer.parallel import Ranks
from hone.trainer.step import Trainer
from hone.trainer.token_stats import TokenStats
from hone.types import PackedBatch


class Dismissed(BaseException):
    """Ends other ranks with rank 0's exit code `code`. Rank 0 may send it instead of any value."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


Method = TypeVar("Method", bound=Callable[..., Any])


def on_all_ranks(method: Method) -> Method:
    """Decorate a method of `RankedTrainer`: a call on rank 0 then runs on every rank (on others in `follow`)."""

    @wraps(method)
    def call(trainer: RankedTrainer, *arguments: Any) -> Any:
        trainer._in_call = True
        try:
            with trainer.ranks.watched():
                trainer.ranks.agree((method.__name__, arguments))
                value = method(trainer, *arguments)
        except StepAbandoned:  # raised on all ranks
            trainer._in_call = False
            raise
        except RuntimeError as error:
            if is_lost(error):
                raise RankLost from error
            raise
        trainer._in_call = False
        return value

    return cast(Method, call)


class RankedTrainer:
    """Rank 0's trainer, which runs each call on every rank.

    Batches are cut into micro-batches of at most `micro_batch_tokens` tokens (None: the device's default). `start`
    calls `make` with the same arguments on all ranks. When rank 0 leaves the context, the other ranks end with the exit
    code `code`, or if rank 0 raised an error, with the code for this error.
    """

    def __init__(
        self,
        ranks: Ranks,
        make: Callable[..., Trainer],
        micro_batch_tokens: int | None = None,
        share_prompts: bool = False,
    ) -> None:
        self.ranks, self.make = ranks, make
        self.micro_batch_tokens, self.share_prompts = micro_batch_tokens, share_prompts
        self.code = 0
        self._in_call = False
        self._trainer: Trainer | None = None

    @property
    def trainer(self) -> Trainer:
        assert self._trainer is not None, "`start` comes first"
        return self._trainer

    @property
    def version(self) -> int:
        return self.trainer.version

    @on_all_ranks
    def start(self, *arguments: Any) -> None:
        self._trainer = None  # free its memory for the next one
        gc.collect()  # a model in shards holds itself
        self._trainer = self.make(*arguments)

    @on_all_ranks
    def step(self, batch: Batch) -> dict[str, float]:
        return self.trainer.step(self._dealt(batch))

    @on_all_ranks
    def token_stats(self) -> TokenStats | None:
        return self.trainer.token_stats()

    @on_all_ranks
    def evaluate(self, sequences: list[Sequence]) -> float:
        return self.trainer.evaluate(self._dealt(Batch(sequences)))

    @on_all_ranks
    def fingerprint(self) -> str:
        return self.trainer.fingerprint()

    @on_all_ranks
    def score(self, token_ids: tuple[int, ...]) -> list[float]:
        """Return the log-probability of each token except the first, at the trainer's temperature."""
        return sequence_logprobs(self.trainer.model, token_ids, self.trainer.temperature)

    @on_all_ranks
    def save_policy(self, folder: Path, reserved: bool = False) -> None:
        save_policy(self.trainer, folder, reserved=reserved)

    @on_all_ranks
    def save_part(self, folder: Path) -> None:
        from hone.trainer.parts import save_part

        try:
            save_part(folder, self.trainer)
        except OSError:  # of any rank, raised on all, which wait for the next call: the first one reports it
            if self.ranks.first:
                self._in_call = False
                raise

    @on_all_ranks
    def load_part(self, folder: Path, version: int) -> None:
        from hone.trainer.parts import load_part

        load_part(folder, self.trainer, version)

    def _dealt(self, batch: Batch) -> list[PackedBatch]:
        return self.trainer.deal(batch, self.micro_batch_tokens, self.share_prompts)

    def abandonable(self, stop: StopRequest) -> AbstractContextManager[None]:
        """Return `stop.abandonable()` for a single rank. Several ranks can stop only between micro-batches."""
        return stop.abandonable() if self.ranks.alone else nullcontext()

    def follow(self) -> int:
        """Repeat rank 0's calls until rank 0 ends; return the exit code. Signals are ignored: rank 0 handles them."""
        assert not self.ranks.first
        with _deaf():
            try:
                with self.ranks.watched():
                    while True:
                        call: Any = self.ranks.agree(None)
                        if isinstance(call, Dismissed):
                            return call.code
                        name, arguments = call
                        with suppress(StepAbandoned):  # raised on all ranks; rank 0 says what comes next
                            getattr(type(self), name).__wrapped__(self, *arguments)
            except Dismissed as dismissed:
                return dismissed.code
            except RuntimeError as error:
                if is_lost(error):
                    return 1  # the rank where it happened reports it
                raise

    def __enter__(self) -> RankedTrainer:
        assert self.ranks.first
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._in_call:
            return  # in the middle of a call nobody listens: the others end when this process's connections close
        code = self.code
        if kind is not None:
            code = 2 if issubclass(kind, UserError) else 130 if issubclass(kind, KeyboardInterrupt) else 1
        with suppress(RuntimeError):  # there may be no rank left to tell
            self.ranks.agree(Dismissed(code))


def is_lost(error: RuntimeError) -> bool:
    """Return True if a collective failed because another process ended."""
    text = str(error)
    return isinstance(error, RankLost) or any(
        sign in text for sign in ("Connection closed by peer", "Connection reset", "Broken pipe")
    )


@contextmanager
def _deaf() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
