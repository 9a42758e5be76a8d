"""The vocabulary head: computes logits of hidden states, or directly logprobs and entropies of given tokens.

With a vocabulary of 150,000, the logits of a micro-batch are the largest tensor of a step. So logits are computed in
chunks. The backward pass needs the softmax: it is stored if it fits into `cache_bytes`, and otherwise computed again.

The products of the forward pass are in fp32. On a GPU, precision "bf16_linear" uses TF32, and "bf16" uses bf16 with an
fp32 result. The backward pass is in bf16, or fp32 if precision is "fp32" or the CPU has no fast bf16.

Shapes: M tokens with loss, D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hone.hardware import CACHE_SHARE, HEAD_CACHE_BYTES
from hone.model.device import upload
from hone.model.packed import PackedWeight, linear, multiplies_bf16_fast
from hone.types import Ragged

MAX_LOGITS = 2**25
"""Largest number of logits in memory at once (128 MiB in fp32)."""
CPU_LOGITS = 2**23
"""`MAX_LOGITS` on a CPU. Logits then stay in the CPU's caches, which was a fifth faster (V = 49,152)."""
LOWEST = -1e4
"""Replaces a logprob of -inf before it is multiplied by the probability 0, which would give NaN."""


def chunk_rows(vocab_size: int, logits: int = MAX_LOGITS) -> int:
    """Return how many tokens to take for at most `logits` logits: if over 16, a multiple of 16, for packed products."""
    rows = max(1, logits // vocab_size)
    return rows - rows % 16 if rows > 16 else rows


def head_logits(
    hidden_MD: Tensor,
    weight_VD: Tensor,
    precision: str,
    out: Tensor | None = None,
    packed: PackedWeight | None = None,
) -> Tensor:
    """Compute the logits `[M, V]` in fp32, without a gradient, into `out` if given, unless `packed` is used."""
    if packed is not None and packed.prepare(weight_VD):
        return packed.product(hidden_MD, weight_VD).float()
    if weight_VD.is_cuda:
        if weight_VD.dtype == torch.bfloat16:
            return torch.mm(hidden_MD, weight_VD.T, out_dtype=torch.float32, out=out)  # pyright: ignore
        with _products("tf32" if precision == "bf16_linear" else "ieee"):
            return torch.mm(hidden_MD, weight_VD.T, out=out)
    if weight_VD.dtype == torch.float32:
        return torch.mm(hidden_MD, weight_VD.T, out=out)
    logits = linear(hidden_MD, weight_VD).float()
    return logits if out is None else out.copy_(logits)


@contextmanager
def _products(fp32_precision: str) -> Iterator[None]:
    """In the block, fp32 products on a GPU round inputs to 10 bits of mantissa ("tf32"), or don't round ("ieee")."""
    settings = torch.backends.cuda.matmul
    before, settings.fp32_precision = settings.fp32_precision, fp32_precision
    try:
        yield
    finally:
        settings.fp32_precision = before


def head_logprobs(
    hidden_MD: Tensor,
    weight_VD: Tensor,
    targets_M: Tensor,
    temperature: float = 1.0,
    precision: str = "fp32",
    cache_bytes: int = HEAD_CACHE_BYTES,
    kept: Ragged | None = None,
    packed: PackedWeight | None = None,
) -> tuple[Tensor, Tensor]:
    """Return targets' logprobs `[M]` and entropies `[M]` under softmax(hidden Wᵀ / temperature), in nats, fp32.

    `kept`: the ids that each token was sampled from; the softmax is over these ids. Both results have gradients for
    `hidden_MD` and `weight_VD`. The softmax is stored for the backward pass if it takes at most `cache_bytes`, in bf16
    unless `precision` is "fp32". For target y, probabilities p and entropy H, the gradient at logit z_j is ([j = y] -
    p_j) / temperature for the logprob, and -p_j (log p_j + H) / temperature for the entropy.
    """
    kept_dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    keeps = torch.is_grad_enabled() and len(targets_M) * weight_VD.shape[0] * kept_dtype.itemsize <= cache_bytes
    chunk = max(MAX_LOGITS, cache_bytes // CACHE_SHARE) if weight_VD.is_cuda else CPU_LOGITS
    setup = temperature, precision, kept_dtype if keeps else None, kept and _Cut(kept, weight_VD), packed, chunk
    return _HeadLogprobs.apply(hidden_MD, weight_VD, targets_M, setup)  # pyright: ignore[reportReturnType]


class _HeadLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        setup: tuple[float, str, torch.dtype | None, _Cut | None, PackedWeight | None, int],
    ) -> tuple[Tensor, Tensor]:
        temperature, precision, kept_dtype, cut, packed, chunk = setup
        count, vocab = len(targets), weight.shape[0]
        rows = chunk_rows(vocab, chunk)
        softmax = None if kept_dtype is None else hidden.new_empty(count, vocab, dtype=kept_dtype)
        logprobs, entropies, log_sums = (hidden.new_empty(count, dtype=torch.float32) for _ in range(3))
        for start in range(0, count, rows):
            here = slice(start, min(start + rows, count))
            logits = head_logits(hidden[here], weight, precision, packed=packed)
            if temperature != 1:
                logits.div_(temperature)
            if cut is not None:
                logits.masked_fill_(cut.away(here), float("-inf"))
            chosen = logits.gather(1, targets[here, None]).squeeze(1)
            # As the sampler does it, row by row: a logprob must not depend on what else is in the batch.
            all_logprobs = torch.log_softmax(logits, dim=-1)
            logprobs[here] = all_logprobs.gather(1, targets[here, None]).squeeze(1)
            log_sums[here] = chosen - logprobs[here]
            probs = torch.exp(all_logprobs, out=logits)
            if cut is not None:  # p log p is 0 at p = 0
                all_logprobs.clamp_(min=LOWEST)
            entropies[here] = -all_logprobs.mul_(probs).sum(1)
            if softmax is not None:
                softmax[here] = probs
            del logits, probs, all_logprobs  # before the next are made, in the same memory
        ctx.save_for_backward(hidden, weight, targets, softmax, logprobs, entropies, log_sums)
        ctx.setup = temperature, precision, cut, packed, chunk
        ctx.set_materialize_grads(False)
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logprobs: Tensor | None, grad_entropies: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, softmax, logprobs, entropies, log_sums = ctx.saved_tensors
        temperature, precision, cut, packed, chunk = ctx.setup
        # The gradient of a logprob is p - [j = y], times a factor of the row, which is multiplied outside, in fp32:
        # rounded together to bf16, all rows of the same factor would be off by the same share.
        by_row = torch.zeros_like(logprobs) if grad_logprobs is None else -grad_logprobs / temperature
        # The chosen token's gradient comes from its logprob, in fp32: bf16 has too few digits for 1 - p near 0 or 1.
        own, by_entropy = torch.expm1(logprobs), None
        if grad_entropies is not None:
            by_entropy = grad_entropies / temperature
            own = own * by_row - logprobs.exp() * (logprobs + entropies) * by_entropy
            by_row, all_by_row = torch.ones_like(by_row), by_row

        low = torch.bfloat16 if precision != "fp32" and multiplies_bf16_fast(weight) else torch.float32
        products = _Products(ctx, hidden, weight, targets, own, by_row, low)
        count, vocab = len(targets), weight.shape[0]
        all_grads = softmax if softmax is not None and softmax.dtype == low else None
        if weight.is_cuda == (softmax is not None):  # a GPU that makes one product of all, or a CPU that has no cache
            chunk = MAX_LOGITS
        rows = chunk_rows(vocab, chunk)
        for start in range(0, count, rows):
            here = slice(start, min(start + rows, count))
            if softmax is not None:
                grads = softmax[here] if all_grads is not None else softmax[here].float()
            else:
                grads = head_logits(hidden[here], weight, precision, packed=packed)
                if temperature != 1:
                    grads.div_(temperature)
                grads.sub_(log_sums[here, None]).exp_()
                if cut is not None:
                    grads.masked_fill_(cut.away(here), 0.0)
            if by_entropy is not None:  # p log p is 0 at p = 0
                log_probs = grads.log().clamp_(min=LOWEST)
                grads.mul_(all_by_row[here, None] - by_entropy[here, None] * (log_probs + entropies[here, None]))
            grads.scatter_(1, targets[here, None], 0.0)
            if all_grads is None:
                products.add(here, grads.to(low))
                del grads
        if all_grads is not None:  # one product each, instead of many
            products.add(slice(0, count), all_grads)
        return products.hidden, products.weight, None, None


class _Cut:
    """Masks all logits of a token except the logits of its candidates."""

    def __init__(self, kept: Ragged, weight_VD: Tensor) -> None:
        self.kept, self.vocab, self.device = kept, len(weight_VD), weight_VD.device
        self.ends = np.concatenate([[0], np.cumsum(kept.counts, dtype=np.int64)])

    def away(self, here: slice) -> Tensor:
        """Return the mask `[rows, V]` of the tokens `here`: True where a logit is removed."""
        counts = self.kept.counts[here]
        ids = self.kept.values[self.ends[here.start] : self.ends[here.stop]]
        places = upload(np.repeat(np.arange(len(counts)) * self.vocab, counts) + ids, self.device)
        some = upload(counts > 0, self.device)
        return some[:, None].repeat(1, self.vocab).view(-1).index_fill_(0, places, False).view(-1, self.vocab)


class _Products:
    """Gradients of the head's inputs, `hidden` `[M, D]` and `weight` `[V, D]`; None if not needed.

    `own` `[M]`: gradients of the targets' logits (0 in `grads`). `by_row` `[M]`: a factor for each row.
    """

    def __init__(
        self, ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, own: Tensor, by_row: Tensor, low: torch.dtype
    ) -> None:
        self.targets, self.own, self.by_row = targets, own[:, None], by_row[:, None]
        self.inputs = (hidden * self.by_row).to(low), weight.to(low)
        self.hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        self.weight = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        if self.weight is not None:
            self.weight.index_add_(0, targets, self.inputs[0].float() * self.own)

    def add(self, here: slice, grads: Tensor) -> None:
        """Add what the rows `here` contribute. `grads` `[rows, V]`: gradients of the rows' logits."""
        hidden, weight = self.inputs
        if self.hidden is not None:
            # The chosen token's row as the other rows are, rounded: a trained model's gradient is their difference.
            product = (grads @ weight).float().addcmul_(self.own[here], weight[self.targets[here]].float())
            self.hidden[here] = product.mul_(self.by_row[here])
        if self.weight is None:
            return
        if grads.dtype == torch.float32:
            self.weight.addmm_(grads.T, hidden[here])
            return
        # The product is a separate tensor before it is added, so it is made of some rows of the weight at a time.
        rows = max(1, MAX_LOGITS // hidden.shape[1])
        for into, part in zip(self.weight.split(rows), grads.T.split(rows), strict=True):
            wide = {"out_dtype": torch.float32} if grads.is_cuda else {}
            into += torch.mm(part, hidden[here], **wide)  # pyright: ignore[reportCallIssue, reportArgumentType]
