"""AdamW over fp32 weights, with a state that saves to flat, named tensors."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from hone.config.shared import OptimConfig
from hone.trainer.parallel import share_of, whole


class Optimizer:
    """AdamW (decoupled weight decay, arXiv:1711.05101) with global-norm clipping.

    Weights that are not fp32 get an fp32 master copy here: a bf16 weight keeps 8 bits, so an update of lr 1e-6 would be
    rounded away. Their gradients are summed in fp32, for the same reason. Matrices decay; norms, biases and embeddings
    don't. Of weights in shards each rank updates its rows.
    """

    def __init__(self, model: nn.Module, config: OptimConfig) -> None:
        self.config = config
        self.params = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.masters = {
            name: p if p.dtype == torch.float32 else p.detach().float().requires_grad_()
            for name, p in self.params.items()
        }
        for param in self.params.values():
            if param.dtype != torch.float32 and not hasattr(param, _SUM):
                setattr(param, _SUM, None)
                param.register_post_accumulate_grad_hook(_sum_in_fp32)
        decayed = [n for n, p in self.params.items() if p.ndim >= 2 and "embed" not in n]
        plain = [n for n in self.params if n not in set(decayed)]
        groups = [
            {"params": [self.masters[n] for n in decayed], "weight_decay": config.weight_decay},
            {"params": [self.masters[n] for n in plain], "weight_decay": 0.0},
        ]
        self.adamw = torch.optim.AdamW(
            [g for g in groups if g["params"]], lr=config.lr, betas=config.betas, eps=config.eps, fused=True
        )

    def step(self, lr: float) -> float:
        """Clip the gradients, update the weights at learning rate `lr`, clear the gradients.

        Returns the gradient's global L2 norm before clipping; if it is not finite, nothing is updated.
        """
        for name, param in self.params.items():
            if self.masters[name] is not param:
                self.masters[name].grad = getattr(param, _SUM)
        masters = list(self.masters.values())
        norm = whole(torch.nn.utils.get_total_norm([m.grad for m in masters if m.grad is not None]))
        grad_norm = float(norm)
        if math.isfinite(grad_norm):
            torch.nn.utils.clip_grads_with_norm_(masters, self.config.max_norm, norm)
            for group in self.adamw.param_groups:
                group["lr"] = lr
            self.adamw.step()
            self._publish_masters()
        self.clear()
        return grad_norm

    def clear(self) -> None:
        """Drop the gradients."""
        for name, param in self.params.items():
            param.grad = self.masters[name].grad = None
            if hasattr(param, _SUM):
                setattr(param, _SUM, None)

    @torch.no_grad()
    def _publish_masters(self) -> None:
        for name, param in self.params.items():
            if self.masters[name] is not param:
                param.copy_(self.masters[name])

    def state(self) -> dict[str, Tensor]:
        """Return first and second moments, step counts and master weights by parameter name."""
        tensors = {}
        for name, master in self.masters.items():
            tensors |= {f"{key}/{name}": value for key, value in self.adamw.state[master].items()}
            if master is not self.params[name]:
                tensors[f"master/{name}"] = master.detach()
        return tensors

    @torch.no_grad()
    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `state` returned, bit for bit; of whole tensors a rank takes its rows."""
        self.adamw.state.clear()
        for key, value in tensors.items():
            kind, name = key.split("/", 1)
            master = self.masters[name]
            if kind == "master":
                master.copy_(share_of(value, master))
            else:
                own = share_of(value, master) if value.ndim else value
                self.adamw.state[master][kind] = own.clone().to(master.device)


_SUM = "grad_fp32"
"""Attribute of a weight that is not fp32: the sum of its gradients so far, in fp32, or None."""


@torch.no_grad()
def _sum_in_fp32(param: Any) -> None:
    """Add the gradient of one micro-batch to those before it, and drop it."""
    total = getattr(param, _SUM)
    setattr(param, _SUM, param.grad.float() if total is None else total.add_(param.grad))
    param.grad = None
