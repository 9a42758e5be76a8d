"""Bytes of tensors, counted by their storages as operations make and drop them."""

from __future__ import annotations

import weakref

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hone.model.decoder import Decoder


class Storages(TorchDispatchMode):
    """Counts the bytes of storages made by operations inside, but the model's: those there `now`, and the `peak`."""

    def __init__(self, model: Decoder) -> None:
        super().__init__()
        self.model = model  # as long as it is there, no other storage has the address of one of its own
        model.refresh()
        self.own = {p.untyped_storage()._cdata for p in model.parameters()}
        casts = [getattr(module, "_weight_bf16", None) for module in model.modules()]
        self.own |= {cast.untyped_storage()._cdata for cast in casts if cast is not None}
        self.there: set[int] = set()
        self.now = self.peak = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                packed = tensor.is_mkldnn  # without a storage
                held = tensor if packed else tensor.untyped_storage()
                key = id(tensor) if packed else held._cdata
                if key not in self.own | self.there:
                    self.there.add(key)
                    self.now += held.nbytes if packed else held.nbytes()
                    weakref.finalize(held, self._dropped, key, held.nbytes if packed else held.nbytes())
        self.peak = max(self.peak, self.now)
        return out

    def _dropped(self, key: int, size: int) -> None:
        self.there.remove(key)
        self.now -= size
