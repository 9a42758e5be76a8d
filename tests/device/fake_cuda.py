"""A fake GPU: CPU data under the label `cuda:0`, with PyTorch's device rules, for a CPU build of PyTorch.

It patches `torch.cuda` for good, so it belongs into a process of its own, imported before hone. Inside `FakeCuda`:

- an operation on tensors of both devices raises, and so does `numpy()` of a tensor on the GPU;
- `fake.waits` counts what makes the host wait for the GPU, by kind and by the line of hone that did it: "event" if the
  GPU has a graph to go on with meanwhile, else "last event";
- what is copied to the CPU without blocking holds rubbish until an event behind it was waited for;
- a wait while a CUDA graph is captured raises, and capturing changes nothing in memory; replaying a graph repeats the
  recorded operations on the recorded memory. `fake.recorded` and `fake.launched` count the graphs and their replays,
  `fake.operations` what else is launched, by name, and `fake.bytes` what these read and write;
- `fake.live` is the bytes of tensors on the GPU, each storage once, and `fake.peak` the most since it was set;
- `varlen_attn` is emulated, forward and backward, as torch >= 2.12 has it, or as 2.11 with `enable_gqa=False`.

    python fake_cuda.py sft --max-steps 2 ...     # a command of hone on the fake GPU
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
import torch.nn.attention.varlen as varlen_module
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

aten = torch.ops.aten
CUDA, CPU = torch.device("cuda:0"), torch.device("cpu")
MEMORY = 150 * 10**9
_COPIES = {aten._to_copy.default, aten.copy_.default}
_INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
_WAITING = {
    aten._local_scalar_dense.default: "item",
    aten.nonzero.default: "nonzero",
    aten.masked_select.default: "masked_select",
    aten.bincount.default: "bincount",
    aten.equal.default: "equal",
    aten._unique2.default: "unique",
    aten.unique_consecutive.default: "unique",
    aten.repeat_interleave.Tensor: "repeat_interleave",
}
"""Operations whose result, or its size, the host must know."""

_setup_privateuseone_for_python_backend("fakegpu")
torch.get_device_module("fakegpu").get_amp_supported_dtype = lambda: [torch.bfloat16]
torch._C._set_only_lift_cpu_tensors(True)
_BACKEND = torch.device("fakegpu:0")


class CudaTensor(torch.Tensor):
    """A tensor on the fake GPU; `data` on the CPU holds its values."""

    cpu_data: torch.Tensor

    @staticmethod
    def __new__(cls, cpu_data: torch.Tensor) -> CudaTensor:
        assert not isinstance(cpu_data, CudaTensor)
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            cpu_data.size(),
            strides=cpu_data.stride(),
            storage_offset=cpu_data.storage_offset(),
            dtype=cpu_data.dtype,
            device=_BACKEND,
        )
        made.cpu_data = cpu_data
        _Machine.hold(cpu_data.untyped_storage())
        return made

    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)

    def tolist(self) -> Any:
        _wait("tolist")
        return self.cpu_data.tolist()

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"can't convert cuda:0 device type tensor to numpy, at {_place()}")

    __array__ = numpy

    def data_ptr(self) -> int:
        return self.cpu_data.data_ptr()

    def storage(self) -> Any:
        return self.cpu_data.storage()

    def __deepcopy__(self, memo: dict) -> CudaTensor:
        return CudaTensor(self.cpu_data.detach().clone()).requires_grad_(self.requires_grad)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise RuntimeError(f"a tensor on the GPU is pickled, at {_place()}")

    def __repr__(self, **kwargs: Any) -> str:
        return f"CudaTensor({self.cpu_data})"

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["cpu_data"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], meta: None, size: Any, stride: Any) -> CudaTensor:
        return CudaTensor(inner["cpu_data"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return _run(func, args, kwargs or {})


class FakeCuda(TorchDispatchMode):
    """The fake GPU, there while it is entered, in threads begun meanwhile too."""

    def __init__(self, enable_gqa: bool = True) -> None:
        """`enable_gqa` False: `varlen_attn` has no such argument, and takes equally many heads, as in torch 2.11."""
        super().__init__()
        self.waits: Counter[tuple[str, str]] = Counter()
        self.recorded = self.launched = 0
        self.operations: Counter[str] = Counter()
        self.bytes = self.peak = 0
        self.copying: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Tensors on the CPU, and what is on its way there."""
        self.enable_gqa = enable_gqa

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return _run(func, args, kwargs or {})

    @property
    def live(self) -> int:
        return _Machine.live

    @contextlib.contextmanager
    def there(self) -> Iterator[FakeCuda]:
        """Make this the machine's GPU in the block."""
        assert _Machine.gpu is None, "there is one GPU"
        thread_run, varlen_attn = threading.Thread.run, varlen_module.varlen_attn

        def run(thread: threading.Thread) -> None:
            with self:
                thread_run(thread)

        def without_gqa(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale=None, window_size=(-1, -1)):
            assert query.shape[1] == key.shape[1], "varlen_attn of torch 2.11 takes equally many heads"
            return varlen_attn(
                query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale=scale, window_size=window_size
            )

        _Machine.gpu = self
        threading.Thread.run = run
        if not self.enable_gqa:
            varlen_module.varlen_attn = without_gqa
        try:
            with self:
                yield self
        finally:
            threading.Thread.run, varlen_module.varlen_attn, _Machine.gpu = thread_run, varlen_attn, None


