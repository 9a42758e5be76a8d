"""Log-probabilities of given tokens under the model, without ever holding all logits when the vocabulary is large."""

from __future__ import annotations

from collections.abc import Sequence as SequenceABC

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from hone.model.attention import PackedAttention
from hone.model.decoder import MAX_LOGITS, Decoder
from hone.trainer.packing import Sequence, pack
from hone.trainer.parallel import release
from hone.types import PackedBatch


def token_hidden(model: Decoder, batch: PackedBatch, indices_M: torch.Tensor) -> torch.Tensor:
    """Return the hidden states `[M, D]` that predict the tokens at `indices_M`: those of the tokens before them."""
    attention = PackedAttention(batch.lengths, batch.parents, model.precision)
    hidden_ND = model.hidden(batch.token_ids, batch.positions, attention)
    return hidden_ND.index_select(0, batch.previous[indices_M])


def token_logprobs(
    model: Decoder, batch: PackedBatch, indices_M: torch.Tensor, temperature: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute log-probability and entropy `[M]` of predicting the tokens at `indices_M` from what precedes them.

    Both are of softmax(logits / temperature), in nats; the logprobs carry gradient, the entropies do not.
    """
    hidden_MD = token_hidden(model, batch, indices_M)
    targets_M = batch.token_ids[indices_M]

    def head(hidden: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = model.logits(hidden)
        if temperature != 1.0:
            logits = logits / temperature
        logprobs_V = torch.log_softmax(logits, dim=-1)
        with torch.no_grad():
            entropy = -(logprobs_V.exp() * logprobs_V).sum(-1)
        return logprobs_V.gather(1, targets[:, None]).squeeze(1), entropy

    rows = max(1, MAX_LOGITS // model.config.vocab_size)
    if len(targets_M) <= rows:
        return head(hidden_MD, targets_M)
    chunks = zip(hidden_MD.split(rows), targets_M.split(rows), strict=True)
    logprobs, entropies = zip(*(checkpoint(head, h, t, use_reentrant=False) for h, t in chunks), strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


@torch.no_grad()
def sequence_logprobs(model: Decoder, token_ids: SequenceABC[int], temperature: float) -> list[float]:
    """Compute the log-probability of each token of one sequence but the first, given those before it."""
    if len(token_ids) < 2:
        return []
    ids = np.array(token_ids, dtype=np.int64)
    batch = pack([Sequence(ids, np.arange(len(ids)) > 0)], device=model.device)
    logprobs_M, _ = token_logprobs(model, batch, batch.loss_indices, temperature)
    release(model)
    return logprobs_M.double().tolist()
