"""Which metrics a run writes, and at which steps, as far as its config tells: for those who name one beforehand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.config.shared import RunConfig

_UPDATE = ("loss", "entropy", "grad_norm", "lr", "optimizer/skipped", "tokens/total")
"""Of every step that trains."""
_OUTCOMES = tuple(
    f"outcome/{name}" for name in ("correct", "wrong", "unparsable", "truncated", "grader_error", "grader_timeout")
)
"""Written out, for the type loads numpy, which looking at runs does without."""
_ROLLOUTS = (
    "reward/mean",
    "reward/std",
    "frac_reward_zero_std",
    *_OUTCOMES,
    "completion/length/mean",
    "completion/truncated",
    "completion/repeated",
    "completion/identical",
    "turns/mean",
    "tokens/environment",
    "staleness/mean",
    "groups/trained",
    "groups/filtered",
    "groups/failed",
    "logprob_gap/mean",
    "logprob_gap/max",
    "clipped",
)
_CANARY = ("canary/gap/mean", "canary/gap/max", "canary/verdict")
_EVALUATION = (
    "reward/mean",
    "reward/std",
    "ci95/low",
    "ci95/high",
    "exact",
    "exact/ci95/low",
    "exact/ci95/high",
    *_OUTCOMES,
    "completion/truncated",
    "completion/length/mean",
    "turns/mean",
)
_COMPONENT = re.compile(r"reward/.+/mean")
_TIMINGS = re.compile(r"time/.*|tokens/s|usd/total|queue/.*|idle/.*")
_ALIASES = {
    "reward": "reward/mean",
    "kl": "kl",
    "length": "completion/length/mean",
    "accuracy": "outcome/correct",
    "val_loss": "val/loss",
}
"""Other trainers' words."""


@dataclass(frozen=True)
class Written:
    """The steps at which a metric is written: every `interval` from 0 to `last`, which is one of them in any case."""

    last: int
    interval: int = 1

    def __contains__(self, step: int) -> bool:
        return step == self.last or (0 <= step < self.last and step % self.interval == 0)

    def nearest(self, step: int) -> int:
        """The step nearest to `step` at which it is written, the earlier of two."""
        below = step // self.interval * self.interval
        candidates = [s for s in (below, below + self.interval, self.last) if s in self]
        return min(candidates, key=lambda s: (abs(s - step), s))

    def __str__(self) -> str:
        return f"steps 0 to {self.last}" if self.interval == 1 else f"every {self.interval} steps and at {self.last}"


def written(metric: str, config: RunConfig, env_id: str | None = None) -> Written | str:
    """When a run of `config` writes `metric`; if it never does, what is wrong with it, as the end of a sentence.

    `env_id` is the task's own id, where that is known: what is measured of it is called so. A component of a reward may
    have any name.
    """
    found = _of_rl(metric, config, env_id) if isinstance(config, RLConfig) else _of_sft(metric, config)
    if isinstance(found, Written):
        return found
    if _TIMINGS.fullmatch(metric):
        return "comes from a clock (timings.jsonl), so no run has it twice: predict what is in metrics.jsonl"
    kind = "rl" if isinstance(config, RLConfig) else "sft"
    return found or f"is no metric of `{kind}`: {_hint(metric, known(config, env_id))}"


def _of_sft(metric: str, config: RunConfig) -> Written | str:
    assert isinstance(config, SFTConfig), config
    if metric == "val/loss":
        return Written(config.max_steps, config.val.interval) if config.val else "needs validation: add --val.interval"
    return Written(config.max_steps - 1) if metric in (*_UPDATE, "epoch", "examples/total") else ""


def _of_rl(metric: str, config: RLConfig, env_id: str | None) -> Written | str:
    orch, trained = config.orchestrator, Written(config.max_steps - 1)
    if metric in _CANARY:
        return Written(config.max_steps)
    if metric in (*_UPDATE, *_ROLLOUTS) or _COMPONENT.fullmatch(metric):
        return trained
    needs = {
        "kl": (config.trainer.loss.kl_coef > 0, "trainer.loss.kl_coef above 0"),
        "staleness/max": (orch.max_async_level > 0, "orchestrator.max_async_level above 0"),
        "staleness/returned": (orch.max_async_level > 0, "orchestrator.max_async_level above 0"),
        **dict.fromkeys(
            ("pool/active", "pool/retired", "pool/parked"),
            (orch.curriculum.pool is not None, "a pool: orchestrator.curriculum.pool"),
        ),
    }
    if metric in needs:
        fulfilled, what = needs[metric]
        return trained if fulfilled else f"is written only with {what}"
    return _of_evaluation(metric, config, env_id) if metric.startswith("eval/") else ""


def _of_evaluation(metric: str, config: RLConfig, env_id: str | None) -> Written | str:
    settings = config.orchestrator.eval
    if settings is None:
        return "needs evaluations during the run: add --orchestrator.eval.interval"
    name = _after_env(metric, env_id)
    if name is None:
        return ""
    fine = name in (*_EVALUATION, *_passes(settings.rollouts_per_example)) or _COMPONENT.fullmatch(name)
    return Written(config.max_steps, settings.interval) if fine else ""


def _after_env(metric: str, env_id: str | None) -> str | None:
    """What stands behind `eval/<env>/`; None if that is another task's."""
    if env_id is None:
        return metric.split("/", 2)[2] if metric.count("/") > 1 else None
    prefix = f"eval/{env_id}/"
    return metric.removeprefix(prefix) if metric.startswith(prefix) else None


def _passes(rollouts: int) -> Iterator[str]:
    """`pass@1`, `pass@2`, `pass@4`, … of an evaluation with so many completions per example."""
    k = 1
    while k <= rollouts:
        yield f"pass@{k}"
        k *= 2


def known(config: RunConfig, env_id: str | None = None) -> list[str]:
    """The names that a run of `config` writes, but for the components of its reward."""
    if isinstance(config, SFTConfig):
        return [*_UPDATE, "epoch", "examples/total", *(["val/loss"] if config.val else [])]
    assert isinstance(config, RLConfig), config
    orch = config.orchestrator
    names = [*_ROLLOUTS, *_UPDATE, *_CANARY]
    names += ["kl"] if config.trainer.loss.kl_coef > 0 else []
    names += ["staleness/max", "staleness/returned"] if orch.max_async_level else []
    names += ["pool/active", "pool/retired", "pool/parked"] if orch.curriculum.pool else []
    if orch.eval:
        of_env = [*_EVALUATION, *_passes(orch.eval.rollouts_per_example)]
        names += [f"eval/{env_id or orch.env.id}/{name}" for name in of_env]
    return names


def _hint(metric: str, names: list[str]) -> str:
    other = _ALIASES.get(metric.lower())
    ends = [name for name in names if name.endswith(f"/{metric}") or name.startswith(f"{metric}/")]
    close = [other] if other in names else get_close_matches(metric, names, n=1, cutoff=0.6) or ends[:1]
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(names[:3])}, … (see metrics.jsonl of a run)"
