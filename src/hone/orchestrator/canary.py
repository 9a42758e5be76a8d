"""The canary: a few tokens whose logprobs sampler and trainer must agree on, after every publication of weights.

Two parts. A fixed sequence, made of the run's first prompts, is scored by both, without any cache. And completions are
sampled as in training, two of each of two prompts that stay the same through the run, so that whatever the sampler
remembers of a prompt is used. It is short, for it is paid at every step. Nothing here depends on
what came before: a run that was resumed measures the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hone import rng
from hone.algorithms.gap import Band, Gap, Verdict
from hone.config.rl import RLConfig
from hone.inference.types import SamplingParams
from hone.model.chat import ChatRenderer
from hone.orchestrator.groups import GroupSampler
from hone.orchestrator.types import Policy, Request
from hone.trainer.logprobs import loss_indices, token_hidden, token_logprobs
from hone.trainer.packing import Sequence as Packed
from hone.trainer.packing import pack
from hone.trainer.step import Trainer
from hone.types import Example, PackedBatch, Trajectory

Pair = tuple[tuple[int, ...], tuple[int, ...]]
"""Token ids that are given, and those after them that are scored."""
FIXED_TOKENS = 64
"""Most tokens of the fixed sequence."""
EXAMPLES = 8
"""Examples whose prompts they are made of."""
PROMPTS, SAMPLES, NEW_TOKENS = 2, 2, 3
"""Prompts to sample from, completions of each, the most tokens of a completion."""
LONG = 256
"""A prompt with more tokens is sampled from only if there is no shorter one: it would cost what a rollout does."""


@dataclass(frozen=True)
class Part:
    """Logprobs `[M]` float64 of the same tokens by sampler and trainer, as they sample and train."""

    sampler: np.ndarray
    trainer: np.ndarray

    @property
    def gap(self) -> Gap:
        return Gap.of(self.sampler - self.trainer)


@dataclass(frozen=True)
class Measurement:
    """What the canary found of one version. `fixed` is None where the sampler can't score given tokens."""

    version: int
    fixed: Part | None
    sampled: Part
    trajectories: list[Trajectory]
    verdict: Verdict

    @property
    def parts(self) -> list[Part]:
        return [self.sampled] if self.fixed is None else [self.fixed, self.sampled]

    @property
    def gap(self) -> Gap:
        """The worse of the parts."""
        return Gap.worst([part.gap for part in self.parts])

    def metrics(self) -> dict[str, float]:
        return {"canary/gap/mean": self.gap.mean, "canary/gap/max": self.gap.max, "canary/verdict": float(self.verdict)}


