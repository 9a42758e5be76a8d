"""AdamW and Muon, with fp32 weights. The state is saved as named tensors."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hone.errors import UserError
from hone.model.decoder import Decoder
from hone.model.names import hf_slices
from hone.trainer.parallel import is_sharded, share_of, whole

if TYPE_CHECKING:
    from hone.config.shared import OptimConfig


class Optimizer:
    """AdamW (decoupled weight decay, arXiv:1711.05101) with clipping by the global norm. Each rank updates its rows.

    Weights that are not fp32 get an fp32 master copy and fp32 sums of gradients, because bf16 has 8 bits of precision
    and would lose an update at lr 1e-6. Weight decay applies to matrices, but not to norms, biases and embeddings.

    With `offload`, the host stores masters and moments of a GPU's weights, and computes the update. If `state` is
    "8bit", weights of 4,096 scalars or more have 8-bit moments, with a scale per 256 codes (arXiv:2110.02861).

    If `type` is "muon", torch's Muon updates the layers' matrices (momentum 0.95, Nesterov, 5 Newton-Schulz steps),
    with q, k, v, gate and up as separate matrices. Muon's updates are scaled to the usual RMS of AdamW's updates (0.2
    times the learning rate, arXiv:2502.16982), so the learning rate can stay. `offload`, "8bit" and "muon" need a
    single rank.
    """

    def __init__(self, model: Decoder, config: OptimConfig) -> None:
        self.config = config
        self.params = {name: p for name, p in model.named_parameters() if p.requires_grad}
        check_state(config, 1 + any(map(is_sharded, self.params.values())))
        away = {name: p for name, p in self.params.items() if config.offload and p.is_cuda}
        hosted, self._arrived = _pinned(away), _pinned(away)
        self.masters = {name: _master(p, hosted.get(name)) for name, p in self.params.items()}
        for param in self.params.values():
            if param.dtype != torch.float32 and not hasattr(param, _SUM):
                setattr(param, _SUM, None)
                param.register_post_accumulate_grad_hook(_sum_in_fp32)
        inner = {n: m for n, m in self.masters.items() if m.ndim == 2 and n.startswith("layers.")}
        self.momenta = {n: torch.zeros_like(m) for n, m in inner.items() if config.type == "muon"}
        slices = [(name, slice(*rows)) for name, *rows in hf_slices(model.config).values() if name in self.momenta]
        self.matrices = [(name, rows, self.masters[name].detach()[rows]) for name, rows in slices]
        """(parameter's name, rows of the matrix in it, view of the master's rows) of each matrix that Muon updates."""
        decayed = [n for n, p in self.params.items() if p.ndim >= 2 and "embed" not in n and n not in self.momenta]
        plain = [n for n in self.params if n not in {*decayed, *self.momenta}]
        groups = [
            {"params": [self.masters[n] for n in decayed], "weight_decay": config.weight_decay},
            {"params": [self.masters[n] for n in plain], "weight_decay": 0.0},
        ]
        adamw = partial(torch.optim.AdamW, fused=True) if config.state == "fp32" else _adamw_8bit()
        self.adamw: Any = adamw([g for g in groups if g["params"]], config.lr, config.betas, config.eps)
        self.optimizers: list[Any] = [self.adamw]
        if self.matrices:
            views = [part for _, _, part in self.matrices]
            muon = torch.optim.Muon(views, config.lr, config.weight_decay, adjust_lr_fn="match_rms_adamw")
            for name, rows, part in self.matrices:
                muon.state[part]["momentum_buffer"] = self.momenta[name][rows]
            self.optimizers.append(muon)

    def step(self, lr: float) -> float:
        """Clip the gradients, update the weights with learning rate `lr`, and clear the gradients.

        Returns the gradient's global L2 norm before clipping. If the norm is not finite, no weight or state changes.
        """
        grads = {name: getattr(param, _SUM, param.grad) for name, param in self.params.items()}
        grads = {name: grad for name, grad in grads.items() if grad is not None}
        norm = whole(torch.nn.utils.get_total_norm(list(grads.values())))
        grad_norm = float(norm)
        for name, grad in grads.items():
            self.masters[name].grad = self._arrived[name].copy_(grad) if name in self._arrived else grad
        for name, rows, part in self.matrices:
            part.grad = grads[name][rows] if name in grads else None
        if math.isfinite(grad_norm):
            torch.nn.utils.clip_grads_with_norm_(self.masters.values(), self.config.max_norm, norm)
            for group in (group for optimizer in self.optimizers for group in optimizer.param_groups):
                group["lr"] = group["lr"].fill_(lr) if isinstance(group["lr"], Tensor) else lr
            with self._uncompiled():
                for optimizer in self.optimizers:
                    optimizer.step()
            self._publish_masters()
        self.clear()
        return grad_norm

    def _uncompiled(self) -> AbstractContextManager[Any]:
        """In the block, torchao doesn't compile on a CPU, where this takes a C++ compiler and half a minute."""
        on_gpu = any(master.is_cuda for master in self.masters.values())
        return nullcontext() if self.config.state == "fp32" or on_gpu else torch.compiler.set_stance("force_eager")

    def clear(self) -> None:
        for _, _, part in self.matrices:
            part.grad = None
        for name, param in self.params.items():
            param.grad = self.masters[name].grad = None
            if hasattr(param, _SUM):
                setattr(param, _SUM, None)

    @torch.no_grad()
    def _publish_masters(self) -> None:
        for name, param in self.params.items():
            if self.masters[name] is not param:
                param.copy_(self.masters[name], non_blocking=True)

    def state(self) -> dict[str, Tensor]:
        """Return tensors by name: moments, step counts, Muon's momenta, and masters of weights that aren't fp32.

        An 8-bit moment is two tensors, such as `exp_avg.codes/NAME` and `exp_avg.scale/NAME`.
        """
        tensors = {f"momentum_buffer/{name}": momentum for name, momentum in self.momenta.items()}
        for name, master in self.masters.items():
            for kind, value in self.adamw.state[master].items():
                parts = {"": value}
                if hasattr(value, "codes"):  # the table of what a code means is constant
                    parts = {".codes": value.codes, ".scale": value.scale}
                tensors |= {f"{kind}{part}/{name}": tensor for part, tensor in parts.items()}
            if self.params[name].dtype != torch.float32:
                tensors[f"master/{name}"] = master.detach()
        return tensors

    @torch.no_grad()
    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `state` returned, bit for bit. Call this after the model's weights were restored.

        Each rank takes its rows of tensors that are whole. An fp32 state is rounded if `optim.state` is "8bit". Raises
        UserError for the state of another `optim.type`, or for an 8-bit state if `optim.state` is "fp32".
        """
        self.adamw.state.clear()
        for momentum in self.momenta.values():
            momentum.zero_()
        for name, master in self.masters.items():
            if master is not self.params[name]:
                master.copy_(self.params[name])
        for key, value in tensors.items():
            kind, name = key.split("/", 1)
            kind, _, part = kind.partition(".")
            master = self.masters[name]
            state = self.adamw.state[master]
            if kind == "master":
                master.copy_(share_of(value, master))
            elif (kind == "momentum_buffer") != (name in self.momenta):
                other = "adamw" if self.momenta else "muon"
                raise UserError(
                    f'this checkpoint has the optimiser\'s state of another type: set optim.type to "{other}"'
                )
            elif kind == "momentum_buffer":
                self.momenta[name].copy_(value)
            elif self.config.state == "8bit":
                self._load_8bit(state, master, kind, part, value)
            elif part:
                raise UserError('this checkpoint has the optimiser\'s state in 8 bits: set optim.state to "8bit"')
            else:
                shard = share_of(value, master) if value.ndim else value
                state[kind] = shard.clone().to(master.device)

    def _load_8bit(self, state: dict[str, Any], master: Tensor, kind: str, part: str, value: Tensor) -> None:
        if kind == "step":
            state[kind] = value.clone().to("cpu")
            return
        if kind not in state:
            state[kind] = self.adamw._new_buffer(master, kind == "exp_avg")
        # torchao rounds on the device of what it is given, with a table on its own.
        (getattr(state[kind], part) if part else state[kind]).copy_(value.to(master.device))


def check_state(config: OptimConfig, ranks: int = 1) -> None:
    """Raise UserError if "8bit" lacks torchao, or if `config` needs one rank and there are several."""
    config.check_ranks(ranks)
    if config.state == "8bit":
        _adamw_8bit()


def _pinned(params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return an empty fp32 tensor for each parameter, all in one pinned block.

    Torch rounds a block up to a power of two, so separate blocks would take up to twice the memory.
    """
    if not params:
        return {}
    sizes = [param.numel() for param in params.values()]
    parts = torch.empty(sum(sizes), dtype=torch.float32).pin_memory().split(sizes)
    return {name: part.view(param.shape) for (name, param), part in zip(params.items(), parts, strict=True)}


def _master(param: Tensor, hosted: Tensor | None) -> Tensor:
    if hosted is not None:
        return hosted.copy_(param.detach()).requires_grad_()
    return param if param.dtype == torch.float32 else param.detach().float().requires_grad_()


def _adamw_8bit() -> Any:
    logging.getLogger("torchao").setLevel(logging.ERROR)  # it warns of kernels that are not used here
    try:
        from torchao.optim import AdamW8bit  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UserError("optim.state = \"8bit\" needs torchao: pip install 'torchao>=0.18'") from error
    return AdamW8bit


_SUM = "grad_fp32"
"""Attribute of a weight that is not fp32: the sum of its gradients in fp32, or None."""


@torch.no_grad()
def _sum_in_fp32(param: Any) -> None:
    total = getattr(param, _SUM)
    setattr(param, _SUM, param.grad.float() if total is None else total.add_(param.grad))
    param.grad = None
