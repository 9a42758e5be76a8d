"""Places the roles of a run on the GPUs of a machine. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hone.errors import UserError
from hone.loops.child import INFERENCE


@dataclass(frozen=True)
class Placement:
    """The GPUs of each server and of the trainer, as CUDA_VISIBLE_DEVICES names them."""

    inference: tuple[tuple[str, ...], ...]
    trainer: tuple[str, ...]


def server_roles(count: int) -> list[str]:
    """Return the roles of the servers: `inference`, or `inference-0`, `inference-1`, …"""
    return [INFERENCE] if count == 1 else [f"{INFERENCE}-{number}" for number in range(count)]


def placed(gpus: Sequence[str], ranks: int, servers: int = 1, each: int = 1) -> Placement:
    """Place servers on the first GPUs, `each` GPUs per server, and the trainer's ranks on the last GPUs.

    If GPUs are too few, a single server with one GPU shares it with the trainer. Without GPUs the tuples are empty.
    Raises UserError if two ranks (NCCL refuses this), several servers, or a server of several GPUs would share a GPU.
    """
    wanted = servers * each
    if gpus and wanted > 1 and wanted + ranks > len(gpus):
        raise UserError(
            f"inference.replicas = {servers} of {each} GPU{'' if each == 1 else 's'} and trainer.ranks = {ranks} need "
            f"{wanted + ranks} GPUs, but there {'is' if len(gpus) == 1 else 'are'} {len(gpus)}: lower replicas or ranks"
        )
    if gpus and ranks > len(gpus):
        raise UserError(
            f"trainer.ranks = {ranks}, but there {'is' if len(gpus) == 1 else 'are'} {len(gpus)} GPU"
            f"{'' if len(gpus) == 1 else 's'} here, and each rank needs its own: set --trainer.ranks {len(gpus)}"
        )
    return Placement(
        tuple(tuple(gpus[each * number : each * (number + 1)]) for number in range(servers)), tuple(gpus[-ranks:])
    )
