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
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from uuid import uuid4

from hone.commands.machine import SMALL_MODEL, configure, device_of, usable_cores
from hone.commands.training import headline, load_policy, make_trainer, with_determinism
from hone.config.roles import TrainerRole
from hone.errors import UserError
from hone.model.decoder import Decoder
from hone.runs.provenance import versions
from hone.trainer.fingerprint import fingerprint
from hone.trainer.parallel import Ranks, joined, launched_ranks, shard
from hone.trainer.serve import TrainerLoop
from hone.transport import FileTransport, Hello


def run(config: TrainerRole) -> int:
    """Trains until the run is done; returns 0 then. SIGTERM and Ctrl-C end it at once (143, 130): nothing is saved."""
    wanted, launched = config.trainer.ranks, launched_ranks()
    if wanted > launched == 1:
        raise UserError(
            f"trainer.ranks = {wanted}, but this is one process: start `torchrun --nproc-per-node {wanted} "
            f"{sys.modules[TrainerLoop.__module__].__file__}` with the same arguments, or set --ranks 1"
        )
    device = device_of(config.model.device)
    with _ended_by_sigterm() as ended, joined(device) as ranks:
        try:
            return _serve(config, device, ranks)
        except UserError:
            if ranks.first:
                raise
            return 2  # rank 0 says it
        except BaseException:
            if ended:
                return 128 + signal.SIGTERM
            raise


def _serve(config: TrainerRole, device: str, ranks: Ranks) -> int:
    config = with_determinism(config, device)
    config = config.model_copy(update={"model": config.model.model_copy(update={"device": ranks.device(device)})})
    if not ranks.first:  # they wait for rank 0 in calls that no signal handler of Python's interrupts
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    def load() -> Decoder:
        model = load_policy(config)
        shard(model, ranks)
        return model

    def say(text: str) -> None:
        print(text, flush=True)

    model = load()
    threads = config.threads
    if threads is None and not ranks.alone and model.num_parameters >= SMALL_MODEL:
        threads = max(1, usable_cores() // ranks.local_world)
    threads = configure(threads, model.num_parameters, bool(config.deterministic))
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
        settings=config.trainer.model_dump(mode="json", exclude={"model", "ckpt", "transport", "output_dir"}),
    )
    transport = FileTransport(config.transport_path, config.transport.max_tokens)
    if ranks.first:
        several = f", {ranks.world} ranks" if not ranks.alone else ""
        say(f"Trainer: {headline(config, model, threads)}{several}")
        say(f"Waiting for the orchestrator at {transport.path}")
    role = TrainerLoop(
        config,
        transport,
        load,
        lambda model, temperature: make_trainer(config, model, temperature, ranks),
        model,
        _place(),
        say,
        ranks,
    )
    del model  # the role's now, which gives it up for a new session
    version = role.serve(hello)
    if ranks.first:
        say(f"Done: the run has come to version {version}.")
    return 0


def _place() -> str:
    """Where this trainer's keys come from, in words."""
    files = [after for before, after in zip(sys.argv, [*sys.argv[1:], ""], strict=True) if before == "@" and after]
    files += [word[1:] for word in sys.argv if word.startswith("@") and len(word) > 1]
    return f"this trainer's config ({', '.join(files)})" if files else "this trainer's config"


@contextmanager
def _ended_by_sigterm() -> Iterator[list[int]]:
    """Inside, SIGTERM raises KeyboardInterrupt, as Ctrl-C does, and is entered in the list."""
    came: list[int] = []

    def handle(signum: int, _frame: FrameType | None) -> None:
        came.append(signum)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield came
    finally:
        signal.signal(signal.SIGTERM, before)
