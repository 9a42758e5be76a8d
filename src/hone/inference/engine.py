"""The engine: prefill each distinct prompt once, share it with its group, decode in step, drop what has finished.

It samples with the very parameters that the trainer updates: no copy of the weights, no second implementation of the
model, so its logprobs are the trainer's up to the rounding of differently shaped products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hone import rng
from hone.errors import UserError
from hone.inference.cache import KVCache, PrefillAttention, kv_bytes_per_token
from hone.inference.sampler import sample_tokens
from hone.inference.types import Completion, SamplingParams
from hone.model.decoder import Decoder

COMPACT_AT = 0.75
"""Finished sequences are removed from the batch once no more than this share is alive: removal copies the cache."""


@dataclass(frozen=True)
class Job:
    """One completion to sample: its prompt, the key of its randomness (see `hone.rng.uniforms`), its token limit."""

    prompt: tuple[int, ...]
    key: int
    max_tokens: int


class Engine:
    """Samples from a `Decoder` in process.

    `kv_bytes` bounds the KV cache; a larger workload runs in waves. A sample's randomness depends on its key and
    position alone, so the waves don't change which random numbers it sees.
    """

    def __init__(self, model: Decoder, kv_bytes: int = 4 * 2**30) -> None:
        self.model = model
        self.kv_bytes = kv_bytes

    def generate(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> list[list[Completion]]:
        """`params.n` completions of each prompt (token ids). Sample i of prompt p is keyed by (seed, "generate", p, i).

        Raises UserError for an empty prompt, or one that leaves no room in the model's context.
        """
        jobs = [
            Job(tuple(prompt), rng.key(params.seed, "generate", p, i), params.max_tokens)
            for p, prompt in enumerate(prompts)
            for i in range(params.n)
        ]
        flat = self.run(jobs, params)
        return [flat[p * params.n : (p + 1) * params.n] for p in range(len(prompts))]

    def run(self, jobs: Sequence[Job], params: SamplingParams) -> list[Completion]:
        """One completion per job, in the order of the jobs. Jobs with equal prompts share their prefill."""
        for job in jobs:
            self._check(job)
        budget = self.kv_bytes // kv_bytes_per_token(self.model.config)
        done: list[Completion] = []
        wave: list[Job] = []
        longest = 0
        for job in jobs:
            longest = max(longest, len(job.prompt) + job.max_tokens)
            if wave and longest * (len(wave) + 1) > budget:
                done += self._wave(wave, params)
                wave, longest = [], len(job.prompt) + job.max_tokens
            wave.append(job)
        return done + (self._wave(wave, params) if wave else [])

    def _check(self, job: Job) -> None:
        limit = self.model.config.max_position_embeddings
        if not job.prompt:
            raise UserError("a prompt has no tokens; give at least one")
        if len(job.prompt) + job.max_tokens > limit:
            raise UserError(
                f"a prompt of {len(job.prompt)} tokens plus {job.max_tokens} new ones exceeds the model's context of "
                f"{limit}; lower max_tokens or shorten the prompt"
            )

    @torch.no_grad()
    def _wave(self, jobs: Sequence[Job], params: SamplingParams) -> list[Completion]:
        device = self.model.device
        prompts = list(dict.fromkeys(job.prompt for job in jobs))
        index_of = {prompt: index for index, prompt in enumerate(prompts)}
        prompt_of_row = np.array([index_of[job.prompt] for job in jobs])
        limits = np.array([job.max_tokens for job in jobs])
        max_new = int(limits.max())
        logits_BV, cache = self._prefill(prompts, prompt_of_row, max_new)

        keys = np.array([job.key for job in jobs], dtype=np.uint64)
        uniforms_TB = torch.from_numpy(rng.uniforms(keys, 0, max_new).T.copy()).to(device)
        stops = torch.tensor(self._stop_ids(params), dtype=torch.int64, device=device)
        tokens_TB = torch.zeros(max_new, len(jobs), dtype=torch.int64, device=device)
        logprobs_TB = torch.zeros(max_new, len(jobs), device=device)

        batch = torch.arange(len(jobs), device=device)  # the job of each row of the batch
        last = torch.from_numpy(limits - 1).to(device)  # the index of its last token
        alive = torch.ones(len(jobs), dtype=torch.bool, device=device)
        positions = torch.tensor([len(job.prompt) for job in jobs], device=device)
        for index in range(max_new):
            next_B, logprobs_B = sample_tokens(logits_BV, uniforms_TB[index].index_select(0, batch), params)
            tokens_TB[index].scatter_(0, batch, next_B)
            logprobs_TB[index].scatter_(0, batch, logprobs_B)
            alive &= ~torch.isin(next_B, stops) & (index < last)
            remaining = int(alive.sum())
            if not remaining:
                break
            if remaining <= COMPACT_AT * len(batch):
                kept = alive.nonzero().squeeze(1)
                cache.keep(kept)
                batch, last, alive, positions, next_B = (x[kept] for x in (batch, last, alive, positions, next_B))
            hidden_BD = self.model.hidden(next_B, positions, cache)
            logits_BV = self.model.logits(hidden_BD)
            cache.column += 1
            positions = positions + 1
        return _completions(tokens_TB.T.cpu().numpy(), logprobs_TB.T.cpu().numpy(), limits, stops.cpu().numpy())

    def _prefill(
        self, prompts: list[tuple[int, ...]], prompt_of_row: np.ndarray, max_new: int
    ) -> tuple[torch.Tensor, KVCache]:
        """Logits `[B, V]` after each job's prompt, and the cache that holds the prompts."""
        device = self.model.device
        lengths = [len(prompt) for prompt in prompts]
        token_ids = torch.tensor([token for prompt in prompts for token in prompt], device=device)
        positions = torch.cat([torch.arange(length, device=device) for length in lengths])
        attention = PrefillAttention(lengths)
        hidden_ND = self.model.hidden(token_ids, positions, attention)
        last = torch.tensor(lengths, device=device).cumsum(0) - 1
        logits_PV = self.model.logits(hidden_ND[last])
        logits_BV = logits_PV.index_select(0, torch.from_numpy(prompt_of_row).to(device))
        return logits_BV, KVCache(attention, lengths, prompt_of_row, max_new)

    def _stop_ids(self, params: SamplingParams) -> list[int]:
        eos = () if params.ignore_eos else self.model.config.eos_token_ids
        return sorted({*params.stop, *eos})


def _completions(
    tokens_BT: np.ndarray, logprobs_BT: np.ndarray, limits_B: np.ndarray, stops: np.ndarray
) -> list[Completion]:
    """Each row up to its first stop id, or its limit; what a row sampled after that, beside its neighbours, is cut."""
    stopped_BT = np.isin(tokens_BT, stops)
    ended_BT = stopped_BT | (np.arange(tokens_BT.shape[1]) == limits_B[:, None] - 1)
    completions = []
    for row, count in enumerate(ended_BT.argmax(axis=1) + 1):
        reason = "stop" if stopped_BT[row, count - 1] else "length"
        completions.append(Completion(tokens_BT[row, :count].tolist(), logprobs_BT[row, :count].tolist(), reason))
    return completions
