"""`hone trainer`: the trainer process of a run in mode `split`. It waits for the orchestrator's orders.

hone trainer @ train.toml
torchrun --nproc-per-node 2 src/hone/extensions/split/serve.py @ train.toml
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import zipfile
from types import FrameType
from typing import Any
from uuid import uuid4

from hone.commands.training import headline
from hone.config.base import changed
from hone.config.rl import AdvantageConfig
from hone.errors import UserError
from hone.extensions.split import serve
from hone.extensions.split.config import TrainerRole
from hone.extensions.split.transport import Hello, open_transport
from hone.loops.machine import Machine, configure_run, device_of, resolve
from hone.loops.own_functions import UserFunctions
from hone.loops.parts import load_policy, make_trainer
from hone.model.decoder import Decoder
from hone.model.hf import model_config
from hone.runs.display import say
from hone.trainer.fingerprint import fingerprint
from hone.trainer.optim import check_state
from hone.trainer.parallel import Ranks, joined, launched_ranks, shard
from hone.trainer.ranked import RankedTrainer
from hone.trainer.step import Trainer

ENDING = (signal.SIGINT, signal.SIGTERM)


def run(config: TrainerRole) -> int:
    """Train until the run is done, then return 0. Ctrl-C (130) and SIGTERM (143) end training at once, without saving.

    Under torchrun every rank runs this function; only rank 0 uses the transport.
    """
    wanted, launched = config.trainer.ranks, launched_ranks()
    if wanted > launched == 1:
        raise UserError(
            f"trainer.ranks = {wanted}, but this is one process: start `torchrun --nproc-per-node {wanted} "
            f"{serve.__file__}` with the same arguments, or set --ranks 1"
        )
    device = device_of(config.model.device)
    if threading.current_thread() is threading.main_thread():
        for number in ENDING:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, _end)
    try:
        with joined(device) as ranks:
            return _serve(config, ranks.device(device), ranks)
    except SystemExit as end:
        return int(end.code or 0)


def _end(signum: int, _frame: FrameType | None) -> None:
    for number in ENDING:  # torchrun may send the signal again
        signal.signal(number, lambda *_: None)
    sys.unraisablehook = _say_unless_half_open
    raise SystemExit(128 + signum)


def _say_unless_half_open(problem: Any) -> None:
    """Report an exception in a destructor, unless it is of a ZipFile that a signal left half open."""
    if not (isinstance(problem.exc_value, AttributeError) and problem.object is zipfile.ZipFile.__del__):
        sys.__unraisablehook__(problem)


def _serve(config: TrainerRole, device: str, ranks: Ranks) -> int:
    def resolved() -> TrainerRole:
        check_state(config.trainer.optim, ranks.world)
        model = config.model
        decoder = model_config(model.name, model.init, model.implementation)
        return resolve(config, Machine(decoder, device, ranks))

    config = ranks.agree(ranks.together(resolved))

    def load() -> Decoder:
        model = ranks.together(lambda: load_policy(config, device=device))
        shard(model, ranks)
        return model

    model = load()
    threads = configure_run(config, model, ranks)
    adapter = {} if model.lora is None else {"adapter": fingerprint(model.trained, ranks)}
    hello = Hello(
        id=uuid4().hex[:16],
        fingerprint=fingerprint(model.base, ranks),
        parameters=model.num_parameters,
        ranks=ranks.world,
        device=str(model.device),
        threads=threads,
        host=socket.gethostname(),
        pid=os.getpid(),
        settings=config.trainer.model_dump(mode="json", exclude=set()),
        digests=adapter | UserFunctions.of(config).digests,
    )
    loaded = [model]  # for the first session; later sessions load another
    del model

    def make(temperature: float, lag: int, rollouts: int, advantage: dict[str, Any]) -> Trainer:
        values = {"sampling.temperature": temperature, "max_async_level": lag, "rollouts_per_example": rollouts}
        values |= {"advantage": AdvantageConfig(**advantage)}
        session_config = changed(config, {f"orchestrator.{name}": value for name, value in values.items()})
        return make_trainer(session_config, loaded.pop() if loaded else load(), ranks)

    headed = headline(config, hello.parameters, hello.device, threads, ranks.world)
    trainer = RankedTrainer(ranks, make, config.trainer.micro_batch_tokens, share_prompts=True)
    if not ranks.first:
        return trainer.follow()
    with trainer:
        transport = open_transport(config)
        say(f"Trainer: {headed}\nWaiting for the orchestrator at {transport.path}")
        version = serve.TrainerLoop(config, transport, trainer, say=say).serve(hello)
        say(f"Done: the run has reached version {version}.")
    return 0
