"""METRICS: what a run writes, a row each. A new metric is one row here, beside the place where it is computed.

Predictions read from it which metrics a run writes, and when; the viewer labels, units and which curves come first;
`hone replay` how far a metric may be off where sums round otherwise.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Literal

from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.config.shared import RunConfig

Better = Literal["higher", "lower", ""]


@dataclass(frozen=True)
class Metric:
    """A row of `METRICS`. `*` in a `name` matches anything: `reward/*/mean` is any component's."""

    name: str
    where: str
    """Who writes it: `rl` and `sft` at each step, `val` and `eval` where they measure (`eval` as `eval/ENV/<name>`),
    `canary` after each publication of weights, `time` from a clock, in timings.jsonl."""
    unit: str = ""
    label: str = ""
    """Its meaning, if its name does not say it; `{}` is what the `*` matches."""
    better: Better = ""
    curve: bool = False
    """True if it is drawn by default."""
    tolerance: float | None = 0
    """Times the rounding limit by which a run on other ranks may differ; 0 means equal, None: not compared."""
    alias: str = ""
    """Its name in other trainers."""
    needs: str = ""
    """The setting without which it is not written."""


SHARE = "share of completions"
NATS = "nats per token"
METRICS = (
    Metric("reward/mean", "rl eval", "reward", "reward, mean", better="higher", curve=True, alias="reward"),
    Metric("reward/std", "rl eval", "reward", "reward, standard deviation"),
    Metric("ci95/low", "eval", "reward", "reward, 95 % interval, low end"),
    Metric("ci95/high", "eval", "reward", "reward, 95 % interval, high end"),
    Metric("correct", "eval", SHARE, "correct", better="higher"),
    Metric("correct/ci95/low", "eval", SHARE, "correct, 95 % interval, low end"),
    Metric("correct/ci95/high", "eval", SHARE, "correct, 95 % interval, high end"),
    Metric("frac_reward_zero_std", "rl", "share of groups", "groups without signal", better="lower"),
    Metric("outcome/correct", "rl eval", SHARE, "outcome correct", better="higher", alias="accuracy"),
    Metric("outcome/wrong", "rl eval", SHARE, "outcome wrong", better="lower"),
    Metric("outcome/unparsable", "rl eval", SHARE, "outcome unparsable", better="lower"),
    Metric("outcome/truncated", "rl eval", SHARE, "outcome truncated", better="lower"),
    Metric("outcome/grader_error", "rl eval", SHARE, "outcome grader error", better="lower"),
    Metric("outcome/grader_timeout", "rl eval", SHARE, "outcome grader timeout", better="lower"),
    Metric("completion/length/mean", "rl eval", "tokens", "length, mean", alias="length"),
    Metric("completion/truncated", "rl eval", SHARE, "truncated", better="lower"),
    Metric("completion/repeated", "rl", SHARE, "repeated", better="lower"),
    Metric("completion/identical", "rl", SHARE, "identical to another prompt's", better="lower"),
    Metric("turns/mean", "rl eval", "turns per completion", "turns of a conversation, mean"),
    Metric("tokens/environment", "rl", "tokens", "tokens of the environment's messages"),
    Metric("staleness/mean", "rl", "versions", "versions behind, mean"),
    Metric("groups/trained", "rl", "groups"),
    Metric("groups/filtered", "rl", "groups"),
    Metric("groups/failed", "rl", "groups"),
    Metric("logprob_gap/mean", "rl", "nats", "gap of sampler and trainer, mean", better="lower", tolerance=None),
    Metric("logprob_gap/max", "rl", "nats", "gap of sampler and trainer, largest", better="lower", tolerance=None),
    Metric("clipped", "rl", "share of tokens", "tokens with a clipped ratio", tolerance=None),
    Metric("loss", "rl sft", "", "loss", curve=True, tolerance=1),
    Metric("entropy", "rl sft", NATS, "entropy of the policy", tolerance=10),
    Metric("grad_norm", "rl sft", "", "norm of the gradient", tolerance=10),
    Metric("lr", "rl sft", "", "learning rate"),
    Metric("optimizer/skipped", "rl sft", "", "update left out"),
    Metric("tokens/total", "rl sft", "tokens", "tokens so far"),
    Metric("epoch", "sft"),
    Metric("examples/total", "sft", "examples", "examples so far"),
    Metric("val/loss", "val", NATS, "validation loss", better="lower", curve=True, tolerance=1, alias="val_loss"),
    Metric("canary/gap/mean", "canary", "nats", "gap on a fixed text, mean", better="lower"),
    Metric("canary/gap/max", "canary", "nats", "gap on a fixed text, largest", better="lower"),
    Metric("canary/verdict", "canary"),
    Metric(
        "kl", "rl", NATS, "KL to the initial policy", tolerance=10, alias="kl", needs="trainer.loss.kl_coef above 0"
    ),
    Metric("staleness/max", "rl", "versions", needs="orchestrator.max_async_level above 0"),
    Metric("staleness/returned", "rl", "versions", needs="orchestrator.max_async_level above 0"),
    Metric("pool/active", "rl", "prompts", needs="a pool: orchestrator.curriculum.pool"),
    Metric("pool/retired", "rl", "prompts", needs="a pool: orchestrator.curriculum.pool"),
    Metric("pool/parked", "rl", "prompts", needs="a pool: orchestrator.curriculum.pool"),
    Metric("pass@*", "eval", SHARE, "pass@{0} (at least one of {0} completions correct)", better="higher"),
    Metric("reward/*/mean", "rl eval", "reward", "{0} (a component of the reward), mean"),
    Metric("tokens/s", "time", "tokens per second"),
    Metric("time/*", "time", "s"),
    Metric("idle/*", "time", "s"),
    Metric("queue/*", "time"),
    Metric("usd/total", "time", "USD"),
)


