"""Several ranks train one model in shards (FSDP2, arXiv:2304.11277). torchrun starts a process for each rank.

The ranks compute different micro-batches, with weights that are gathered layer by layer, and each rank stores its rows
of the summed gradients. Decisions, such as when to stop, go over a separate control group, which waits for rank 0.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from hone.errors import UserError
from hone.model.decoder import Decoder, Linear
from hone.trainer import WHOLE_GRADIENT_BYTES

if TYPE_CHECKING:
    from hone.trainer.watchdog import PeerWatchdog

T = TypeVar("T")

has_joined = False
"""True if this process has joined other ranks. It should then end by `os._exit`, because torch's threads still run."""
_FOREVER = timedelta(days=365)
"""Timeout of the control group. Other ranks wait while rank 0 reads data or samples."""


@dataclass(frozen=True)
class Ranks:
    """`rank`: number of this process; `world`: count of processes; `local_*`: the same within this machine."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1
    control: Any = field(default=None, repr=False, compare=False)
    """Process group (gloo) that `agree`, `collect`, `gather`, `add` and `barrier` use."""
    watchdog: PeerWatchdog | None = field(default=None, repr=False, compare=False)

    @property
    def alone(self) -> bool:
        return self.world == 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def agree(self, value: T) -> T:
        """Return rank 0's value on all ranks."""
        if self.alone:
            return value
        values = [value if self.first else None]
        torch.distributed.broadcast_object_list(values, src=0, group=self.control)
        return values[0]  # pyright: ignore[reportReturnType]

    def collect(self, value: T) -> list[T]:
        """Return the values of all ranks, in order of rank, on every rank."""
        if self.alone:
            return [value]
        values: list[Any] = [None] * self.world
        torch.distributed.all_gather_object(values, value, group=self.control)
        return values

    def gather(self, value: T) -> list[T] | None:
        """Return the values of all ranks, in order of rank, on rank 0; None on other ranks."""
        if self.alone:
            return [value]
        values: list[Any] | None = [None] * self.world if self.first else None
        torch.distributed.gather_object(value, values, dst=0, group=self.control)
        return values

    def barrier(self) -> None:
        if not self.alone:
            torch.distributed.barrier(group=self.control)

    def watched(self) -> AbstractContextManager[None]:
        return self.watchdog.armed() if self.watchdog else nullcontext()

    def together(self, action: Callable[[], T]) -> T:
        """Call `action` on each rank. If a rank raises UserError, all ranks raise the error of the first such rank."""
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
        """Sum an integer CPU tensor over ranks in place, modulo 2^64. All ranks get the sum."""
        if not self.alone:
            torch.distributed.all_reduce(values, group=self.control)
        return values

    def device(self, name: str) -> str:
        """Return the device: for `cuda`, this rank's GPU. UserError if it is missing, or if `name` is one GPU."""
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
    """Join the processes that torchrun started (RANK, WORLD_SIZE, …); yield ALONE if there is only this process.

    Gradients and weights go over gloo on a CPU, and over nccl between GPUs. The block ends with a barrier. After an
    error, the process group is not destroyed, because that would wait for collectives that other ranks may never join.
    The command must then end the process by `os._exit`, so that the next collective of other ranks fails.
    """
    if launched_ranks() == 1:
        yield ALONE
        return
    if missing := [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]:
        raise UserError(
            f"WORLD_SIZE is {launched_ranks()}, but {missing[0]} is not set: start several ranks with torchrun "
            "--nproc-per-node, or unset WORLD_SIZE"
        )
    rank, world, local_rank = (int(os.environ.get(name) or 0) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    local_world = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    on_gpu = torch.device(device).type == "cuda"
    if on_gpu:
        torch.cuda.set_device(local_rank % torch.cuda.device_count())
    global has_joined
    has_joined = True
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    torch.distributed.init_process_group(backend, store=_meeting_point(rank, world), rank=rank, world_size=world)
    control, line = (torch.distributed.new_group(backend="gloo", timeout=_FOREVER) for _ in range(2))
    from hone.trainer.watchdog import PeerWatchdog

    watchdog = PeerWatchdog(rank, world, line)
    ranks = Ranks(rank, world, local_rank, local_world, control, watchdog)
    yield ranks
    with suppress(RuntimeError):  # a rank that ended by an error is not there
        ranks.barrier()
    watchdog.close()
    torch.distributed.destroy_process_group()


def _meeting_point(rank: int, world: int) -> Any:
    """Return rank 0's store, where ranks find one another; None if torchrun serves a store.

    The store has no password, so if possible it listens only on MASTER_ADDR. For 127.0.0.1, gloo uses loopback.
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
    """Shard every parameter in place: each rank keeps some rows (a DTensor). All ranks must have loaded equal weights.

    A layer is gathered for its forward and again for its backward pass. Embedding, last norm and head stay gathered in
    between. Gradients are summed in fp32, not averaged, because losses are already divided by all ranks' token count.
    """
    if ranks.alone:
        return
    if model.config.implementation != "hone":
        raise UserError(
            f"{model.config.family} is computed by transformers, and trains on one rank only: set trainer.ranks = 1"
        )
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

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
    """Gathers a layer's fp32 parameters. Matrices of bf16 products are sent in bf16, other parameters in fp32.

    An `AllGather` for FSDP. FSDP's default has one dtype per layer, so it would also round biases and norms.
    """

    def __init__(self, layer: nn.Module) -> None:
        self.parts: list[tuple[int, bool]] = []
        """(number of scalars that a rank sends, True if they are sent in bf16) of each parameter, in FSDP's order."""
        for param in _fsdp_params(layer):
            owner, name = param._module_info.module, param._module_info.param_name
            half = isinstance(owner, Linear) and owner.bf16_product and name == "weight"
            half = half and param.sharded_param.dtype == torch.float32  # LoRA's are in bf16 already
            self.parts.append((param.padded_sharded_param_size.numel(), half))
        self.halves_any = any(half for _, half in self.parts)

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> None:
        """Gather each rank's `[n]` into `[ranks · n]`, both fp32."""
        assert not async_op and input_tensor.dtype == torch.float32
        shards = input_tensor.split([size for size, _ in self.parts])
        # The buffer is bf16. fp32 values come first, as pairs, so that they are aligned and can be read in place.
        exact = [part.view(torch.bfloat16) for part, (_, half) in zip(shards, self.parts, strict=True) if not half]
        halves = [part.bfloat16() for part, (_, half) in zip(shards, self.parts, strict=True) if half]
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
    group = module._get_fsdp_state()._fsdp_param_group  # pyright: ignore[reportCallIssue]
    return group.fsdp_params if group else ()


def reduce_gradients(model: nn.Module, last: bool) -> None:
    """Let the next backward pass sum gradients over ranks if it is the `last` of a step, or if gradients are large."""
    if hasattr(model, "set_requires_gradient_sync"):
        few = 4 * sum(p.numel() for p in model.parameters() if p.requires_grad) <= WHOLE_GRADIENT_BYTES
        model.set_requires_gradient_sync(last or not few)  # pyright: ignore[reportCallIssue]


def drop_gradients(model: nn.Module) -> None:
    """Drop gradients that are not yet summed over ranks. FSDP stores them, so an optimiser can't drop them."""
    for module in model.modules():
        if hasattr(module, "_get_fsdp_state"):
            for param in _fsdp_params(module):
                param.unsharded_accumulated_grad = None
                if hasattr(param, "_unsharded_param"):
                    param._unsharded_param.grad = None


def release(model: nn.Module) -> None:
    """Free the gathered weights after a forward pass that no backward pass follows."""
    if hasattr(model, "reshard"):
        model.reshard()  # pyright: ignore[reportCallIssue]


def is_sharded(tensor: Tensor) -> bool:
    """Return True if this process has only some rows of the tensor (a DTensor, which a single rank doesn't import)."""
    return hasattr(tensor, "to_local")


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if is_sharded(tensor) else tensor  # pyright: ignore[reportAttributeAccessIssue]


def whole(tensor: Tensor) -> Tensor:
    """Return the whole tensor. All ranks must call this if it is sharded."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # pyright: ignore[reportAttributeAccessIssue]


def rows_of(tensor: Tensor) -> tuple[int, int]:
    """Return (start, stop) of this rank's rows, split as by `torch.chunk`. The last rank may have no rows."""
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
    """Wrap this rank's `rows` as a tensor that is sharded like `model`; return `rows` if `model` is whole."""
    if not is_sharded(model):
        return rows
    from torch.distributed.tensor import DTensor

    assert isinstance(model, DTensor)
    return DTensor.from_local(
        rows, model.device_mesh, model.placements, run_check=False, shape=model.shape, stride=model.stride()
    )


def share_of(value: Tensor, model: Tensor) -> Tensor:
    """Return this rank's rows of `value` if `model` is sharded, else `value`."""
    if is_sharded(value) or not is_sharded(model):
        return value
    start, stop = rows_of(model)
    return sharded_like(value[start:stop].to(model.device), model)