class _Machine:
    """The GPU of this process, and the graph that it captures."""

    gpu: FakeCuda | None = None
    capturing: Graph | None = None
    live = 0
    storages: ClassVar[dict[int, int]] = {}
    """Bytes of those on the GPU."""

    @classmethod
    def hold(cls, storage: torch.UntypedStorage) -> None:
        if storage._cdata not in cls.storages:
            cls.storages[storage._cdata] = storage.nbytes()
            cls.live += storage.nbytes()
            weakref.finalize(storage, cls.free, storage._cdata)
        if cls.gpu is not None:
            cls.gpu.peak = max(cls.gpu.peak, cls.live)

    @classmethod
    def free(cls, key: int) -> None:
        cls.live -= cls.storages.pop(key)


class Graph:
    """A CUDA graph: what was done while it was captured, with the memory that this read and wrote."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, tuple, dict, Any]] = []
        self.before: list[tuple[torch.Tensor, torch.Tensor]] = []
        """What was written to while it was captured, and its content before that, write by write."""

    def replay(self) -> None:
        assert _Machine.gpu is not None
        _Machine.gpu.launched += 1
        for func, args, kwargs, out in self.calls:
            again = func(*args, **kwargs)
            old, new = [], []
            _each(old.append, out)
            _each(new.append, again)
            for before, now in zip(old, new, strict=True):
                if before.data_ptr() != now.data_ptr():
                    before.copy_(now)


@contextlib.contextmanager
def capture(graph: Graph, **options: Any) -> Iterator[None]:
    assert _Machine.capturing is None and _Machine.gpu is not None
    _Machine.capturing = graph
    _Machine.gpu.recorded += 1
    try:
        yield
    finally:
        _Machine.capturing = None
        for written, content in reversed(graph.before):
            written.copy_(content)
        graph.before.clear()


class Event:
    """Stand in for `torch.cuda.Event`: what was being copied to the CPU when it was recorded is there behind it."""

    def record(self, stream: Any = None) -> None:
        assert _Machine.gpu is not None
        self.copies, _Machine.gpu.copying = _Machine.gpu.copying, []
        self.launched = _Machine.gpu.launched

    def synchronize(self) -> None:
        assert _Machine.gpu is not None
        _wait("event" if _Machine.gpu.launched > self.launched else "last event")
        for target, content in self.copies:
            target.copy_(content)


def _place() -> str:
    for frame in reversed(traceback.extract_stack()):
        if "/src/hone/" in frame.filename:
            return f"{frame.filename.rpartition('/hone/')[2]}:{frame.lineno} {frame.name}"
    return "no line of hone"


def _wait(kind: str) -> None:
    if _Machine.capturing is not None:
        raise RuntimeError(f"{kind} while a graph is captured, at {_place()}")
    if _Machine.gpu is not None:
        _Machine.gpu.waits[kind, _place()] += 1


def _each(function: Callable[[torch.Tensor], Any], x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return function(x)
    if isinstance(x, dict):
        return {key: _each(function, value) for key, value in x.items()}
    return type(x)(_each(function, y) for y in x) if isinstance(x, list | tuple) else x


def _is_cuda(device: Any) -> bool:
    return device is not None and torch.device(device).type in ("cuda", _BACKEND.type)


def _check_devices(func: Any, args: tuple, tensors: list[torch.Tensor]) -> None:
    """Raise if tensors of both devices meet, unless the operation is known to take that."""
    on_gpu = [isinstance(tensor, CudaTensor) for tensor in tensors]
    if func in _COPIES or all(on_gpu) or not any(on_gpu):
        return
    if func in _INDEXING and on_gpu[0]:
        _wait("index on the CPU")  # it is copied
        return
    here = [tuple(tensor.shape) for tensor, there in zip(tensors, on_gpu, strict=True) if not there]
    if func in _INDEXING or "fused" in str(func) or any(here):  # a number of no dimension may be on the CPU
        raise RuntimeError(f"{func} got tensors on cuda:0 and, of shapes {here}, on the CPU, at {_place()}")


def _count_waits(func: Any, args: tuple, kwargs: dict) -> None:
    """Count the wait, if this operation on the fake GPU is one."""
    if func in _WAITING:
        _wait(_WAITING[func])
    elif func in _INDEXING:
        if any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1]):
            _wait("boolean index")
    elif func in _COPIES:
        if func is aten.copy_.default:
            to_gpu, from_gpu = (isinstance(x, CudaTensor) for x in args[:2])
            non_blocking = kwargs.get("non_blocking", args[2] if len(args) > 2 else False)
        else:
            from_gpu, device = isinstance(args[0], CudaTensor), kwargs.get("device")
            to_gpu, non_blocking = (from_gpu if device is None else _is_cuda(device)), kwargs.get("non_blocking")
        if from_gpu and not to_gpu and not (non_blocking and func is aten._to_copy.default):
            _wait("copy to the CPU")
        elif to_gpu and not from_gpu and not non_blocking:
            _wait("copy to the GPU")


def _run(func: Any, args: tuple, kwargs: dict) -> Any:
    """Do an operation on the CPU data; label what comes out."""
    tensors: list[torch.Tensor] = []
    _each(tensors.append, (args, kwargs))
    any_gpu = any(isinstance(tensor, CudaTensor) for tensor in tensors)
    device = kwargs.get("device")
    if not any_gpu and not _is_cuda(device):
        return func(*args, **kwargs)
    _check_devices(func, args, tensors)
    if func is aten.cumsum.default and args[0].is_floating_point() and torch.are_deterministic_algorithms_enabled():
        raise RuntimeError(f"cumsum_cuda_kernel does not have a deterministic implementation, at {_place()}")
    _count_waits(func, args, kwargs)
    labelled = _is_cuda(device) or (any_gpu and device is None)
    if func is aten.copy_.default:
        labelled = isinstance(args[0], CudaTensor)
    here, options = _each(lambda x: x.cpu_data if isinstance(x, CudaTensor) else x, (args, kwargs))
    if device is not None:
        options = options | {"device": CPU}
    non_blocking = func is aten._to_copy.default and options.pop("non_blocking", None)
    call, counts = _EMULATED.get(str(func), func), False
    if _Machine.capturing is not None:
        for argument in func._schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                written = (
                    options[argument.name] if argument.kwarg_only else here[func._schema.arguments.index(argument)]
                )
                _Machine.capturing.before.append((written, written.clone()))
    elif _Machine.gpu is not None and not any(r.alias_info and not r.alias_info.is_write for r in func._schema.returns):
        _Machine.gpu.operations[str(func)] += 1
        counts = True
    out = call(*here, **options)
    if counts:
        touched: list[torch.Tensor] = []
        _each(touched.append, (here, options, out))
        _Machine.gpu.bytes += sum(x.numel() * x.element_size() for x in {id(x): x for x in touched}.values())
    if _Machine.capturing is not None:
        _Machine.capturing.calls.append((call, here, options, out))
    if not labelled and non_blocking and _Machine.gpu is not None:
        _Machine.gpu.copying.append((out, out.clone()))
        return out.fill_(-7)
    if not labelled:
        return out
    out = _each(CudaTensor, out)
    return return_and_correct_aliasing(func, args, kwargs, out) if any_gpu else out


def _varlen(q, k, v, ends_q, ends_k, max_q, max_k, *options):
    """Emulate causal flash attention: out `[N, H, Dh]`, its logsumexp and the state of dropout."""
    assert q.dtype in (torch.bfloat16, torch.float16) and ends_q.dtype == torch.int32
    assert all(x.stride(-1) == 1 and x.shape[-1] % 8 == 0 for x in (q, k, v)), "the kernel needs rows aligned"
    out = torch.empty(q.shape, dtype=q.dtype)
    shared, used = q.shape[1] // k.shape[1], options[4] if len(options) > 4 else None
    ends = _segments(ends_k) if used is None else [slice(b, b + n) for b, n in zip(ends_k.tolist(), used.tolist())]  # noqa: B905
    for rows, seen in zip(_segments(ends_q), ends, strict=True):
        queries = q[rows].float().transpose(0, 1)
        keys, values = (x[seen].float().transpose(0, 1).repeat_interleave(shared, 0) for x in (k, v))
        scores = queries @ keys.mT * q.shape[-1] ** -0.5
        scores += _future(scores)
        weights = (scores - scores.amax(-1, keepdim=True)).exp()
        # As the kernel does: weights are rounded before they are summed up with values, and divided behind that.
        one = weights.to(q.dtype).float() @ values / weights.sum(-1, keepdim=True)
        out[rows] = one.transpose(0, 1).to(q.dtype)
    return out, torch.zeros(q.shape[1], q.shape[0]), torch.zeros(2, dtype=torch.uint64)


def _varlen_backward(grad_out, q, k, v, out, logsumexp, ends_q, ends_k, max_q, max_k, *options):
    """Emulate its gradient, of q, k and v."""
    grads = [torch.zeros(x.shape) for x in (q, k, v)]
    shared = q.shape[1] // k.shape[1]
    for rows, seen in zip(_segments(ends_q), _segments(ends_k), strict=True):
        queries, grad = (x[rows].float().transpose(0, 1) for x in (q, grad_out))
        keys, values = (x[seen].float().transpose(0, 1).repeat_interleave(shared, 0) for x in (k, v))
        scores = (queries @ keys.mT) * q.shape[-1] ** -0.5
        probs = (scores + _future(scores)).softmax(-1)
        grad_probs = grad @ values.mT
        grad_scores = probs * (grad_probs - (grad_probs * probs).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
        per_head = grad_scores @ keys, grad_scores.mT @ queries, probs.mT @ grad
        for target, where, one in zip(grads, (rows, seen, seen), per_head, strict=True):
            target[where] = one.unflatten(0, (target.shape[1], -1)).sum(1).transpose(0, 1)
    return tuple(grad.to(q.dtype) for grad in grads)


def _future(scores: torch.Tensor) -> torch.Tensor:
    """Hide keys behind a query, as flash attention since 2.1 does: the last query stands at the last key."""
    queries, keys = scores.shape[1:]
    assert queries <= keys
    return torch.full((queries, keys), -torch.inf).triu(1 + keys - queries)


def _segments(ends: torch.Tensor) -> list[slice]:
    return [slice(begin, end) for begin, end in itertools.pairwise(ends.tolist())]


def _wide(product: Callable) -> Callable:
    """Emulate a product of half-precision operands, summed and returned in fp32."""

    def compute(*operands: Any, out: torch.Tensor | None = None) -> torch.Tensor:
        *operands, dtype = operands
        assert dtype == torch.float32 and all(x.dtype == torch.bfloat16 for x in operands[-2:])
        return product(*(x.float() for x in operands), out=out)

    return compute


class _RmsNorm(torch.autograd.Function):
    """The gradient that torch's RMS norm has on a GPU, by the operation that computes it there."""

    @staticmethod
    def forward(ctx, x, shape, weight, eps):
        with torch._C._AutoDispatchBelowAutograd():
            out, rstd = aten._fused_rms_norm(x, shape, weight, eps)
        ctx.shape = shape
        ctx.save_for_backward(x, weight, rstd)
        ctx.set_materialize_grads(False)
        return out, rstd

    @staticmethod
    def backward(ctx, grad, _):
        x, weight, rstd = ctx.saved_tensors
        needs = ctx.needs_input_grad[0], ctx.needs_input_grad[2]
        grad_x, grad_weight = aten._fused_rms_norm_backward(grad.contiguous(), x, ctx.shape, rstd, weight, needs)
        return grad_x, None, grad_weight, None


