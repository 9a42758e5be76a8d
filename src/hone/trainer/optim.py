"""AdamW over fp32 weights, with a state that saves to flat, named tensors."""

from __future__ import annotations

import math

import torch
from torch import nn

from hone.config.shared import OptimConfig
from hone.trainer.parallel import share_of, whole


class Optimizer:
    """AdamW (decoupled weight decay, arXiv:1711.05101) with global-norm clipping.

    Weights that are not fp32 get an fp32 master copy here: a bf16 weight keeps 8 bits, so an update of lr 1e-6 would be
    rounded away. Matrices decay; norms, biases and embeddings don't. Of weights in shards each rank updates its rows.
    """

    def __init__(self, model: nn.Module, config: OptimConfig) -> None:
        self.config = config
        self.params = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.masters = {
            name: p if p.dtype == torch.float32 else p.detach().float().requires_grad_()
            for name, p in self.params.items()
        }
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
            if self.masters[name] is not param and param.grad is not None:
                self.masters[name].grad = param.grad.float()
        masters = list(self.masters.values())
        norm = whole(torch.nn.utils.get_total_norm([m.grad for m in masters if m.grad is not None]))
        torch.nn.utils.clip_grads_with_norm_(masters, self.config.max_norm, norm)
        grad_norm = float(norm)
        if math.isfinite(grad_norm):
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

    @torch.no_grad()
    def _publish_masters(self) -> None:
        for name, param in self.params.items():
            if self.masters[name] is not param:
                param.copy_(self.masters[name])

    def state(self) -> dict[str, torch.Tensor]:
        """Return first and second moments, step counts and master weights by parameter name."""
        tensors = {}
        for name, master in self.masters.items():
            tensors |= {f"{key}/{name}": value for key, value in self.adamw.state[master].items()}
            if master is not self.params[name]:
                tensors[f"master/{name}"] = master.detach()
        return tensors

    @torch.no_grad()
    def load_state(self, tensors: dict[str, torch.Tensor]) -> None:
        """Restore what `state` returned, bit for bit; of whole tensors a rank takes its rows."""
        self.adamw.state.clear()
        for key, value in tensors.items():
            kind, name = key.split("/", 1)
            master = self.masters[name]
            if kind == "master":
                master.copy_(share_of(value, master))
            elif value.ndim:
                self.adamw.state[master][kind] = share_of(value, master).clone().to(master.device)
            else:
                self.adamw.state[master][kind] = value.clone().to("cpu")
