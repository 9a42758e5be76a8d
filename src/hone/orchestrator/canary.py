"""The canary: a few tokens whose logprobs sampler and trainer must agree on, after every publication of weights.

Two parts. A fixed sequence, made of the run's first prompts, is scored by both, without any cache. And completions are
sampled as in training, two of each of two prompts that stay the same through the run, so that whatever the sampler
remembers of a prompt is used. It is short, for it is paid at every step. A run that was resumed measures the same.

Where the two disagree, each known cause predicts what the sampler must have computed, and is tested:

stale weights       it scores as the trainer did some versions ago
stale cache         it agrees behind a prompt that it never saw, not behind those that it did
sampling transform  its logprobs are those of another temperature, or renormalised after top-k, top-p or min-p
template            the prompt it continued is another one, such as with a token put before it
numerics            nothing of that, and little enough to be rounding: another dtype or kernel
unknown             nothing of that: another model, perhaps
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from hone import rng
from hone.algorithms.gap import BANDS, Band, Gap, Verdict, fit_temperature, fit_truncation
from hone.config.rl import RLConfig
from hone.errors import Halt
from hone.inference.types import SamplingParams
from hone.model.chat import ChatRenderer
from hone.orchestrator.groups import GroupSampler
from hone.orchestrator.types import Policy, Request
from hone.runs.alarm_rules import Finding
from hone.runs.writer import RunWriter
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
EXPLAINED = 0.2
"""A cause explains a gap if it leaves at most this share of it, also without the worst token: of rounding, one token
may make most, and anything explains one token.
"""
ROUNDING = 0.1
"""More than this, as a mean in nats, is no rounding in any dtype."""
ADVICE = "see docs/training.md; --gap.mean, --gap.max and --gap.stop set the bounds"


def band_from_config(config: RLConfig, backend: str | None = None) -> Band:
    """Return what the run allows: the band of the backend (by default the configured one) and of the coarser precision
    of the two, but for what `gap` sets.
    """
    backend = backend or config.inference.backend
    coarse = backend == "vllm" and config.inference.dtype == "bfloat16"
    band = BANDS[backend, "bf16" if coarse else config.precision]
    given = {"mean": config.gap.mean, "max": config.gap.max, "stop": config.gap.stop}
    return replace(band, **{name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True)
class Part:
    """Logprobs `[M]` float64 of the same tokens by sampler and trainer, as they sample and train."""

    sampler: np.ndarray
    trainer: np.ndarray

    @property
    def gap(self) -> Gap:
        return Gap.of(self.sampler - self.trainer)

    def explained_by(self, left_M: np.ndarray) -> bool:
        """Return True if a cause that leaves this |Δ| `[M]` is the one."""
        gap_M = np.abs(self.sampler - self.trainer)
        others_M = np.arange(len(gap_M)) != gap_M.argmax()
        return all(left_M[part].sum() <= EXPLAINED * gap_M[part].sum() for part in (slice(None), others_M))


@dataclass(frozen=True)
class Measurement:
    """The canary of one version. `fixed` is None where the sampler can't score given tokens."""

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
        return gap_metrics(self.gap, self.verdict)


