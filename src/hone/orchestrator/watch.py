"""What is done about a gap between sampler and trainer: told once, written down, and, if it is far too wide, an end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hone.algorithms.gap import BANDS, Band, Gap, Verdict
from hone.config.rl import RLConfig
from hone.errors import Halt
from hone.orchestrator.canary import Canary
from hone.orchestrator.diagnosis import Diagnosis
from hone.runs.alarm_finding import Finding
from hone.runs.writer import RunWriter


def band_of(config: RLConfig, backend: str | None = None) -> Band:
    """What the run allows: that of the backend (by default the configured one) and of the coarser precision of the two,
    but for what `gap` sets.
    """
    backend = backend or config.inference.backend
    coarse = backend == "vllm" and config.inference.dtype == "bfloat16"
    band = BANDS[backend, "bf16" if coarse else config.precision]
    given = {"mean": config.gap.mean, "max": config.gap.max, "stop": config.gap.stop}
    return replace(band, **{name: value for name, value in given.items() if value is not None})


class Verdicts:
    """Tells a verdict when it, or its cause, changes; `stop` raises Halt, unless `action` is "warn"."""

    def __init__(self, band: Band, action: str, run: RunWriter) -> None:
        self.band, self.action, self.run = band, action, run
        self._told: dict[str, tuple[Verdict, str]] = {}

    def trained(self, step: int, metrics: Mapping[str, Any]) -> None:
        """The gap of the tokens that a step was trained on, if it was, and they are of the version that it trained."""
        if (mean := metrics.get("logprob_gap/mean")) is None or metrics.get("staleness/mean"):
            return
        gap = Gap(float(mean), float(metrics["logprob_gap/max"]))
        text = "on the step's own samples, while the canary of its weights was fine: long completions, or what is "
        text += "sampled beside them, change the sampler's numbers"
        _, known = self._told.get("canary", (Verdict.OK, ""))
        if known:
            text = f"on the step's own samples, as on the canary ({known})"
        self.judge("samples", step, self.band.verdict(gap), gap, known or "samples only", text, {})

    def judge(
        self, what: str, version: int, verdict: Verdict, gap: Gap, name: str, text: str, metrics: Mapping[str, float]
    ) -> None:
        """Says what a gap of `version` amounts to; `name` and `text` are its cause. Halt if it is too wide."""
        new = self._told.get(what, (Verdict.OK, "")) != (verdict, name if verdict else "")
        self._told[what] = verdict, name if verdict else ""
        if verdict == Verdict.OK:
            return
        band = self.band
        self._alarm(version, gap, f"sampler and trainer are {gap.mean:.2g} nats a token apart: {text}")
        if new:
            facts = {"verdict": verdict.name.lower(), "of": what, "cause": name, "text": text}
            sizes = {"mean": gap.mean, "max": gap.max}
            sizes = {name: value if math.isfinite(value) else str(value) for name, value in sizes.items()}
            self.run.event("gap", version, **facts, **sizes, band=[band.mean, band.max, band.stop])
        found = (
            f"sampler and trainer disagree at version {version} by {gap.mean:.2g} nats a token (at most {gap.max:.2g}; "
        )
        if verdict == Verdict.STOP and self.action == "stop":
            limit = f"the run stops beyond {band.stop:g}, or with --gap.action warn goes on)"
            raise Halt(f"{found}{limit}: {text}", metrics)
        if new:
            self.run.display.message(f"Warning: {found}fine up to {band.mean:g} and {band.max:g}): {text}.")

    def _alarm(self, version: int, gap: Gap, evidence: str) -> None:
        """Raises the alarm, which monitors hear of; the console is told in words of its own."""
        value = gap.mean if math.isfinite(gap.mean) else math.inf
        alarm = self.run.alarms.raised(version, "gap", Finding(value, self.band.mean, evidence, ADVICE))
        if alarm is not None:
            self.run.alarm(alarm)


ADVICE = "see docs/gap.md; --gap.mean, --gap.max and --gap.stop set the bounds"


class GapWatch(Verdicts):
    """Judges every publication by a canary, and every step's own samples."""

    def __init__(self, canary: Canary, action: str, run: RunWriter) -> None:
        super().__init__(canary.band, action, run)
        self.canary = canary
        self.diagnosis = Diagnosis(canary)

    def published(self, version: int) -> dict[str, float]:
        """The canary's metrics of the version that sampler and trainer have now."""
        measured = self.canary.measure(version)
        metrics = measured.metrics()
        name = text = ""
        if measured.verdict != Verdict.OK:
            cause = self.diagnosis.cause(measured)
            name, text = cause.name, str(cause)
        self.diagnosis.remember(measured)
        self.judge("canary", version, measured.verdict, measured.gap, name, text, metrics)
        return metrics


class ScoreWatch(Verdicts):
    """Judges every publication by the canary's fixed tokens, which sampler and trainer score in processes of their own.

    What it finds is told by another thread than the one that trains: `judge` is left to the caller.
    """

    def measured(self, sampler: Sequence[float], trainer: Sequence[float]) -> tuple[Verdict, Gap, dict[str, float]]:
        """Of logprobs of the same tokens; no metrics if the sampler can't score given tokens (NaN)."""
        differences = np.asarray(sampler) - np.asarray(trainer)
        if np.isnan(np.asarray(sampler)).all():  # also of none
            return Verdict.OK, Gap(0.0, 0.0), {}
        gap = Gap.of(differences)
        verdict = self.band.verdict(gap)
        return verdict, gap, {"canary/gap/mean": gap.mean, "canary/gap/max": gap.max, "canary/verdict": float(verdict)}
