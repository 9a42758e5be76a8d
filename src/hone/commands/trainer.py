"""`hone trainer`: the trainer's part of a run in mode split. It waits for the orchestrator, and trains as it says.

hone trainer @ train.toml
torchrun --nproc-per-node 2 src/hone/trainer/serve.py @ train.toml
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from uuid import uuid4

from hone.commands.training import headline
from hone.composition.machine import configure, device_of
from hone.composition.parts import load_policy, make_trainer, with_determinism
from hone.config.rl import TrainerRole
from hone.errors import UserError
from hone.model.decoder import Decoder
from hone.runs.provenance import versions
from hone.trainer import serve
from hone.trainer.fingerprint import fingerprint
from hone.trainer.parallel import Ranks, joined, launched_ranks, shard
from hone.trainer.ranked import RankedTrainer
from hone.trainer.step import Trainer
from hone.transport import FileTransport, Hello

SETTLE = 2.0
"""Seconds that a trainer that was told to end has for that."""


def run(config: TrainerRole) -> int:
    """Trains until the run is done; returns 0 then. SIGTERM and Ctrl-C end it at once (143, 130): nothing is saved.

    Under torchrun every rank comes here; rank 0 alone sees the transport.
    """
    wanted, launched = config.trainer.ranks, launched_ranks()
    if wanted > launched == 1:
        raise UserError(
            f"trainer.ranks = {wanted}, but this is one process: start `torchrun --nproc-per-node {wanted} "
            f"{serve.__file__}` with the same arguments, or set --ranks 1"
        )
    device = device_of(config.model.device)
    config = with_determinism(config, device)
    with _ended_by_signals() as ended:
        try:
            with joined(device) as ranks:
                return _serve(config, ranks.device(device), ranks)
        except BaseException:
            if ended:
                return 128 + ended[0]
            raise


def _serve(config: TrainerRole, device: str, ranks: Ranks) -> int:
    def load() -> Decoder:
        model = ranks.together(lambda: load_policy(config, device=device))
        shard(model, ranks)
        return model

    model = load()
    threads = configure(config.threads, model.num_parameters, bool(config.deterministic), ranks)
    hello = Hello(
        id=uuid4().hex[:16],
        fingerprint=fingerprint(dict(model.named_parameters()), ranks),
        parameters=model.num_parameters,
        ranks=ranks.world,
        device=str(model.device),
        threads=threads,
        host=socket.gethostname(),
        pid=os.getpid(),
        versions={name: version for name, version in versions().items() if version is not None},
        settings=config.trainer.model_dump(mode="json", exclude=set()),
    )
    loaded = [model]  # for the first session; each further one begins with another, when the one before has gone
    del model

    def make(temperature: float, lag: int) -> Trainer:
        return make_trainer(_sampled(config, temperature, lag), loaded.pop() if loaded else load(), ranks)

    headed = headline(config, loaded[0], ranks.world)
    trainer = RankedTrainer(ranks, make, config.trainer.micro_batch_tokens, share_prompts=True)
    if not ranks.first:
        return trainer.follow()
    with trainer:
        transport = FileTransport(config.transport_path, config.transport.max_tokens)
        _say(f"Trainer: {headed}")
        _say(f"Waiting for the orchestrator at {transport.path}")
        version = serve.TrainerLoop(config, transport, trainer, _place(), _say).serve(hello)
        _say(f"Done: the run has come to version {version}.")
    return 0


def _sampled(config: TrainerRole, temperature: float, lag: int) -> TrainerRole:
    """The config with what the session says of its rollouts, which a trainer's own file need not know."""
    orch = config.orchestrator
    sampling = orch.sampling.model_copy(update={"temperature": temperature})
    return config.model_copy(
        update={"orchestrator": orch.model_copy(update={"sampling": sampling, "max_async_level": lag})}
    )


def _say(text: str) -> None:
    print(text, flush=True)


def _place() -> str:
    """Where this trainer's keys come from, in words."""
    files = [after for before, after in zip(sys.argv, [*sys.argv[1:], ""], strict=True) if before == "@" and after]
    files += [word[1:] for word in sys.argv if word.startswith("@") and len(word) > 1]
    return f"this trainer's config ({', '.join(files)})" if files else "this trainer's config"


@contextmanager
def _ended_by_signals() -> Iterator[list[int]]:
    """Inside, the first SIGTERM or SIGINT raises KeyboardInterrupt, and is entered in the list.

    torchrun sends on what its children may have got already, so others in the next seconds are left aside; one after
    that ends a process that still waits for something.
    """
    came: list[int] = []
    first = 0.0

    def handle(signum: int, _frame: FrameType | None) -> None:
        nonlocal first
        if not came:
            came.append(signum)
            first = time.monotonic()
            raise KeyboardInterrupt
        if time.monotonic() - first > SETTLE:
            os._exit(128 + signum)

    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    numbers = [signal.SIGTERM]
    numbers += [signal.SIGINT] if signal.getsignal(signal.SIGINT) != signal.SIG_IGN else []
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