def gap_metrics(gap: Gap, verdict: Verdict) -> dict[str, float]:
    return {"canary/gap/mean": gap.mean, "canary/gap/max": gap.max, "canary/verdict": float(verdict)}


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
        self.fixed = fixed_tokens(examples, renderer, seq_len)
        most = min(NEW_TOKENS, max_tokens or NEW_TOKENS)

        def order(prompt: tuple[tuple[int, ...], Any]) -> tuple[bool, int]:
            """The longest prompt that isn't long comes first, for more of it is cached; else the shortest."""
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
        cls, config: RLConfig, sampler: GroupSampler, policy: Policy, trainer: Trainer, band: Band
    ) -> Canary:
        """Make one on the prompts of the run's first step, with completions no longer than those of its rollouts."""
        examples, renderer = sampler.first(EXAMPLES), sampler.maker.renderer
        max_tokens = config.orchestrator.sampling.max_tokens
        return cls(policy, trainer, renderer, examples, band, config.seed, config.seq_len, max_tokens)

    def measure(self, version: int) -> Measurement:
        """Measure both parts, of the weights that sampler and trainer have now."""
        (scores,) = self.policy.score([self.fixed], self.trainer.temperature)
        trajectories = self.policy.sample(self.requests, self.sampling)
        trained = self.score([self.fixed_pair, *completed(self.requests, trajectories)])
        # A server whose scores are of another temperature than its samples answers NaN rather than a wrong number.
        fixed = None if np.isnan(scores).all() else Part(np.array(scores), trained[: len(scores)])
        sampled = Part(_sampled(trajectories), trained[len(scores) :])
        verdicts = [self.band.verdict(part.gap) for part in (fixed, sampled) if part is not None]
        return Measurement(version, fixed, sampled, trajectories, max(verdicts))

    def sample(self, requests: Sequence[Request]) -> Part:
        """Sample these requests, and score their tokens behind the prompts that were asked for."""
        trajectories = self.policy.sample(requests, self.sampling)
        return Part(_sampled(trajectories), self.score(completed(requests, trajectories)))

    @torch.no_grad()
    def score(self, sequences: Sequence[Pair]) -> np.ndarray:
        """Compute the trainer's logprobs `[M]` of the second tokens of each pair, given the first."""
        batch = self._pack(sequences)
        logprobs_M, _ = token_logprobs(self.trainer.model, batch, loss_indices(batch), self.trainer.temperature)
        return logprobs_M.double().cpu().numpy()

    @torch.no_grad()
    def logits(self, sequences: Sequence[Pair]) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the trainer's logits `[M, V]` at the same tokens, before the temperature; and their ids `[M]`."""
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
    """Return the fixed sequence: the first tokens of the prompts of these examples, end to end."""
    joined = [token for example in examples for token in renderer.prompt_ids(example.prompt)]
    return tuple(joined[: min(FIXED_TOKENS, seq_len - 1)])  # a server counts a token that is to be sampled


def _sampled(trajectories: Sequence[Trajectory]) -> np.ndarray:
    return np.concatenate([t.logprobs[t.sampled_mask] for t in trajectories]).astype(np.float64)


def completed(requests: Sequence[Request], trajectories: Sequence[Trajectory]) -> list[Pair]:
    """Return (the prompt that was asked for, the tokens that were sampled) of each."""
    return [
        (request.prompt_ids, tuple(t.token_ids[t.sampled_mask].tolist()))
        for request, t in zip(requests, trajectories, strict=True)
    ]


@dataclass(frozen=True)
class Cause:
    """`name` as in the list above, what was measured in words, and what to do about it."""

    name: str
    text: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.name}: {self.text}; {self.remedy}"


