"""Why sampler and trainer disagree: each known cause predicts what the sampler must have computed, and is tested.

stale weights       it scores as the trainer did some versions ago
stale cache         it agrees behind a prompt that it never saw, not behind those that it did
sampling transform  its logprobs are those of another temperature, or renormalised after top-k, top-p or min-p
template            the prompt it continued is another one, such as with a token put before it
numerics            nothing of that, and little enough to be rounding: another dtype or kernel
unknown             nothing of that: another model, perhaps
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from hone import rng
from hone.algorithms.gap import Gap, Verdict, fit_temperature, fit_truncation
from hone.orchestrator.canary import Canary, Measurement, Part, completed

EXPLAINED = 0.2
"""A cause is found if what it leaves unexplained is at most this share of the gap, also without the worst token: of
rounding, one token may make most, and anything explains one token.
"""
ROUNDING = 0.1
"""More than this, as a mean in nats, is no rounding in any dtype."""


@dataclass(frozen=True)
class Cause:
    """`name` as in the list above, what was found in words, and what to do about it."""

    name: str
    text: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.name}: {self.text}; {self.remedy}"


class Diagnosis:
    """Finds the cause of a gap. Remembers what the trainer said of earlier versions (of none, after a resume)."""

    def __init__(self, canary: Canary) -> None:
        self.canary = canary
        self._fixed: dict[int, np.ndarray] = {}
        self._last: Measurement | None = None

    def remember(self, measured: Measurement) -> None:
        """To be called after each measurement, when its cause, if need be, was asked for."""
        if measured.fixed is not None:
            self._fixed[measured.version] = measured.fixed.trainer.astype(np.float32)
        self._last = measured

    def cause(self, measured: Measurement) -> Cause:
        """Why the two parts of this measurement are not in the band."""
        return (
            _not_finite(measured)
            or self._other_prompt(measured)
            or self._stale_weights(measured)
            or self._transform(measured)
            or self._prepended(measured)
            or self._stale_cache(measured)
            or self._rounding(measured)
        )

    def _other_prompt(self, measured: Measurement) -> Cause | None:
        for request, trajectory in zip(self.canary.requests, measured.trajectories, strict=True):
            given = trajectory.token_ids[~trajectory.sampled_mask].tolist()
            if given != list(request.prompt_ids):
                text = f"the sampler continued a prompt of {len(given)} tokens that is not the one of "
                text += f"{len(request.prompt_ids)} it was given"
                return _template(text)
        return None

    def _stale_weights(self, measured: Measurement) -> Cause | None:
        if measured.fixed is not None:
            if self.canary.band.verdict(measured.fixed.gap) == Verdict.OK:
                return None
            left = {v: np.abs(measured.fixed.sampler - old) for v, old in self._fixed.items() if v != measured.version}
            version = min(left, key=lambda v: left[v].mean(), default=-1)
            found = version >= 0 and _explains(left[version], measured.fixed)
        else:
            version = self._last.version if self._last else -1
            found = self._last is not None and _same_samples(self._last, measured)
        if not found:
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
        left = left_M.cpu().numpy()
        if _explains(left, part) and abs(temperature / trained_at - 1) > 0.02:
            text = f"the sampler's logprobs are those at temperature {temperature:.3g}, not {trained_at:g}"
            remedy = "let it sample, and report logprobs, at orchestrator.sampling.temperature (vLLM: "
            return Cause("sampling transform", text, remedy + "--logprobs-mode processed_logprobs)")
        logprobs_MV = torch.log_softmax(logits_MV / trained_at, dim=-1)
        name, value, left_M = fit_truncation(logprobs_MV, tokens_M, sampled_M)
        left = left_M.cpu().numpy()
        if _explains(left, part):
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
        if not _explains(np.abs(measured.sampled.sampler - scores_M), measured.sampled):
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
        difference = part.sampler - part.trainer
        if not measured.gap.mean <= ROUNDING:
            text = f"the sampler's logprobs fit no version of this run (mean difference {difference.mean():+.2g})"
            return Cause("unknown", text, "see which model it serves")
        text = f"the sampler rounds otherwise (mean difference {difference.mean():+.1g})"
        remedy = (
            "give it the trainer's dtype (precision, inference.dtype), or allow more by gap.mean, gap.max, gap.stop"
        )
        return Cause("numerics", text, remedy)


def _explains(left_M: np.ndarray, part: Part) -> bool:
    """Whether a cause that leaves this |Δ| `[M]` is the one."""
    gap_M = np.abs(part.sampler - part.trainer)
    others_M = np.arange(len(gap_M)) != gap_M.argmax()
    return all(left_M[of].sum() <= EXPLAINED * gap_M[of].sum() for of in (slice(None), others_M))


def _not_finite(measured: Measurement) -> Cause | None:
    for side in ("sampler", "trainer"):
        if not all(np.isfinite(getattr(part, side)).all() for part in measured.parts):
            text = f"the {side} computes logprobs that are not finite"
            return Cause("numerics", text, "look at grad_norm and loss of the steps before, and use a smaller optim.lr")
    return None


def _template(text: str) -> Cause:
    remedy = "send token ids, and let it add nothing to them (no bos, no chat template)"
    return Cause("template", text, remedy)


def _same_samples(before: Measurement, now: Measurement) -> bool:
    """Whether the sampler said the same, to the last token, of weights that the trainer says are others."""
    both = list(zip(before.trajectories, now.trajectories, strict=True))
    if not all(np.array_equal(a.token_ids, b.token_ids) for a, b in both):
        return False
    moved = Gap.of(before.sampled.trainer - now.sampled.trainer).mean
    return Gap.of(before.sampled.sampler - now.sampled.sampler).mean <= EXPLAINED * moved
