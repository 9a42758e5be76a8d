"""The canary: after every publication of weights, sampler and trainer must agree on the logprobs of a few tokens.

Sampler and trainer score a fixed sequence, joined from the run's first prompts; the sampler uses no cache for it. The
trainer also scores a few completions that the sampler made as in training, with caches. The texts are short because
every step pays for them. A resumed run uses the same texts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from hone import rng
from hone.algorithms.gap import Band, Gap, Verdict, band_of
from hone.client import HONE
from hone.config.rl import RLConfig
from hone.environments import Environment
from hone.errors import Halt
from hone.inference.policy import Policy, Request
from hone.inference.types import SamplingParams, sampling_params
from hone.loops.curriculum import Curriculum
from hone.model.chat import ChatRenderer
from hone.runs.observer import Finding
from hone.runs.view import RunView
from hone.runs.writer import RunWriter
from hone.trainer.logprobs import token_logprobs
from hone.trainer.packing import Sequence as Packed
from hone.trainer.packing import pack
from hone.trainer.step import Trainer
from hone.types import Example

FIXED_TOKENS = 64
"""Maximum length of the fixed sequence."""
EXAMPLES = 8
"""Maximum number of examples to take prompts from."""
PROMPTS, SAMPLES, NEW_TOKENS = 2, 2, 3
"""Prompts to sample from, completions per prompt, maximum tokens per completion."""
LONG = 256
"""A prompt of more tokens costs as much as a rollout. Such prompts are used only if there are too few shorter ones."""
CAUSES = "the sampler has other weights, cached prompts, temperature, prompt, dtype or kernels than the trainer"
ADVICE = "see docs/training.md; --gap.mean, --gap.max and --gap.stop set the bounds"


def band_from_config(config: RLConfig, layers: int, backend: str | None = None) -> Band:
    """Return the gap's bounds: `config.gap`'s, else the backend's for the lower precision of sampler and trainer."""
    backend = backend or config.inference.backend
    coarse = backend != HONE and config.inference.in_bf16
    band = band_of(backend, "bf16" if coarse else config.precision, layers)
    given = {"mean": config.gap.mean, "max": config.gap.max, "stop": config.gap.stop}
    return band._replace(**{name: value for name, value in given.items() if value is not None})


def canary_metrics(gap: Gap, band: Band) -> dict[str, float]:
    return {"canary/gap/mean": gap.mean, "canary/gap/max": gap.max, "canary/verdict": float(band.verdict(gap))}


def fixed_tokens(examples: Sequence[Example], renderer: ChatRenderer, seq_len: int) -> tuple[int, ...]:
    joined = [token for example in examples for token in renderer.prompt_ids(example.prompt)]
    return tuple(joined[: min(FIXED_TOKENS, seq_len - 1)])  # a server counts the next token, too


def first_examples(config: RLConfig, env: Environment, curriculum: Curriculum) -> list[Example]:
    """Return a task's first examples, in draw order; at most EXAMPLES, and at most one step's."""
    rows, prompts = env.split("train"), config.orchestrator.batch_size // config.orchestrator.rollouts_per_example
    return [rows[index] for index in curriculum.first(min(prompts, EXAMPLES))]