class Diagnosis:
    """Finds the cause of a gap. Remembers the trainer's scores of earlier versions (of none, after a resume)."""

    def __init__(self, canary: Canary) -> None:
        self.canary = canary
        self._fixed: dict[int, np.ndarray] = {}
        self._last: Measurement | None = None

    def remember(self, measured: Measurement) -> None:
        """To be called after each measurement, and after `cause`."""
        if measured.fixed is not None:
            self._fixed[measured.version] = measured.fixed.trainer.astype(np.float32)
        self._last = measured

    def cause(self, measured: Measurement) -> Cause:
        """Return why the parts of this measurement are not in the band: the first cause whose test it passes."""
        tests = (
            self._not_finite,
            self._other_prompt,
            self._stale_weights,
            self._transform,
            self._prepended,
            self._stale_cache,
        )
        causes = (test(measured) for test in tests)
        return next((cause for cause in causes if cause is not None), None) or self._rounding(measured)

    def _not_finite(self, measured: Measurement) -> Cause | None:
        for side in ("sampler", "trainer"):
            if not all(np.isfinite(getattr(part, side)).all() for part in measured.parts):
                remedy = "look at grad_norm and loss of the steps before, and use a smaller optim.lr"
                return Cause("numerics", f"the {side} computes logprobs that are not finite", remedy)
        return None

    def _other_prompt(self, measured: Measurement) -> Cause | None:
        for request, trajectory in zip(self.canary.requests, measured.trajectories, strict=True):
            given = trajectory.token_ids[~trajectory.sampled_mask].tolist()
            if given != list(request.prompt_ids):
                text = f"the sampler continued a prompt of {len(given)} tokens that is not the one of "
                return _template(f"{text}{len(request.prompt_ids)} it was given")
        return None

    def _stale_weights(self, measured: Measurement) -> Cause | None:
        if measured.fixed is not None:
            if self.canary.band.verdict(measured.fixed.gap) == Verdict.OK:
                return None
            left = {v: np.abs(measured.fixed.sampler - old) for v, old in self._fixed.items() if v != measured.version}
            version = min(left, key=lambda v: left[v].mean(), default=-1)
            stale = version >= 0 and measured.fixed.explained_by(left[version])
        else:
            version = self._last.version if self._last else -1
            stale = self._last is not None and _same_samples(self._last, measured)
        if not stale:
            return None
        text = f"it samples with the weights of version {version}, not {measured.version}"
        return Cause("stale weights", text, "see why its weights were not updated (its log), and resume")

    def _transform(self, measured: Measurement) -> Cause | None:
        part = measured.sampled
        pairs = completed(self.canary.requests, measured.trajectories)
        if self.canary.band.verdict(part.gap) == Verdict.OK and measured.fixed is not None:
            part, pairs = measured.fixed, [self.canary.fixed_pair]
        logits_MV, tokens_M = self.canary.logits(pairs)
        sampled_M = torch.from_numpy(part.sampler).to(logits_MV)
        trained_at = self.canary.trainer.temperature
        temperature, left_M = fit_temperature(logits_MV, tokens_M, sampled_M)
        if part.explained_by(left_M.cpu().numpy()) and abs(temperature / trained_at - 1) > 0.02:
            text = f"the sampler's logprobs are those at temperature {temperature:.3g}, not {trained_at:g}"
            remedy = "let it sample, and report logprobs, at orchestrator.sampling.temperature (vLLM: "
            return Cause("sampling transform", text, remedy + "--logprobs-mode processed_logprobs)")
        logprobs_MV = torch.log_softmax(logits_MV / trained_at, dim=-1)
        name, value, left_M = fit_truncation(logprobs_MV, tokens_M, sampled_M)
        if part.explained_by(left_M.cpu().numpy()):
            text = f"the sampler's logprobs are renormalised after a cut, as by {name} = {value:g}"
            remedy = "turn it off where the sampler has its defaults (vLLM: --generation-config vllm)"
            return Cause("sampling transform", text, remedy)
        return None

    def _prepended(self, measured: Measurement) -> Cause | None:
        bos = self.canary.trainer.model.config.bos_token_id
        if bos is None:
            return None
        pairs = completed(self.canary.requests, measured.trajectories)
        scores_M = self.canary.score([((bos, *prompt), tokens) for prompt, tokens in pairs])
        if not measured.sampled.explained_by(np.abs(measured.sampled.sampler - scores_M)):
            return None
        return _template(f"the sampler puts the token {bos} (bos) before the prompts that it is given")

    def _stale_cache(self, measured: Measurement) -> Cause | None:
        part, band = measured.sampled, self.canary.band
        if measured.fixed is not None and band.verdict(measured.fixed.gap) != Verdict.OK:
            return None
        if np.sort(np.abs(part.sampler - part.trainer))[:-1].mean() <= max(band.mean, band.rounding):
            return None  # but for one token, or none, it agrees as well as it can
        seed, vocab = self.canary.seed, self.canary.trainer.model.config.vocab_size
        first = int(rng.stream(seed, "canary", "unseen", measured.version).integers(vocab))
        unseen = [replace(r, prompt_ids=(first, *r.prompt_ids[1:])) for r in self.canary.requests]
        fresh = self.canary.sample(unseen)
        if band.verdict(fresh.gap) != Verdict.OK or not fresh.gap.mean <= EXPLAINED * part.gap.mean:
            return None
        text = f"a prompt that the sampler never saw is continued with a gap of {fresh.gap.mean:.2g}, one that it saw "
        text += f"before the update with {part.gap.mean:.2g}"
        remedy = "let it forget its prefixes at each update of the weights (vLLM: POST /reset_prefix_cache)"
        return Cause("stale cache", text, remedy)

    def _rounding(self, measured: Measurement) -> Cause:
        part = max(measured.parts, key=lambda p: p.gap.mean)
        mean = (part.sampler - part.trainer).mean()
        if not measured.gap.mean <= ROUNDING:
            text = f"the sampler's logprobs fit no version of this run (mean difference {mean:+.2g})"
            return Cause("unknown", text, "see which model it serves")
        remedy = "give it the trainer's dtype (precision, inference.dtype), or allow more by gap.mean, gap.max, "
        return Cause("numerics", f"the sampler rounds otherwise (mean difference {mean:+.1g})", remedy + "gap.stop")


def _template(text: str) -> Cause:
    return Cause("template", text, "send token ids, and let it add nothing to them (no bos, no chat template)")