class Canary:
    """Measures `policy` against `trainer` on the prompts of these examples."""

    def __init__(
        self,
        policy: Policy,
        trainer: Trainer,
        renderer: ChatRenderer,
        examples: Sequence[Example],
        band: Band,
        seed: int,
        seq_len: int,
        max_tokens: int | None = None,
    ) -> None:
        self.policy, self.trainer, self.band, self.seed = policy, trainer, band, seed
        self.sampling = SamplingParams(temperature=trainer.temperature)
        prompts = [(tuple(renderer.prompt_ids(example.prompt)), example.prompt) for example in examples]
        self.fixed = fixed_tokens(examples, renderer, seq_len)
        most = min(NEW_TOKENS, max_tokens or NEW_TOKENS)
        self.requests = [
            Request(ids, messages, rng.key(seed, "canary", n, k), f"canary-{n}-{k}", min(most, seq_len - len(ids)))
            for n, (ids, messages) in enumerate(sorted(prompts, key=lambda prompt: _wish(prompt[0]))[:PROMPTS])
            for k in range(SAMPLES)
        ]

    @classmethod
    def of_run(
        cls,
        config: RLConfig,
        sampler: GroupSampler,
        renderer: ChatRenderer,
        policy: Policy,
        trainer: Trainer,
        band: Band,
    ) -> Canary:
        """On the prompts that the run's first step draws, with completions no longer than those of its rollouts."""
        examples = sampler.first(EXAMPLES)
        max_tokens = config.orchestrator.sampling.max_tokens
        return cls(policy, trainer, renderer, examples, band, config.seed, config.seq_len, max_tokens)

    def measure(self, version: int) -> Measurement:
        """Both parts, of the weights that sampler and trainer have now."""
        (scores,) = self.policy.score([self.fixed], self.trainer.temperature)
        trajectories = self.policy.sample(self.requests, self.sampling)
        trained = self.score([self.fixed_pair, *completed(self.requests, trajectories)])
        # A server whose scores are of another temperature than its samples says NaN rather than a wrong number.
        fixed = None if np.isnan(scores).all() else Part(np.array(scores), trained[: len(scores)])
        sampled = Part(_sampled(trajectories), trained[len(scores) :])
        verdicts = [self.band.verdict(part.gap) for part in (fixed, sampled) if part is not None]
        return Measurement(version, fixed, sampled, trajectories, max(verdicts))

    def sample(self, requests: Sequence[Request]) -> Part:
        """Completions of these requests, their tokens scored behind the prompts that were asked for."""
        trajectories = self.policy.sample(requests, self.sampling)
        return Part(_sampled(trajectories), self.score(completed(requests, trajectories)))

    @torch.no_grad()
    def score(self, sequences: Sequence[Pair]) -> np.ndarray:
        """The trainer's logprobs `[M]` of the second tokens of each pair, given the first."""
        batch = self._pack(sequences)
        logprobs_M, _ = token_logprobs(self.trainer.model, batch, loss_indices(batch), self.trainer.temperature)
        return logprobs_M.double().cpu().numpy()

    @torch.no_grad()
    def logits(self, sequences: Sequence[Pair]) -> tuple[torch.Tensor, torch.Tensor]:
        """The trainer's logits `[M, V]` at the same tokens, before the temperature, and their ids `[M]`."""
        batch = self._pack(sequences)
        indices_M = loss_indices(batch)
        model = self.trainer.model
        return model.logits(token_hidden(model, batch, indices_M)), batch.token_ids[indices_M]

    @property
    def fixed_pair(self) -> Pair:
        """The fixed sequence: its first token, and those that are scored."""
        return self.fixed[:1], self.fixed[1:]

    def _pack(self, sequences: Sequence[Pair]) -> PackedBatch:
        packed = [
            Packed(np.array([*given, *tokens], dtype=np.int64), np.repeat([False, True], [len(given), len(tokens)]))
            for given, tokens in sequences
        ]
        return pack(packed, device=self.trainer.model.device, share_prompts=True)


def fixed_tokens(examples: Sequence[Example], renderer: ChatRenderer, seq_len: int) -> tuple[int, ...]:
    """The fixed sequence: the first tokens of the prompts of these examples, end to end."""
    joined = [token for example in examples for token in renderer.prompt_ids(example.prompt)]
    return tuple(joined[: min(FIXED_TOKENS, seq_len - 1)])  # a server counts a token that is to be sampled


def _sampled(trajectories: Sequence[Trajectory]) -> np.ndarray:
    return np.concatenate([t.logprobs[t.sampled_mask] for t in trajectories]).astype(np.float64)


def completed(requests: Sequence[Request], trajectories: Sequence[Trajectory]) -> list[Pair]:
    """(the prompt that was asked for, the tokens that were sampled) of each."""
    return [
        (request.prompt_ids, tuple(t.token_ids[t.sampled_mask].tolist()))
        for request, t in zip(requests, trajectories, strict=True)
    ]


def _wish(prompt: tuple[int, ...]) -> tuple[bool, int]:
    """Least first: the longest prompt that isn't long, for more of it is cached; else the shortest."""
    long = len(prompt) > LONG
    return long, len(prompt) if long else -len(prompt)
