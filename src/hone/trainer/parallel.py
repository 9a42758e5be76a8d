"""Several ranks: one model in shards (FSDP2), one process a rank, started by torchrun.

Each rank computes its own micro-batches with weights that are gathered layer by layer; gradients are summed over the
ranks, each rank keeping its rows. Everything that ranks must agree on (when to stop, what to save) goes over a control
group of its own, which waits for as long as rank 0 needs.

Zhao et al. 2023, "PyTorch FSDP" (arXiv:2304.11277); `torch.distributed.fsdp.fully_shard`.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from hone.errors import UserError
from hone.model.decoder import Decoder, Linear
from hone.trainer import WHOLE_GRADIENT_BYTES
from hone.trainer.life_line import LifeLine

T = TypeVar("T")

has_joined = False
"""True in a process that has joined other ranks: it has threads of theirs, and should end by `os._exit`."""
_FOREVER = timedelta(days=365)
"""Time limit of the control group: rank 0 may read data, sample or wait for an order meanwhile."""


@dataclass(frozen=True)
class Ranks:
    """Which rank of how many this process is; `local_rank` and `local_world` count those of this machine."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1
    control: Any = field(default=None, repr=False, compare=False)
    """Process group (gloo) of `agree`, `collect`, `gather` and `barrier`."""
    life_line: LifeLine | None = field(default=None, repr=False, compare=False)

    @property
    def alone(self) -> bool:
        return self.world == 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def agree(self, value: T) -> T:
        """Return rank 0's value, on all ranks."""
        if self.alone:
            return value
        values = [value if self.first else None]
        torch.distributed.broadcast_object_list(values, src=0, group=self.control)
        return values[0]  # pyright: ignore[reportReturnType]

    def collect(self, value: T) -> list[T]:
        """Return every rank's value in order of rank, on all ranks."""
        if self.alone:
            return [value]
        values: list[Any] = [None] * self.world
        torch.distributed.all_gather_object(values, value, group=self.control)
        return values

    def gather(self, value: T) -> list[T] | None:
        """Return every rank's value in order of rank, on rank 0; None on the others."""
        if self.alone:
            return [value]
        values: list[Any] | None = [None] * self.world if self.first else None
        torch.distributed.gather_object(value, values, dst=0, group=self.control)
        return values

    def barrier(self) -> None:
        if not self.alone:
            torch.distributed.barrier(group=self.control)

    def watched(self) -> AbstractContextManager[None]:
        """End this process soon, in the block, when that of another rank has ended; see `LifeLine.armed`."""
        return self.life_line.armed() if self.life_line else nullcontext()

    def together(self, action: Callable[[], T]) -> T:
        """Call `action` on each rank; if it raises UserError on some, all raise that of the first of them."""
        value: Any = None
        error: UserError | None = None
        try:
            value = action()
        except UserError as raised:
            error = raised
        errors = [error for error in self.collect(error) if error is not None]
        if errors:
            raise errors[0]
        return value

    def add(self, values: Tensor) -> Tensor:
        """Sum an integer tensor over ranks on the CPU, modulo 2^64, on all ranks."""
        if not self.alone:
            torch.distributed.all_reduce(values, group=self.control)
        return values

    def device(self, name: str) -> str:
        """Return `cuda` with this rank's GPU. Raises UserError if that is not there, or is given for all ranks."""
        if self.alone or torch.device(name).type != "cuda":
            return name
        if torch.device(name).index is not None:
            raise UserError(f"model.device = {name!r} is one GPU, but there are {self.world} ranks: set it to cuda")
        if self.local_world > torch.cuda.device_count():
            raise UserError(
                f"{self.local_world} ranks on this machine, but it has {torch.cuda.device_count()} GPUs: start fewer "
                "(--nproc-per-node), or set model.device to cpu"
            )
        return f"cuda:{self.local_rank}"


ALONE = Ranks()


def launched_ranks() -> int:
    return int(os.environ.get("WORLD_SIZE") or 1)


