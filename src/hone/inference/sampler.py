"""Samples tokens from logits. A draw is a pure function: the caller gives one uniform number per token.

Shapes: B rows, V vocabulary, N tokens.
"""

from __future__ import annotations

import numpy as np
import torch

from hone.inference.types import SamplingParams
from hone.model.decoder import Decoder
from hone.model.head import chunk_rows

WHOLE, BLOCK = 1024, 128
"""Vocabularies of up to `WHOLE` tokens are searched at once, larger vocabularies in blocks of `BLOCK` tokens."""


def sample_tokens(
    logits_BV: torch.Tensor, uniforms_B: torch.Tensor, params: SamplingParams
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return token ids `[B]` int64, logprobs `[B]` float32, and a mask or None. If `params.keeps_ids` is true, the mask
    `[B, V]` marks the ids that `truncate` leaves, and logprobs are normalised over these ids.

    A row with NaN or +inf among its logits gets an arbitrary token, with the logprob NaN.
    """
    logprobs_BV, candidates_BV = token_distribution(logits_BV, params), None
    if params.greedy:
        tokens_B = logits_BV.argmax(dim=-1)
    else:
        left_BV = truncate(logprobs_BV, params)
        tokens_B = inverse_cdf(left_BV.exp(), uniforms_B)
        if params.keeps_ids:
            logprobs_BV, candidates_BV = torch.log_softmax(left_BV, dim=-1), left_BV > float("-inf")
    return tokens_B, logprobs_BV.gather(1, tokens_B[:, None]).squeeze(1), candidates_BV


def as_words(mask_BV: torch.Tensor) -> torch.Tensor:
    """Pack each row's bits into 32-bit integers, stored exactly in float64 `[B, ceil(V / 32)]`."""
    size = mask_BV.shape[1]
    bits_BNK = torch.nn.functional.pad(mask_BV, (0, -size % 32)).unflatten(1, (-1, 32))
    return bits_BNK.double() @ (1 << torch.arange(32, device=mask_BV.device)).double()


def set_bits(words_N: np.ndarray) -> np.ndarray:
    """Return the indices (int32, ascending) of the bits that are set in one row of `as_words`."""
    (words,) = words_N.nonzero()
    octets = words_N[words].astype("<u4").view(np.uint8).reshape(-1, 4)
    word, bit = np.unpackbits(octets, axis=1, bitorder="little").nonzero()
    return (words[word] * 32 + bit).astype(np.int32)


def inverse_cdf(weights_BV: torch.Tensor, uniforms_B: torch.Tensor) -> torch.Tensor:
    """Return each row's first index `[B]` at which the running sum of weights exceeds uniform x total.

    Each row has float64 running sums, so a draw doesn't depend on other rows, and an index of weight 0 is never drawn.
    In a large vocabulary, the search first finds the token's block (by sums in the weights' dtype), then the token,
    because one running sum over 150k tokens takes as long as the head's product.
    """
    size = weights_BV.shape[1]
    if size <= WHOLE:
        cumulative_BV = _running_sum(weights_BV)
        thresholds_B1 = uniforms_B[:, None] * cumulative_BV[:, -1:]
        return torch.searchsorted(cumulative_BV, thresholds_B1, right=True).squeeze(1).clamp_(max=size - 1)
    if size % BLOCK:
        weights_BV = torch.nn.functional.pad(weights_BV, (0, BLOCK - size % BLOCK))
    blocks_BNK = weights_BV.unflatten(1, (-1, BLOCK))
    cumulative_BN = _running_sum(blocks_BNK.sum(-1))
    thresholds_B1 = uniforms_B[:, None] * cumulative_BN[:, -1:]
    block_B1 = _first_above(cumulative_BN, thresholds_B1)
    before_B1 = torch.where(block_B1 > 0, cumulative_BN.gather(1, (block_B1 - 1).clamp_(min=0)), 0.0)
    chosen_BK = blocks_BNK[torch.arange(len(blocks_BNK), device=weights_BV.device), block_B1.squeeze(1)]
    within_B1 = _first_above(_running_sum(chosen_BK), thresholds_B1 - before_B1)
    return (block_B1 * BLOCK + within_B1).squeeze(1).clamp_(max=size - 1)


def _running_sum(x_BN: torch.Tensor) -> torch.Tensor:
    """Return the running sums `[B, N]` float64 of each row.

    CUDA's kernel is not deterministic. If determinism is required, matrix products compute the sums, `BLOCK` at a time.
    """
    if not (x_BN.is_cuda and torch.are_deterministic_algorithms_enabled()):
        return x_BN.cumsum(-1, dtype=torch.float64)
    size = x_BN.shape[1]
    blocks_BNK = torch.nn.functional.pad(x_BN.double(), (0, -size % BLOCK)).unflatten(1, (-1, BLOCK))
    within_BNK = blocks_BNK @ x_BN.new_ones(BLOCK, BLOCK, dtype=torch.float64).triu()
    totals_BN, count = within_BNK[..., -1], within_BNK.shape[1]
    before_BN = totals_BN @ x_BN.new_ones(count, count, dtype=torch.float64).triu(1)
    return (within_BNK + before_BN[..., None]).flatten(1)[:, :size]


def _first_above(cumulative_BN: torch.Tensor, thresholds_B1: torch.Tensor) -> torch.Tensor:
    """Return the first index `[B, 1]` with a sum above the threshold. If rounding left none, return the last index with
    a positive weight.
    """
    # Nothing exceeds NaN: its place is behind the end.
    last_B1 = torch.searchsorted(cumulative_BN, cumulative_BN[:, -1:].contiguous()).clamp_(
        max=cumulative_BN.shape[1] - 1
    )
    return torch.minimum(torch.searchsorted(cumulative_BN, thresholds_B1, right=True), last_B1)


def token_distribution(logits_BV: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Return logprobs `[B, V]` of softmax(logits / temperature), or of softmax(logits) if greedy."""
    scaled_BV = logits_BV if params.greedy or params.temperature == 1 else logits_BV / params.temperature
    return torch.log_softmax(scaled_BV, dim=-1)


def truncate(logprobs_BV: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Apply `top_k`, then `top_p`, then `min_p`: set the logprobs of excluded tokens to -inf.

    As in transformers, all tokens as likely as the k-th stay, and `top_p` is a share of the probability after `top_k`.
    """
    best_BK = None
    if 0 < params.top_k < logprobs_BV.shape[1]:
        best_BK = logprobs_BV.topk(params.top_k).values
        logprobs_BV = logprobs_BV.masked_fill(~(logprobs_BV >= best_BK[:, -1:]), float("-inf"))
    if params.top_p < 1 and best_BK is not None and logprobs_BV.is_cuda:
        candidates_BV = largest_share(logprobs_BV, best_BK, params.top_p)
        logprobs_BV = logprobs_BV.masked_fill(~candidates_BV, float("-inf"))
    elif params.top_p < 1:
        sorted_BV, order_BV = logprobs_BV.sort(dim=-1, descending=True, stable=True)
        probs_BV = sorted_BV.exp().double()
        before_BV = _running_sum(probs_BV) - probs_BV
        keep_BV = before_BV < params.top_p * probs_BV.sum(-1, keepdim=True)
        candidates_BV = torch.zeros_like(keep_BV).scatter(1, order_BV, keep_BV)
        logprobs_BV = logprobs_BV.masked_fill(~candidates_BV, float("-inf"))
    if params.min_p:
        floor_B1 = logprobs_BV.amax(-1, keepdim=True) + torch.tensor(params.min_p).log()
        logprobs_BV = logprobs_BV.masked_fill(logprobs_BV < floor_B1, float("-inf"))
    return logprobs_BV


def largest_share(logprobs_BV: torch.Tensor, best_BK: torch.Tensor, share: float) -> torch.Tensor:
    """Return a mask `[B, V]` of the fewest tokens that have this share of the probability, without sorting V tokens.

    `best_BK`: sorted logprobs of the K likeliest tokens. All other logprobs in `logprobs_BV` must be -inf or equal the
    K-th. Among equally likely tokens, the mask takes the lowest ids.
    """
    probs_BK = best_BK.exp().double()
    sums_BK, last_B1 = _running_sum(probs_BK), probs_BK[:, -1:]
    more_B1 = (logprobs_BV > float("-inf")).sum(-1, keepdim=True) - best_BK.shape[1]  # as likely as the last
    left_B1 = share * (sums_BK[:, -1:] + more_B1 * last_B1) - sums_BK[:, -1:]
    count_B1 = (sums_BK - probs_BK < left_B1 + sums_BK[:, -1:]).sum(-1, keepdim=True)
    count_B1 = count_B1 + (left_B1 / last_B1).ceil().clamp(min=0).minimum(more_B1)
    edge_B1 = best_BK.gather(1, (count_B1.long() - 1).clamp(0, best_BK.shape[1] - 1))
    over_BV, at_BV = logprobs_BV > edge_B1, logprobs_BV == edge_B1
    return over_BV | (at_BV & (at_BV.cumsum(-1, dtype=torch.int32) <= count_B1 - over_BV.sum(-1, keepdim=True)))


def target_logprobs(
    model: Decoder, hidden_ND: torch.Tensor, targets_N: torch.Tensor, temperature: float, top: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return logprobs `[N]` of `targets_N`, and ids `[N, K]` and logprobs `[N, K]` of the K = `top` likeliest tokens.
    Logits are computed for a few rows at a time.
    """
    rows = chunk_rows(model.config.vocab_size)
    params = SamplingParams(temperature=temperature)
    parts = []
    for hidden, targets in zip(hidden_ND.split(rows), targets_N.split(rows), strict=True):
        logprobs = token_distribution(model.logits(hidden), params)
        best = logprobs.topk(min(top, logprobs.shape[1]))
        parts.append((logprobs.gather(1, targets[:, None]).squeeze(1), best.indices, best.values))
    logprobs_N, ids_NK, top_NK = (torch.cat(part) for part in zip(*parts, strict=True))
    return logprobs_N, ids_NK, top_NK