_library = torch.library.Library("aten", "IMPL")  # off a GPU torch takes the norm apart before
_library.impl("_fused_rms_norm", _RmsNorm.apply, "AutogradPrivateUse1")
_library.impl("_fused_rms_norm", lambda *args: _run(aten._fused_rms_norm.default, args, {}), "PrivateUse1")


_EMULATED: dict[str, Callable] = {
    "aten._fused_rms_norm_backward.default": torch._decomp.decompositions._fused_rms_norm_backward,
    "torch_attn._varlen_attn.default": _varlen,
    "torch_attn._varlen_attn_backward.default": _varlen_backward,
    "aten.mm.dtype": _wide(torch.mm),
    "aten.mm.dtype_out": _wide(torch.mm),
    "aten.bmm.dtype": _wide(torch.bmm),
}
"""Operations that a CPU build lacks."""


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Do nothing."""


@contextlib.contextmanager
def _no_context(*args: Any, **kwargs: Any) -> Iterator[None]:
    yield


class _Stream:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    wait_stream = synchronize = wait_event = _nothing


_STREAM = _Stream()
_PROPERTIES = SimpleNamespace(
    name="NVIDIA H200", multi_processor_count=132, total_memory=MEMORY, major=9, minor=0, uuid=""
)
for _name, _value in {
    "_lazy_init": _nothing,
    "is_available": lambda: _Machine.gpu is not None,
    "device_count": lambda: int(_Machine.gpu is not None),
    "current_device": lambda: 0,
    "synchronize": lambda *args: _wait("synchronize"),
    "is_current_stream_capturing": lambda: _Machine.capturing is not None,
    "get_device_name": lambda *args: _PROPERTIES.name,
    "get_device_properties": lambda *args: _PROPERTIES,
    "get_device_capability": lambda *args: (9, 0),
    "mem_get_info": lambda *args: (MEMORY * 9 // 10, MEMORY),
    "memory_reserved": lambda *args: 0,
    "memory_allocated": lambda *args: 0,
    "max_memory_allocated": lambda *args: 0,
    "max_memory_reserved": lambda *args: 0,
    "reset_peak_memory_stats": _nothing,
    "current_stream": lambda *args: _STREAM,
    "Stream": _Stream,
    "stream": _no_context,
    "device": _no_context,
    "graph_pool_handle": lambda: (0, 0),
    "CUDAGraph": Graph,
    "Event": Event,
    "graph": capture,
}.items():
    setattr(torch.cuda, _name, _value)
torch.Tensor.pin_memory = lambda self, *args: self
_to = torch.Tensor.to


def _to_index(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Do `Tensor.to`: of "cuda" without an index a CPU build would ask its driver for the current device."""
    args = tuple(CUDA if isinstance(x, str | torch.device) and _is_cuda(x) else x for x in args)
    return _to(self, *args, **(kwargs | {"device": CUDA} if _is_cuda(kwargs.get("device")) else kwargs))


torch.Tensor.to = _to_index


if __name__ == "__main__":
    from hone import cli

    with FakeCuda().there():
        sys.exit(cli.call(sys.argv[1], sys.argv[2:], f"hone {sys.argv[1]}"))
