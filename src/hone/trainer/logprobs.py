"""Log-probabilities of given tokens under the model."""

from __future__ import annotations

from collections.abc import Sequence as SequenceABC

import numpy as np
import torch

from hone.hardware import HEAD_CACHE_BYTES
from hone.model.attention import PackedAttention
from hone.model.decoder import Decoder
from hone.model.head import head_logprobs
from hone.trainer.packing import Sequence, pack
from hone.trainer.parallel import release
from hone.types import PackedBatch, ragged


def token_hidden(model: Decoder, batch: PackedBatch, indices_M: torch.Tensor) -> torch.Tensor:
    """Return the hidden states `[M, D]` of the tokens before `indices_M`, which predict the tokens at `indices_M`."""
    attention = PackedAttention(batch.lengths, batch.parents)
    hidden_ND = model.hidden(batch.token_ids, batch.positions, attention)
    return hidden_ND.index_select(0, batch.previous[indices_M])


def token_logprobs(
    model: Decoder,
    batch: PackedBatch,
    indices_M: torch.Tensor,
    temperature: float = 1.0,
    cache_bytes: int = HEAD_CACHE_BYTES,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute log-probabilities `[M]` of the tokens at `indices_M`, and entropies `[M]`, in nats, with gradients.

    The distribution is softmax(logits / temperature). If the batch has candidates, it covers only a token's candidates.
    For `cache_bytes`, see `hone.model.head`.
    """
    hidden_MD = token_hidden(model, batch, indices_M)
    return head_logprobs(
        *(hidden_MD, model.head_weight, batch.token_ids[indices_M]),
        *(temperature, model.precision, cache_bytes, ragged(batch.columns, "candidates"), model.packed_head),
    )


@torch.no_grad()
def sequence_logprobs(model: Decoder, token_ids: SequenceABC[int], temperature: float) -> list[float]:
    """Compute the log-probability of each token of one sequence except the first."""
    if len(token_ids) < 2:
        return []
    ids = np.array(token_ids, dtype=np.int64)
    batch = pack([Sequence(ids, np.arange(len(ids)) > 0)], device=model.device)
    logprobs_M, _ = token_logprobs(model, batch, batch.loss_indices, temperature)
    release(model)
    return logprobs_M.double().tolist()