@contextmanager
def joined(device: str) -> Iterator[Ranks]:
    """Join this process to those that torchrun started (RANK, WORLD_SIZE, …), or ALONE; `device` as from `device_of`.

    Gradients and weights go over gloo on a CPU, over nccl between GPUs. Ends with a barrier. After an error the process
    group stays: to destroy it is to wait for collectives under way, which other ranks may never join. It is for the
    command to say what was wrong and end the process at once (`os._exit`); the others' next collective fails then.
    """
    if launched_ranks() == 1:
        yield ALONE
        return
    if missing := [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]:
        raise UserError(
            f"WORLD_SIZE is {launched_ranks()}, but {missing[0]} is not set: start several ranks by torchrun "
            "--nproc-per-node, or unset WORLD_SIZE"
        )
    variables = {name: int(os.environ.get(name) or 0) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    local_world = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    on_gpu = torch.device(device).type == "cuda"
    if on_gpu:
        torch.cuda.set_device(variables["LOCAL_RANK"] % torch.cuda.device_count())
    global has_joined
    has_joined = True
    rank, world = variables["RANK"], variables["WORLD_SIZE"]
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    torch.distributed.init_process_group(backend, store=_meeting_point(rank, world), rank=rank, world_size=world)
    control, line = (torch.distributed.new_group(backend="gloo", timeout=_FOREVER) for _ in range(2))
    life_line = LifeLine(rank, world, line)
    ranks = Ranks(rank, world, variables["LOCAL_RANK"], local_world, control, life_line)
    yield ranks
    with suppress(RuntimeError):  # a rank that ended by an error is not there
        ranks.barrier()
    life_line.close()
    torch.distributed.destroy_process_group()


def _meeting_point(rank: int, world: int) -> Any:
    """Return the store over which ranks find each other, served by rank 0; None where torchrun has one.

    It has no key, and torch's own listens on all addresses: this one listens on MASTER_ADDR alone, if that is an
    address of this machine. Where all ranks are on this machine, gloo listens on it alone, too.
    """
    from torch.distributed.distributed_c10d import default_pg_timeout

    if os.environ["MASTER_ADDR"] == "127.0.0.1" and sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return None
    address, port, listener = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), None
    if rank == 0:
        with suppress(OSError):
            listener = socket.create_server((address, port)).detach()
    store = torch.distributed.TCPStore  # pyright: ignore[reportPrivateImportUsage]
    return store(address, port, world, rank == 0, default_pg_timeout, master_listen_fd=listener)


def shard(model: Decoder, ranks: Ranks) -> None:
    """Leave each rank its rows of every parameter (a DTensor each), to be gathered where they are used; in place.

    A layer is gathered for its forward and again for its backward pass; embedding, last norm and head stay gathered
    between the two, as `logits` comes after `hidden`. Gradients are summed in fp32, not averaged: the loss is divided
    by the token count of all ranks. All ranks must have loaded the same weights. Does nothing alone.
    """
    if ranks.alone:
        return
    if model.config.implementation != "hone":
        raise UserError(
            f"a model of {model.config.family}, which transformers computes, trains on one rank: set trainer.ranks = 1"
        )
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import (
        FSDPModule,
        MixedPrecisionPolicy,
        fully_shard,
        register_fsdp_forward_method,
    )

    mesh = init_device_mesh(model.device.type, (ranks.world,))
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32, cast_forward_inputs=False)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
        gather = _GatherInBf16(layer)
        if gather.halves_any:
            layer.set_custom_all_gather(gather)  # pyright: ignore[reportCallIssue]
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    register_fsdp_forward_method(model, "hidden")
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no other, and nccl's may round
        if isinstance(module, Linear):
            module.keep_nothing()
    model.packed_head.enabled = False


class _GatherInBf16:
    """Gathers a layer's fp32 parameters: in bf16 the matrices that are multiplied in bf16, in fp32 all others.

    It is an `AllGather` of FSDP, which has one dtype for all parameters of a layer, but biases and norms must not be
    rounded. `halves_any` is False where there is no such matrix.
    """

    def __init__(self, layer: nn.Module) -> None:
        self.parts: list[tuple[int, bool]] = []
        """Of each parameter, as FSDP lays them: the scalars that a rank sends, and True if it sends them in bf16."""
        for param in _fsdp_params(layer):
            owner, name = param._module_info.module, param._module_info.param_name
            half = isinstance(owner, Linear) and owner.bf16_product and name == "weight"
            half = half and param.sharded_param.dtype == torch.float32  # that of LoRA's layers is in bf16 already
            self.parts.append((param.padded_sharded_param_size.numel(), half))
        self.halves_any = any(half for _, half in self.parts)

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> None:
        """Gather `[n]` of each rank into `[ranks · n]`, both fp32."""
        assert not async_op and input_tensor.dtype == torch.float32
        own = input_tensor.split([size for size, _ in self.parts])
        # What is sent is made of pairs of bf16, so that fp32 values can be read from it in place: they come first.
        exact = [part.view(torch.bfloat16) for part, (_, half) in zip(own, self.parts, strict=True) if not half]
        halves = [part.bfloat16() for part, (_, half) in zip(own, self.parts, strict=True) if half]
        odd = sum(map(len, halves)) % 2
        sent = torch.cat([*exact, *halves, *(part[:1] for part in halves[:odd])])
        received = sent.new_empty(group.size() * len(sent))
        # torch 2.13 renamed it.
        gather = getattr(torch.distributed, "all_gather_single", None) or torch.distributed.all_gather_into_tensor
        gather(received, sent, group=group)
        received = received.view(group.size(), -1)
        output, at = output_tensor.view(group.size(), -1).split([size for size, _ in self.parts], dim=1), 0
        for wanted in (False, True):
            for out, (size, half) in zip(output, self.parts, strict=True):
                if half == wanted:
                    end = at + (size if half else 2 * size)
                    out.copy_(received[:, at:end] if half else received[:, at:end].view(torch.float32))
                    at = end