def row(metric: str) -> Metric | None:
    """Return the row of a metric, of one of an evaluation by what follows `eval/ENV/`; None for one of a plugin."""
    name = re.sub(r"^eval/[^/]+/", "", metric)
    return next((one for one in METRICS if fnmatchcase(name, one.name)), None)


def unit(metric: str) -> str:
    """Return the unit of a metric in words; empty for one that has none, or is not known here."""
    found = row(metric)
    return found.unit if found else ""


def label(metric: str) -> str:
    """Return what a metric is, in words; its name if that says it."""
    found = row(metric)
    if found is None or not found.label:
        return metric
    pattern = re.escape(found.name).replace(r"\*", "(.+)")
    match = re.fullmatch(pattern, re.sub(r"^eval/[^/]+/", "", metric))
    assert match is not None
    return found.label.format(*(part.replace("_", " ") for part in match.groups()))


@dataclass(frozen=True)
class Written:
    """The steps at which a metric is written: every `interval` from 0 to `last`, which is one of them in any case."""

    last: int
    interval: int = 1

    def __contains__(self, step: int) -> bool:
        return step == self.last or (0 <= step < self.last and step % self.interval == 0)

    def nearest(self, step: int) -> int:
        """Return the step nearest to `step` at which it is written, the earlier of two."""
        below = step // self.interval * self.interval
        candidates = [s for s in (below, below + self.interval, self.last) if s in self]
        return min(candidates, key=lambda s: (abs(s - step), s))

    def __str__(self) -> str:
        return f"steps 0 to {self.last}" if self.interval == 1 else f"every {self.interval} steps and at {self.last}"


def written(metric: str, config: RunConfig, env_id: str | None = None) -> Written | str:
    """Return when a run of `config` writes `metric`; if it never does, the fault, as the end of a sentence.

    `env_id` is the task's own id, if known: its metrics are named after it. A component of a reward may
    have any name.
    """
    in_eval = metric.startswith("eval/")
    found = row(metric)
    where = found.where.split() if found else []
    if found and not in_eval:
        if "time" in where:
            return "comes from a clock (timings.jsonl), so no run has it twice: predict what is in metrics.jsonl"
        if "val" in where and isinstance(config, SFTConfig):
            steps = Written(config.max_steps, config.val.interval) if config.val else None
            return steps or "needs validation: add --val.interval"
        if isinstance(config, RLConfig) and "canary" in where:
            return Written(config.max_steps)
        if ("rl" if isinstance(config, RLConfig) else "sft") in where:
            fulfilled = not found.needs or _fulfilled(found, config)
            return Written(config.max_steps - 1) if fulfilled else f"is written only with {found.needs}"
    if in_eval and isinstance(config, RLConfig):
        settings = config.orchestrator.eval
        if settings is None:
            return "needs evaluations during the run: add --orchestrator.eval.interval"
        name = metric.split("/", 2)[2] if metric.count("/") > 1 else ""
        if env_id in (None, metric.split("/")[1]) and "eval" in where and _counts(name, settings.rollouts_per_example):
            return Written(config.max_steps, settings.interval)
    kind = "rl" if isinstance(config, RLConfig) else "sft"
    return f"is no metric of `{kind}`: {_hint(metric, known(config, env_id))}"


def _fulfilled(metric: Metric, config: RunConfig) -> bool:
    """Return True if a run has the setting that the metric needs."""
    assert isinstance(config, RLConfig), config
    if metric.name == "kl":
        return config.trainer.loss.kl_coef > 0
    orch = config.orchestrator
    return orch.max_async_level > 0 if metric.name.startswith("staleness") else orch.curriculum.pool is not None


def _counts(name: str, rollouts: int) -> bool:
    """Return False for a `pass@k` that an evaluation of so many completions per example does not measure."""
    return not name.startswith("pass@") or name in _passes(rollouts)


def _passes(rollouts: int) -> list[str]:
    """Return `pass@1`, `pass@2`, `pass@4`, … up to the completions per example."""
    return [f"pass@{2**power}" for power in range(rollouts.bit_length())]


def known(config: RunConfig, env_id: str | None = None) -> list[str]:
    """Return the names that a run of `config` writes, but for the components of its reward."""
    rows = [one for one in METRICS if "*" not in one.name]
    if isinstance(config, SFTConfig):
        kinds = {"sft", "val"} if config.val else {"sft"}
        return [one.name for one in rows if kinds & set(one.where.split())]
    assert isinstance(config, RLConfig), config
    rl = [one for one in rows if {"rl", "canary"} & set(one.where.split())]
    names = [one.name for one in rl if not one.needs or _fulfilled(one, config)]
    if evaluation := config.orchestrator.eval:
        measured = [one.name for one in rows if "eval" in one.where] + _passes(evaluation.rollouts_per_example)
        names += [f"eval/{env_id or config.orchestrator.env.id}/{name}" for name in measured]
    return names


def _hint(metric: str, names: list[str]) -> str:
    other = next((one.name for one in METRICS if one.alias == metric.lower()), None)
    ends = [name for name in names if name.endswith(f"/{metric}") or name.startswith(f"{metric}/")]
    close = [other] if other in names else get_close_matches(metric, names, n=1, cutoff=0.6) or ends[:1]
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(names[:3])}, … (see metrics.jsonl of a run)"