def _same_samples(before: Measurement, now: Measurement) -> bool:
    """Return True if the sampler gave the same, to the last token, for weights that the trainer holds for others."""
    both = list(zip(before.trajectories, now.trajectories, strict=True))
    if not all(np.array_equal(a.token_ids, b.token_ids) for a, b in both):
        return False
    moved = Gap.of(before.sampled.trainer - now.sampled.trainer).mean
    return Gap.of(before.sampled.sampler - now.sampled.sampler).mean <= EXPLAINED * moved


class GapWatch:
    """Judges every publication by the canary, and every step's own samples.

    Shows a verdict when it, or its cause, changes; `stop` raises Halt, unless `action` is "warn".
    """

    def __init__(self, band: Band, action: str, run: RunWriter, canary: Canary | None = None) -> None:
        self.band, self.action, self.run = band, action, run
        self.diagnosis = Diagnosis(canary) if canary else None
        self._shown: dict[str, tuple[Verdict, str]] = {}

    def published(self, version: int) -> dict[str, float]:
        """Measure the canary of the version that sampler and trainer have now; returns its metrics."""
        assert self.diagnosis is not None
        measured = self.diagnosis.canary.measure(version)
        metrics = gap_metrics(measured.gap, measured.verdict)
        cause = self.diagnosis.cause(measured) if measured.verdict != Verdict.OK else None
        self.diagnosis.remember(measured)
        name, text = (cause.name, str(cause)) if cause else ("", "")
        self.judge("canary", version, measured.verdict, measured.gap, name, text, metrics)
        return metrics

    def scored(self, version: int, sampler: Sequence[float], trainer: Sequence[float]) -> dict[str, float]:
        """Judge logprobs of the same tokens by a server and a trainer elsewhere; no metrics if the server can't score
        given tokens (NaN).
        """
        if np.isnan(np.asarray(sampler)).all():  # also of none
            return {}
        gap = Gap.of(np.asarray(sampler) - np.asarray(trainer))
        verdict = self.band.verdict(gap)
        metrics = gap_metrics(gap, verdict)
        cause = "on given tokens, right after the server took the weights: it has other weights, or computes otherwise"
        self.judge("canary", version, verdict, gap, "its canary", cause, metrics)
        return metrics

    def trained(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Judge the gap of the tokens of a step that was trained on samples of its own version."""
        if (mean := metrics.get("logprob_gap/mean")) is None or metrics.get("staleness/mean"):
            return
        gap = Gap(float(mean), float(metrics["logprob_gap/max"]))
        text = "on the step's own samples, while the canary of its weights was fine: long completions, or what is "
        text += "sampled beside them, change the sampler's numbers"
        _, known = self._shown.get("canary", (Verdict.OK, ""))
        if known:
            text = f"on the step's own samples, as on the canary ({known})"
        self.judge("samples", step, self.band.verdict(gap), gap, known or "samples only", text, {})

    def judge(
        self, what: str, version: int, verdict: Verdict, gap: Gap, name: str, text: str, metrics: Mapping[str, float]
    ) -> None:
        """Report a gap of `version`, whose cause is `name` and `text`. Halt if it is too wide."""
        now = (verdict, name if verdict else "")
        changed, self._shown[what] = self._shown.get(what, (Verdict.OK, "")) != now, now
        if verdict == Verdict.OK:
            return
        band, run = self.band, self.run
        evidence = f"sampler and trainer are {gap.mean:.2g} nats a token apart: {text}"
        value = gap.mean if math.isfinite(gap.mean) else math.inf
        if (alarm := run.alarms.raised(version, "gap", Finding(value, band.mean, evidence, ADVICE))) is not None:
            run.alarm(alarm)
        if changed:
            facts = {"verdict": verdict.name.lower(), "of": what, "cause": name, "text": text}
            sizes = {"mean": gap.mean, "max": gap.max}
            sizes = {name: value if math.isfinite(value) else str(value) for name, value in sizes.items()}
            run.event("gap", version, **facts, **sizes, band=[band.mean, band.max, band.stop])
        size = (
            f"sampler and trainer disagree at version {version} by {gap.mean:.2g} nats a token (at most {gap.max:.2g}"
        )
        if verdict == Verdict.STOP and self.action == "stop":
            limit = f"the run stops beyond {band.stop:g}, or with --gap.action warn goes on)"
            raise Halt(f"{size}; {limit}: {text}", metrics)
        if changed:
            run.display.message(f"Warning: {size}; fine up to {band.mean:g} and {band.max:g}): {text}.")