class Canary:
    def __init__(
        self,
        policy: Policy,
        trainer: Trainer,
        renderer: ChatRenderer,
        examples: Sequence[Example],
        seed: int,
        seq_len: int,
        max_tokens: int | None = None,
        sampling: SamplingParams | None = None,
    ) -> None:
        self.policy, self.trainer = policy, trainer
        self.sampling = sampling or SamplingParams(temperature=trainer.temperature)
        self.fixed = fixed_tokens(examples, renderer, seq_len)
        most = min(NEW_TOKENS, max_tokens or NEW_TOKENS)

        def order(prompt: tuple[tuple[int, ...], Any]) -> tuple[bool, int]:
            """Sort key: first prompts up to LONG, longest first (more is cached); then longer ones, shortest first."""
            tokens = len(prompt[0])
            return tokens > LONG, tokens if tokens > LONG else -tokens

        prompts = [(tuple(renderer.prompt_ids(example.prompt)), example.prompt) for example in examples]
        self.requests = [
            Request(ids, messages, rng.key(seed, "canary", n, k), f"canary-{n}-{k}", min(most, seq_len - len(ids)))
            for n, (ids, messages) in enumerate(sorted(prompts, key=order)[:PROMPTS])
            for k in range(SAMPLES)
        ]

    @classmethod
    def from_config(
        cls, config: RLConfig, examples: Sequence[Example], renderer: ChatRenderer, policy: Policy, trainer: Trainer
    ) -> Canary:
        sampling = sampling_params(next(iter(config.tasks().values())).orchestrator.sampling, return_kept_ids=True)
        max_tokens = config.orchestrator.sampling.max_tokens
        return cls(policy, trainer, renderer, examples, config.seed, config.seq_len, max_tokens, sampling)

    def measure(self) -> Gap:
        """Return the gap at the current weights: the larger of the fixed sequence's gap and the completions' gap."""
        temperature = self.trainer.temperature
        (scores,) = self.policy.score([self.fixed], temperature)
        turns = self.policy.sample(self.requests, self.sampling)
        fixed = np.array(self.fixed, dtype=np.int64)
        packed = [Packed(fixed, np.arange(len(fixed)) > 0)]
        packed += [Packed(turn.token_ids, turn.sampled_mask, columns=turn.columns) for turn in turns]
        trained = self._score(packed)
        sampled = np.concatenate([turn.logprobs[turn.sampled_mask] for turn in turns]).astype(np.float64)
        gaps = [Gap.of(sampled - trained[len(scores) :])]
        # A server that scores at another temperature than it samples answers NaN rather than a wrong number.
        if not np.isnan(scores).all():
            gaps.append(Gap.of(np.array(scores) - trained[: len(scores)]))
        return Gap.worst(gaps)

    @torch.no_grad()
    def _score(self, packed: list[Packed]) -> np.ndarray:
        batch = pack(packed, device=self.trainer.model.device, share_prompts=True)
        logprobs_M, _ = token_logprobs(self.trainer.model, batch, batch.loss_indices, self.trainer.temperature)
        return logprobs_M.double().cpu().numpy()


class GapWatch:
    """Judges the canary's gap at each publication of weights and the gap of each step's samples; prints new verdicts.

    The verdict `stop` raises Halt, unless `action` is "warn".
    """

    def __init__(self, band: Band, action: str, run: RunWriter) -> None:
        self.band, self.action, self.run = band, action, run
        self._verdicts: dict[str, Verdict] = {}
        run.alarms.restore("gap", RunView(run.folder).events(), run.start_step)

    def published(self, version: int, gap: Gap | None) -> dict[str, float]:
        if gap is None:
            return {}
        metrics = canary_metrics(gap, self.band)
        self._judge("canary", version, gap, metrics)
        return metrics

    def trained(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Judge the gap of a step's tokens, unless an older version sampled some of them."""
        if (mean := metrics.get("logprob_gap/mean")) is not None and not metrics.get("staleness/mean"):
            self._judge("samples", step, Gap(float(mean), float(metrics["logprob_gap/max"])), {})

    def _judge(self, what: str, version: int, gap: Gap, metrics: Mapping[str, float]) -> None:
        band, run, verdict = self.band, self.run, self.band.verdict(gap)
        changed, self._verdicts[what] = self._verdicts.get(what, Verdict.OK) != verdict, verdict
        if verdict == Verdict.OK:
            return
        size = f"{gap.mean:.2g} nats a token (at most {gap.max:.2g}"
        fine = f"fine up to {band.mean:g} and {band.max:g})"
        evidence = f"sampler and trainer are apart on the {what} by {size}; {fine}: {CAUSES}"
        value = gap.mean if math.isfinite(gap.mean) else math.inf
        if (alarm := run.alarms.raised(version, "gap", Finding(value, band.mean, evidence, ADVICE))) is not None:
            run.event("alarm", **alarm)
        size = f"sampler and trainer disagree at version {version} by {size}"
        if verdict == Verdict.STOP and self.action == "stop":
            limit = f"the run stops beyond {band.stop:g}; with --gap.action warn it goes on)"
            raise Halt(f"{size}; {limit}: {CAUSES}", metrics)
        if changed:
            run.display.message(f"Warning: {size}; {fine}: {CAUSES}.")
