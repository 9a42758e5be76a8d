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
        budget = self.kv_bytes // kv_bytes_per_token(self.model.config, self.model.embed.dtype)
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
        row_of = {prompt: row for row, prompt in enumerate(prompts)}
        rows = torch.tensor([row_of[job.prompt] for job in jobs], device=device)
        lengths = [len(prompt) for prompt in prompts]
        max_new = max(job.max_tokens for job in jobs)
        logits_BV, cache = self._prefill(prompts, lengths, rows, max_new)

        keys = np.array([job.key for job in jobs], dtype=np.uint64)
        uniforms = torch.from_numpy(rng.uniforms(keys, 0, max_new)).to(device)
        limits = torch.tensor([job.max_tokens for job in jobs], device=device)
        stops = torch.tensor(self._stop_ids(params), dtype=torch.int64, device=device)
        tokens = torch.zeros(len(jobs), max_new, dtype=torch.int64, device=device)
        logprobs = torch.zeros(len(jobs), max_new, device=device)
        counts = torch.zeros(len(jobs), dtype=torch.int64, device=device)

        batch = torch.arange(len(jobs), device=device)  # the job of each row of the batch
        alive = torch.ones(len(jobs), dtype=torch.bool, device=device)
        positions = torch.tensor(lengths, device=device)[rows]
        for index in range(max_new):
            next_B, logprobs_B = sample_tokens(logits_BV, uniforms[batch, index], params)
            tokens[batch, index], logprobs[batch, index] = next_B, logprobs_B
            counts[batch] += alive
            alive &= ~torch.isin(next_B, stops) & (index + 1 < limits[batch])
            remaining = int(alive.sum())
            if not remaining:
                break
            if remaining <= COMPACT_AT * len(batch):
                kept = alive.nonzero().squeeze(1)
                cache.keep(kept)
                batch, alive, positions, next_B = batch[kept], alive[kept], positions[kept], next_B[kept]
            hidden_BD = self.model.hidden(next_B, positions, cache)
            logits_BV = self.model.logits(hidden_BD)
            cache.column += 1
            positions = positions + 1
        return _completions(tokens, logprobs, counts, stops)

    def _prefill(
        self, prompts: list[tuple[int, ...]], lengths: list[int], rows: torch.Tensor, max_new: int
    ) -> tuple[torch.Tensor, KVCache]:
        """Logits `[B, V]` after each job's prompt, and the cache that holds the prompts."""
        device = self.model.device
        token_ids = torch.tensor([token for prompt in prompts for token in prompt], device=device)
        positions = torch.cat([torch.arange(length, device=device) for length in lengths])
        attention = PrefillAttention(lengths)
        hidden_ND = self.model.hidden(token_ids, positions, attention)
        last = torch.tensor(lengths, device=device).cumsum(0) - 1
        logits_PV = self.model.logits(hidden_ND[last])
        return logits_PV.index_select(0, rows), KVCache(attention, lengths, rows, max_new)

    def _stop_ids(self, params: SamplingParams) -> list[int]:
        eos = () if params.ignore_eos else self.model.config.eos_token_ids
        return sorted({*params.stop, *eos})


def _completions(
    tokens: torch.Tensor, logprobs: torch.Tensor, counts: torch.Tensor, stops: torch.Tensor
) -> list[Completion]:
    stop_set = set(stops.tolist())
    completions = []
    for ids, values, count in zip(tokens.tolist(), logprobs.tolist(), counts.tolist(), strict=True):
        reason = "stop" if ids[count - 1] in stop_set else "length"
        completions.append(Completion(ids[:count], values[:count], reason))
    return completions