def _fsdp_params(module: nn.Module) -> Sequence[Any]:
    """Return FSDP's records of the parameters that it gathers for `module`, in the order in which it lays them."""
    group = module._get_fsdp_state()._fsdp_param_group  # pyright: ignore[reportCallIssue]
    return group.fsdp_params if group else ()


def reduce_gradients(model: nn.Module, last: bool) -> None:
    """Have the next backward pass sum gradients over ranks if it is the `last` of a step; else each rank keeps its own.

    Those that take more than `WHOLE_GRADIENT_BYTES` are summed in every pass. Does nothing for a model that is whole.
    """
    if hasattr(model, "set_requires_gradient_sync"):
        few = 4 * sum(p.numel() for p in model.parameters() if p.requires_grad) <= WHOLE_GRADIENT_BYTES
        model.set_requires_gradient_sync(last or not few)  # pyright: ignore[reportCallIssue]


def drop_gradients(model: nn.Module) -> None:
    """Forget the gradients that are not summed over ranks yet: FSDP keeps them, out of an optimiser's reach."""
    for module in model.modules():
        if hasattr(module, "_get_fsdp_state"):
            for param in _fsdp_params(module):
                param.unsharded_accumulated_grad = None
                if hasattr(param, "_unsharded_param"):
                    param._unsharded_param.grad = None


def release(model: nn.Module) -> None:
    """Give back what a forward pass without a backward one left gathered. Does nothing for a model that is whole."""
    if hasattr(model, "reshard"):
        model.reshard()  # pyright: ignore[reportCallIssue]


def is_sharded(tensor: Tensor) -> bool:
    """Return True if this process holds only rows of the tensor (it is a DTensor: not imported by who is alone)."""
    return hasattr(tensor, "to_local")


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if is_sharded(tensor) else tensor  # pyright: ignore[reportAttributeAccessIssue]


def whole(tensor: Tensor) -> Tensor:
    """Return the whole tensor. Of one in shards all ranks must ask for it."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # pyright: ignore[reportAttributeAccessIssue]


def rows_of(tensor: Tensor) -> tuple[int, int]:
    """Return the first row of this rank and the one after its last, as `torch.chunk` does: the last may have none."""
    rows = tensor.shape[0] if tensor.ndim else 1
    if not is_sharded(tensor):
        return 0, rows
    mesh = tensor.device_mesh  # pyright: ignore[reportAttributeAccessIssue]
    size = -(-rows // mesh.size())
    start = min(mesh.get_local_rank() * size, rows)
    stop = min(start + size, rows)
    assert local(tensor).shape[0] == stop - start, "FSDP shards by rows, as torch.chunk does"
    return start, stop


def sharded_like(rows: Tensor, model: Tensor) -> Tensor:
    """Wrap this rank's `rows` of a tensor of `model`'s shape, as a tensor in shards; `rows` if `model` is whole."""
    if not is_sharded(model):
        return rows
    from torch.distributed.tensor import DTensor

    assert isinstance(model, DTensor)
    return DTensor.from_local(
        rows, model.device_mesh, model.placements, run_check=False, shape=model.shape, stride=model.stride()
    )


def share_of(value: Tensor, model: Tensor) -> Tensor:
    """Return `value`, whole or in shards already, as `model` lies: whole, or this rank's rows of it."""
    if is_sharded(value) or not is_sharded(model):
        return value
    start, stop = rows_of(model)
    return sharded_like(value[start:stop].to(model.device), model)
